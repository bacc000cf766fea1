"""Silver: from the trace of a batch to intervals, outages and losses. Pure functions from :class:`Trace` to tables.

- *intervals*: a `state` row describes its partition until the next one, or the end of the trial. Intervals of length 0
  are dropped. An interval is `offline` without a leader, `online` if the recorded leader answers; it is `stalled` if
  there is a leader and writes wait for a broker that has crashed or is slow; it `refuses` acks=all writes if fewer than
  min ISR replicas are in sync, with or without a leader; it is `unwritable` once writes have waited for the delivery
  timeout, by exactly one cause: no leader (`unwritable_offline`), a leader that does not answer (`unwritable_leader`),
  a slow leader or another member of the ISR (`unwritable_isr`), too small an ISR (`unwritable_refused`). It is
  `recovering` from an unclean election until the leader has reported that it recovered. Each of these lasts for an
  *episode* of contiguous intervals; `..._begins` marks the first one.
- *outages*: contiguous intervals that are not online. A leader that is replaced while it answers makes a *handover*
  (controlled shutdown, preferred election): its successor is the leader before it answers. Every other outage is a
  failover. An outage that the trial's end cuts off counts for the fractions of time, but its length is unknown
  (`ended` false).
- *losses*: each event that lost acknowledged records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from experiments.studies.pipeline.rows import Texts, Trace, TraceRows, Values
from experiments.studies.pipeline.schemas import SILVER, table
from experiments.studies.trace.kinds import MEASURED, End, Loss, State
from experiments.studies.trace.metrics import FRACTIONS

SHARES = tuple(metric.column for metric in FRACTIONS.values())


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of a batch, by partition and in their order.

    `begins`: whether the interval is its partition's first. `columns`, `isr`, `elr`: of the rows that the intervals
    begin with; `out`: whether clients find no leader that answers. `leader_failed`: whether the partition's leader has
    failed since the interval before. `episodes`: where those of each share, of `out` and of `recovering` begin.
    """

    columns: dict[str, Values]
    begins: Values
    leader_failed: Values
    isr: Texts
    elr: Texts
    episodes: dict[str, Values]

    def __getitem__(self, name: str) -> Values:
        return self.columns[name]

    def before(self, name: str) -> pa.Array:
        """A column of the interval before, null for the first one of a partition."""
        return pa.array(np.roll(self.columns[name], 1), mask=self.begins)

    def number(self, episode: str) -> Values:
        """The number of the episode within the partition, from 1, for each interval."""
        total = np.cumsum(self.episodes[episode])
        starts = np.flatnonzero(self.begins)
        lengths = np.diff(starts, append=len(total))
        number: Values = total - np.repeat(total[starts] - self.episodes[episode][starts], lengths)
        return number


def find_intervals(trace: Trace) -> Intervals:
    """The intervals of constant state. `weight`: likelihood ratio at their ends. `end` ends all partitions."""
    rows = trace.rows.of_kinds(State, End)
    ends = rows.are(End)
    order, partition = _by_partition(trace, rows, ends)
    trial, time_ms, leader, serves = (rows[name][order] for name in ("trial", "time_ms", "leader", "leader_serves"))
    group = trace.groups(trial, partition)
    new = np.diff(group, prepend=-1) != 0
    fails = ~new & ~serves & (leader == np.roll(leader, 1)) & np.roll(serves, 1)
    failures = np.cumsum(fails | (leader < 0))
    kept = np.flatnonzero(~ends[order] & (np.roll(time_ms, -1) > time_ms))
    picked = order[kept]
    names = ("trial", "epoch", "isr_size", "elr_size", "min_isr", "recovering")
    columns = {name: rows[name][picked] for name in names} | {"leader": leader[kept], "partition": partition[kept]}
    columns |= {"start_ms": time_ms[kept], "end_ms": time_ms[kept + 1]}
    columns["weight"] = rows["weight"][order[kept + 1]]
    begins = np.diff(group[kept], prepend=-1) != 0
    failed = begins | (np.diff(failures[kept], prepend=0) > 0)
    columns |= _described(columns, serves[kept], rows["stalls"][picked], rows["expired"][picked])
    holding = {name: columns[name] for name in (*SHARES, "out", "recovering")}
    episodes = {name: holds & (begins | ~np.roll(holds, 1)) for name, holds in holding.items()}
    isr, elr = (Texts(text.codes[picked], text.distinct) for text in (rows.texts("isr"), rows.texts("elr")))
    return Intervals(columns, begins, failed, isr, elr, episodes)


