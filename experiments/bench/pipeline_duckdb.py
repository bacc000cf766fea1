"""The silver and gold of a study in DuckDB, on one machine: the baseline of the pipeline's benchmark, and a second
implementation that its numbers are compared with.

The same tables from the same files, written as Parquet, in SQL that shares nothing with the pipeline but the rules in
the docstrings of `experiments/studies/pipeline`. Sums are DuckDB's own, in whatever order it adds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

from experiments.studies.sweeps.output import StudyRecord, read_record
from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES
from experiments.studies.trace.schema import YEAR_MS

_STATES = """
create or replace table states as
select *, lead(time_ms) over w as end_ms, lead(log_weight) over w as end_log_weight,
    leader < 0 or (not leader_serves and leader = lag(leader) over w and lag(leader_serves) over w) as fails
from (
    select c.cell, t.* exclude (cell, partition),
        unnest(case when kind = 'end' then range(c.partitions) else [partition] end) as partition
    from read_parquet('{out}/trace/*.parquet') t join cells c on t.cell = c.digest where kind in ('state', 'end'))
window w as (partition by cell, trial, partition order by seq)
"""
_INTERVALS = """
with lasting as (
    select cell, trial, partition, seq, time_ms as start_ms, end_ms, end_ms - time_ms as length_ms, leader, epoch,
        isr_size, elr_size, min_isr, isr, elr, kind, recovering,
        leader >= 0 and leader_serves as online, leader < 0 as offline, isr_size < min_isr as refuses,
        leader >= 0 and (stalls or not leader_serves) as stalled,
        expired as unwritable, expired and leader < 0 as unwritable_offline,
        expired and leader >= 0 and not leader_serves as unwritable_leader,
        expired and leader >= 0 and leader_serves and stalls as unwritable_isr,
        expired and leader >= 0 and leader_serves and not stalls as unwritable_refused,
        sum(coalesce(fails, false)::int) over (partition by cell, trial, partition order by seq) as failures,
        exp(end_log_weight) as weight
    from states),
described as (
    select *, not online as out, lag(not online) over w as out_before, lag(failures) over w as failures_before,
        {shares_before},
        lag(leader) over w as leader_before, lag(epoch) over w as epoch_before,
        lag(isr) over w as isr_before, lag(elr) over w as elr_before, lag(recovering) over w as recovering_before
    from lasting where kind = 'state' and length_ms > 0
    window w as (partition by cell, trial, partition order by seq))
select * exclude (failures, failures_before, out_before, {names_before}, kind),
    {begins},
    failures > coalesce(failures_before, -1) as leader_failed,
    case when out then sum((out and not coalesce(out_before, false))::int) over w end as outage,
    case when recovering then sum((recovering and not coalesce(recovering_before, false))::int) over w end as recovery
from described window w as (partition by cell, trial, partition order by seq)
"""
_OUTAGES = """
select cell, trial, partition, min(start_ms) as start_ms, max(end_ms) as end_ms,
    max(end_ms) - min(start_ms) as failover_ms,
    max(end_ms) < any_value(duration_ms) as ended, not bool_or(leader_failed) as handover,
    arg_max(weight, end_ms) as weight
from read_parquet('{target}/intervals.parquet') join trials using (cell, trial)
where outage is not null group by cell, trial, partition, outage
"""
_ELECTIONS = """
select cell, trial, partition, start_ms as time_ms, epoch, leader, leader_before,
    case when list_contains(string_split(isr_before, ','), leader::varchar) then 'isr'
        when list_contains(string_split(elr_before, ','), leader::varchar) then 'elr' else 'unclean' end as reason,
    leader_before >= 0 and not leader_failed as handover, isr, isr_before, elr_before, weight
