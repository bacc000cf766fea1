-- The tables of a study in DuckDB, one query each; pipeline_duckdb.py fills in what is in braces.

-- table states
create or replace table states as
select *, lead(time_ms) over w as end_ms, lead(log_weight) over w as end_log_weight,
    leader < 0 or (not leader_serves and leader = lag(leader) over w and lag(leader_serves) over w) as fails
from (
    select c.cell, t.* exclude (cell, partition),
        unnest(case when kind = 'end' then range(c.partitions) else [partition] end) as partition
    from read_parquet('{out}/trace/*.parquet') t join cells c on t.cell = c.digest where kind in ('state', 'end'))
window w as (partition by cell, trial, partition order by seq)

-- table intervals
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

-- table outages
select cell, trial, partition, min(start_ms) as start_ms, max(end_ms) as end_ms,
    max(end_ms) - min(start_ms) as failover_ms,
    max(end_ms) < any_value(duration_ms) as ended, not bool_or(leader_failed) as handover,
    arg_max(weight, end_ms) as weight
from read_parquet('{target}/intervals.parquet') join trials using (cell, trial)
where outage is not null group by cell, trial, partition, outage

-- table elections
select cell, trial, partition, start_ms as time_ms, epoch, leader, leader_before,
    case when list_contains(string_split(isr_before, ','), leader::varchar) then 'isr'
        when list_contains(string_split(elr_before, ','), leader::varchar) then 'elr' else 'unclean' end as reason,
    leader_before >= 0 and not leader_failed as handover, isr, isr_before, elr_before, weight
from read_parquet('{target}/intervals.parquet') where leader >= 0 and epoch > epoch_before

-- table isr_changes
select cell, trial, partition, start_ms as time_ms, isr_before, isr, elr_before, elr,
    list_filter(now, lambda b: b <> '' and not list_contains(before, b)) as joined,
    list_filter(before, lambda b: b <> '' and not list_contains(now, b)) as left,
    weight
from (
    select *, string_split(isr, ',') as now, string_split(isr_before, ',') as before
    from read_parquet('{target}/intervals.parquet') where isr <> isr_before or elr <> elr_before)

-- table catch_ups
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

-- table records
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

-- table losses
select c.cell, trial, partition, time_ms, value as records, exp(log_weight) as weight
from read_parquet('{out}/trace/*.parquet') t join cells c on t.cell = c.digest where kind = 'loss'

-- table trials
with times as (
    select cell, trial, sum(weight * length_ms) / {year_ms} as exposure, {sums_of_shares}
    from read_parquet('{target}/intervals.parquet') group by cell, trial),
counts as (
    select c.cell, trial, {sums_of_rates} from read_parquet('{out}/trace/*.parquet') t join cells c on t.cell = c.digest
    where kind not in ('state', 'end', 'produced', 'elected') group by c.cell, trial)
select cell, trial, partitions * duration_ms / {year_ms} as years, exposure, {shares}, {rates}
from trials join times using (cell, trial) left join counts using (cell, trial)

-- table cells
select cell, '{name}' as metric, count(*) as trials, sum({name}) as value, sum({name} * {name}) as value_squares,
    sum(exposure) as exposure, sum(exposure * exposure) as exposure_squares, sum({name} * exposure) as value_exposure,
    sum(years) as years, sum({name}_events)::bigint as events
from read_parquet('{target}/trials.parquet') group by cell

-- table times
select cell, kind, quantile_disc(ms, 0.5) as p50, quantile_disc(ms, 0.99) as p99, max(ms) as max, count(*) as events
from (
    select cell, case when handover then 'handover' else 'failover' end as kind, failover_ms as ms
    from read_parquet('{target}/outages.parquet') where ended
    union all
    select cell, 'catch_up', in_sync_ms - start_ms from read_parquet('{target}/catch_ups.parquet'))
group by cell, kind