def _by_partition(trace: Trace, rows: TraceRows, ends: Values) -> tuple[Values, Values]:
    """The rows of each partition one after the other, `end` rows for each partition, and the partitions."""
    taken = np.repeat(np.arange(len(rows)), np.where(ends, trace.partitions, 1))
    partition = rows["partition"][taken]
    partition[ends[taken]] = np.tile(np.arange(trace.partitions), ends.sum())
    order = np.argsort(trace.groups(rows["trial"][taken], partition), kind="stable")
    return taken[order], partition[order]


def _described(columns: dict[str, Values], serves: Values, stalls: Values, expired: Values) -> dict[str, Values]:
    offline = columns["leader"] < 0
    online = ~offline & serves
    return {
        "length_ms": columns["end_ms"] - columns["start_ms"],
        "offline": offline,
        "refuses": columns["isr_size"] < columns["min_isr"],
        "stalled": ~offline & (stalls | ~serves),
        "unwritable": expired,
        "unwritable_offline": expired & offline,
        "unwritable_leader": expired & ~offline & ~serves,
        "unwritable_isr": expired & online & stalls,
        "unwritable_refused": expired & online & ~stalls,
        "online": online,
        "out": ~online,
    }


def intervals(trace: Trace) -> pa.Table:
    """One row per partition and interval of constant state, with the columns of `schemas.SILVER["intervals"]`."""
    found = trace.derived(find_intervals)
    every = np.arange(len(found.begins))
    columns = {
        "isr": found.isr.at(every),
        "elr": found.elr.at(every),
        "isr_before": found.isr.at(every - 1, found.begins),
        "elr_before": found.elr.at(every - 1, found.begins),
        "outage": pa.array(found.number("out"), mask=~found["out"]),
        "recovery": pa.array(found.number("recovering"), mask=~found["recovering"]),
        "leader_before": found.before("leader"),
        "epoch_before": found.before("epoch"),
        "leader_failed": found.leader_failed,
    }
    marks = {f"{name}_begins": found.episodes[name] for name in SHARES}
    return table(SILVER["intervals"], trace.cell, found.__getitem__, **columns, **marks)


def outages(trace: Trace) -> pa.Table:
    """One row per outage: whether it ended within the trial, whether it was a handover, and its last weight."""
    found = trace.derived(find_intervals)
    starts, lasts = spans(found, "out")
    failed, end_ms = np.cumsum(found.leader_failed), found["end_ms"][lasts]
    columns = {
        "end_ms": end_ms,
        "failover_ms": end_ms - found["start_ms"][starts],
        "ended": end_ms < trace.durations_ms[found["trial"][starts] - trace.first],
        "handover": failed[lasts] == failed[starts] - found.leader_failed[starts],
        "weight": found["weight"][lasts],
    }
    return table(SILVER["outages"], trace.cell, lambda name: found[name][starts], **columns)


def spans(found: Intervals, episode: str) -> tuple[Values, Values]:
    """The first and the last interval of each episode."""
    holds = found[episode]
    starts = np.flatnonzero(found.episodes[episode])
    following = np.append(found.begins[1:] | ~holds[1:], True) if len(holds) else holds
    return starts, np.flatnonzero(holds & following)


def losses(trace: Trace) -> pa.Table:
    """One row per loss event: time_ms, the number of acknowledged records lost, and the weight of the event."""
    rows = trace.rows.of_kinds(Loss)
    return table(SILVER["losses"], trace.cell, rows.__getitem__, records=rows["value"])


def measured(trace: Trace) -> pa.Table:
    """One row per time or rate that clients and operators would have measured; `kind` as in the trace."""
    rows = trace.rows.of_kinds(*MEASURED)
    return table(SILVER["measured"], trace.cell, rows.__getitem__, kind=rows.text("kind"))