from read_parquet('{target}/intervals.parquet') where leader >= 0 and epoch > epoch_before
"""
_ISR_CHANGES = """
select cell, trial, partition, start_ms as time_ms, isr_before, isr, elr_before, elr,
    list_filter(now, lambda b: b <> '' and not list_contains(before, b)) as joined,
    list_filter(before, lambda b: b <> '' and not list_contains(now, b)) as left,
    weight
from (
    select *, string_split(isr, ',') as now, string_split(isr_before, ',') as before
    from read_parquet('{target}/intervals.parquet') where isr <> isr_before or elr <> elr_before)
"""
_CATCH_UPS = """
with joins as (
    select cell, trial, partition, unnest(joined)::int as broker, time_ms, weight
    from read_parquet('{target}/isr_changes.parquet')),
starts as (
    select c.cell, trial, node as broker, time_ms as start_ms
    from read_parquet('{out}/trace/*.parquet') t join cells c on t.cell = c.digest where kind = 'start')
select j.cell, j.trial, j.partition, j.broker, s.start_ms, min(j.time_ms) as in_sync_ms,
    arg_min(j.weight, j.time_ms) as weight
from joins j asof join starts s
    on j.cell = s.cell and j.trial = s.trial and j.broker = s.broker and j.time_ms >= s.start_ms
group by all
"""
_RECORDS = """
with followed as (
    select c.cell, c.acks_all, t.* exclude (cell) from read_parquet('{out}/trace/*.parquet') t
    join cells c on t.cell = c.digest where kind in ('produced', 'elected', 'checkpoint')),
cuts as (
    select * from (
        select *, coalesce(max(case when kind = 'checkpoint' then last_acked end) over w, 0) as followed
        from (
            select cell, trial, partition, seq, time_ms, epoch, "offset", kind,
                max(case when kind = 'produced' and detail = 'acked' then "offset" end) over w as highest,
                max(case when kind = 'produced' and detail = 'acked' then seq end) over w as last_acked
            from followed window w as (partition by cell, trial, partition order by seq))
        window w as (partition by cell, trial, partition order by seq))
    where kind = 'elected' and "offset" <= highest),
lost as (
    select p.cell, p.trial, p.partition, p.seq, min(c.time_ms) as lost_ms, arg_min(c.epoch, c.seq) as lost_epoch
    from followed p join cuts c on p.cell = c.cell and p.trial = c.trial and p.partition = c.partition
        and c.seq > p.seq and c."offset" <= p."offset" and c.followed <= p.seq
    where p.kind = 'produced' and p.detail = 'acked' group by all)
select p.cell, p.trial, p.partition, p.seq, p."offset", p.time_ms - p.value as sent_ms, p.detail as outcome,
    case when detail = 'acked' then time_ms end as acknowledged_ms,
    case when detail = 'acked' and acks_all then time_ms end as visible_ms,
    detail = 'acked' and lost_ms is null as durable, lost_ms, lost_epoch, exp(log_weight) as weight
from followed p left join lost using (cell, trial, partition, seq) where p.kind = 'produced'
"""
_LOSSES = """
select c.cell, trial, partition, time_ms, value as records, exp(log_weight) as weight
from read_parquet('{out}/trace/*.parquet') t join cells c on t.cell = c.digest where kind = 'loss'
"""


_SHARES = {
    "shares_before": ", ".join(f"lag({share.column}) over w as {share.column}_before" for share in FRACTIONS.values()),
    "names_before": ", ".join(f"{share.column}_before" for share in FRACTIONS.values()),
    "begins": ", ".join(
        f"{share.column} and not coalesce({share.column}_before, false) as {share.column}_begins"
        for share in FRACTIONS.values()
    ),
}
"""What `_INTERVALS` says of every share of time."""


def _values() -> str:
    """Exposure, and value and number of events of each metric, of every trial: `values`, one row per trial."""
    times = ", ".join(
        f"sum(case when {metric.column} then weight * length_ms else 0 end) / {YEAR_MS} as {metric.name}, "
        f"sum({metric.column}_begins::int) as {metric.name}_events"
        for metric in FRACTIONS.values()
    )
    counts = ", ".join(
        f"sum(case when kind = '{metric.trace_kind}' then exp(log_weight) * {'value' if metric.sums_values else 1} "
        f"else 0 end) as {metric.name}, count(*) filter (kind = '{metric.trace_kind}') as {metric.name}_events"
        for metric in RATES.values()
    )
    rates = ", ".join(f"coalesce({name}, 0) as {name}, coalesce({name}_events, 0) as {name}_events" for name in RATES)
    shares = ", ".join(f"{name}, {name}_events" for name in FRACTIONS)
    return f"""
with times as (
    select cell, trial, sum(weight * length_ms) / {YEAR_MS} as exposure, {times}
    from read_parquet('{{target}}/intervals.parquet') group by cell, trial),
counts as (
    select c.cell, trial, {counts} from read_parquet('{{out}}/trace/*.parquet') t join cells c on t.cell = c.digest
    where kind not in ('state', 'end', 'produced', 'elected') group by c.cell, trial)
select cell, trial, partitions * duration_ms / {YEAR_MS} as years, exposure, {shares}, {rates}
from trials join times using (cell, trial) left join counts using (cell, trial)
"""


_CELLS = """
select cell, '{name}' as metric, count(*) as trials, sum({name}) as value, sum({name} * {name}) as value_squares,
    sum(exposure) as exposure, sum(exposure * exposure) as exposure_squares, sum({name} * exposure) as value_exposure,
    sum(years) as years, sum({name}_events)::bigint as events
from read_parquet('{{target}}/trials.parquet') group by cell
"""
_TIMES = """
select cell, kind, quantile_disc(ms, 0.5) as p50, quantile_disc(ms, 0.99) as p99, max(ms) as max, count(*) as events
from (
    select cell, case when handover then 'handover' else 'failover' end as kind, failover_ms as ms
    from read_parquet('{target}/outages.parquet') where ended
    union all
    select cell, 'catch_up', in_sync_ms - start_ms from read_parquet('{target}/catch_ups.parquet'))
group by cell, kind
"""


def analyse(out: Path, record: StudyRecord, target: Path, memory: str = "1GB", threads: int = 2) -> None:
    """Writes the silver and gold of the study in `out` as Parquet files into the folder `target`. All batches of `out`
    are read: they must be those of the study."""
    with duckdb.connect(config={"memory_limit": memory, "threads": threads, "temp_directory": str(target)}) as database:
        database.execute("create table cells (digest varchar, cell int, partitions int, acks_all bool)")
        for index, cell in enumerate(record.study.cells):
            parameters = cell.parameters
            row = [record.cells[index], index, parameters.partitions, parameters.acks == "all"]
            database.execute("insert into cells values (?, ?, ?, ?)", row)
        database.execute(
            f"create table trials as select c.cell, t.trial, t.partitions, t.duration_ms "
            f"from read_parquet('{out}/trials/*.parquet') t join cells c on t.cell = c.digest"
        )
        database.execute(_STATES.format(out=out))
        cells = " union all ".join(_CELLS.format(name=metric.name) for metric in METRICS)
        tables = {"intervals": _INTERVALS, "outages": _OUTAGES, "elections": _ELECTIONS, "isr_changes": _ISR_CHANGES}
        tables |= {"catch_ups": _CATCH_UPS, "records": _RECORDS, "losses": _LOSSES, "trials": _values()}
        for name, query in {**tables, "cells": cells, "times": _TIMES}.items():
            filled = query.format(out=out, target=target, **_SHARES)
            database.execute(f"copy ({filled}) to '{target}/{name}.parquet' (format parquet, compression snappy)")


def main(out: Path, target: Path, memory: str) -> None:
    """Analyses the study in OUT, with so much memory, into TARGET."""
    analyse(out, read_record(out), target, memory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
