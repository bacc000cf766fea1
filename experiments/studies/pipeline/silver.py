"""Silver: what happened in the trials of a batch, as tables: pure functions from :class:`Trace`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa

from experiments.studies.pipeline.rows import SHARES, Intervals, Texts, Trace, TraceRows, Values
from experiments.studies.pipeline.schemas import SILVER, table
from experiments.studies.trace.kinds import MEASURED, Attributed, HwRegression, Loss, Recovery, Start, UncleanRecovery
from experiments.studies.trace.metrics import FRACTIONS

T = TypeVar("T")
MINUTE_MS = 60_000
DECIDED_MS = MINUTE_MS
"""A recovery is decided at most this long before its leader is committed."""


def intervals(trace: Trace) -> pa.Table:
    """One row per partition and interval of constant state, with the columns of `schemas.SILVER["intervals"]`."""
    found = trace.intervals
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
    """One row per outage: whether it ended within the trial, whether it was a handover, and its last weight, for
    each partition that it stands for."""
    found = trace.intervals
    starts, lasts = found.spans("out")
    failed, end_ms = np.cumsum(found.leader_failed), found["end_ms"][lasts]
    columns = {
        "end_ms": end_ms,
        "failover_ms": end_ms - found["start_ms"][starts],
        "ended": end_ms < trace.durations_ms[found["trial"][starts] - trace.first],
        "handover": failed[lasts] == failed[starts] - found.leader_failed[starts],
        "weight": found["weight"][lasts] * trace.counts[found["partition"][starts]],
    }
    return table(SILVER["outages"], trace.cell, lambda name: found[name][starts], **columns)


def losses(trace: Trace) -> pa.Table:
    """One row per loss event: time_ms, the number of acknowledged records lost, and the weight of the event."""
    rows = trace.rows.of_kinds(Loss)
    return table(SILVER["losses"], trace.cell, rows.__getitem__, records=rows["value"])


def measured(trace: Trace) -> pa.Table:
    """One row per time or rate that clients and operators would have measured; `kind` as in the trace."""
    rows = trace.rows.of_kinds(*MEASURED)
    return table(SILVER["measured"], trace.cell, rows.__getitem__, kind=rows.text("kind"))


def reasons(trace: Trace) -> pa.Table:
    """One row per trial, metric, reason and causes: losses or outages that begin, their weights times the
    partitions that each stands for, and weighted partition-minutes.
    Sums are of whole numbers where weights are equal, and in the order of the weights otherwise."""
    rows = trace.rows.of_kinds(Attributed)
    texts = [rows.text(name).to_pylist() for name in ("detail", "why", "cause")]
    sums = defaultdict[tuple[int, str, str, str], defaultdict[float, list[int]]](lambda: defaultdict(lambda: [0, 0, 0]))
    numbers = (rows[name].tolist() for name in ("trial", "weight", "epoch", "value"))
    copies = trace.counts[rows["partition"]].tolist()
    for trial, weight, events, amount, count, metric, why, causes in zip(*numbers, copies, *texts, strict=True):
        part = sums[trial, metric, why, causes][weight]
        part[0] += events
        part[1] += events * count
        part[2] += amount * count if metric in FRACTIONS else 0
    keys = sorted(sums)
    parts = [sorted(sums[key].items()) for key in keys]
    columns = {
        "trial": np.array([key[0] for key in keys], np.int64),
        "metric": pa.array([key[1] for key in keys], pa.string()),
        "reason": pa.array([key[2] for key in keys], pa.string()),
        "causes": pa.array([key[3] for key in keys], pa.string()),
        "events": np.array([sum(events for _, (events, _, _) in part) for part in parts], np.int64),
        "weight": np.array([sum(weight * size for weight, (_, size, _) in part) for part in parts], float),
        "minutes": np.array([sum(weight * ms for weight, (*_, ms) in part) / MINUTE_MS for part in parts], float),
    }
    return table(SILVER["reasons"], trace.cell, columns.__getitem__)


def _members(text: str) -> list[str]:
    """The broker ids in a text of ids joined by commas."""
    return [member for member in text.split(",") if member]


def _of_pairs(first: Values, second: Values, of: Callable[[int, int], T]) -> tuple[list[T], Values]:
    """A function of two whole numbers, computed once for each pair: the results, and the result of each row."""
    span = int(second.max(initial=0)) + 1
    pairs, which = np.unique(first.astype(np.int64) * span + second, return_inverse=True)
    return [of(pair // span, pair % span) for pair in pairs.tolist()], which


def elections(trace: Trace) -> pa.Table:
    """One row per leader in a new leader epoch. `reason`: `isr` if it was in the ISR, `elr` if in the ELR, otherwise
    `unclean`."""
    found = trace.intervals
    rows = np.flatnonzero((found["leader"] >= 0) & ~found.begins & (np.diff(found["epoch"], prepend=0) > 0))
    leader_before = found["leader"][rows - 1]

    def was_in(members: Texts) -> Values:
        results, which = _of_pairs(
            members.codes[rows - 1],
            found["leader"][rows],
            lambda code, broker: str(broker) in _members(members.distinct[code]),
        )
        return np.array(results, bool)[which]

    codes = np.where(was_in(found.isr), 2, was_in(found.elr).astype(int))
    columns = {
        "time_ms": found["start_ms"][rows],
        "leader_before": leader_before,
        "reason": pa.array(["unclean", "elr", "isr"]).take(pa.array(codes)),
        "handover": (leader_before >= 0) & ~found.leader_failed[rows],
        "isr": found.isr.at(rows),
        "isr_before": found.isr.at(rows - 1),
        "elr_before": found.elr.at(rows - 1),
    }
    return table(SILVER["elections"], trace.cell, lambda name: found[name][rows], **columns)


def isr_changes(trace: Trace) -> pa.Table:
    """One row per change of ISR or ELR."""
    found = trace.intervals
    rows, joined, left, which = _exchanged(found)
    columns = {
        "time_ms": found["start_ms"][rows],
        "isr_before": found.isr.at(rows - 1),
        "isr": found.isr.at(rows),
        "elr_before": found.elr.at(rows - 1),
        "elr": found.elr.at(rows),
        "joined": pa.array(joined, pa.list_(pa.string())).take(pa.array(which)),
        "left": pa.array(left, pa.list_(pa.string())).take(pa.array(which)),
    }
    return table(SILVER["isr_changes"], trace.cell, lambda name: found[name][rows], **columns)


def _exchanged(found: Intervals) -> tuple[Values, list[list[str]], list[list[str]], Values]:
    """The intervals whose ISR or ELR is not that of the interval before; who joined and who left the ISR: for each
    change that occurs, and which one each of these intervals has."""
    differ = (np.diff(found.isr.codes, prepend=0) != 0) | (np.diff(found.elr.codes, prepend=0) != 0)
    rows = np.flatnonzero(~found.begins & differ)
    members = [_members(text) for text in found.isr.distinct]
    pairs, which = _of_pairs(
        found.isr.codes[rows - 1], found.isr.codes[rows], lambda before, now: (members[before], members[now])
    )
    joined = [[member for member in now if member not in before] for before, now in pairs]
    return rows, joined, [[member for member in before if member not in now] for before, now in pairs], which


def recoveries(trace: Trace) -> pa.Table:
    """One row per unclean recovery, with the answers by which the leader was chosen where the generation asks for them;
    `recovered_ms` is null where the trial ended before."""
    found, begun = trace.intervals, trace.rows.of_kinds(UncleanRecovery)
    starts, lasts = found.spans("recovering")
    started = zip(*(found[name][starts].tolist() for name in ("trial", "partition", "start_ms")), strict=True)
    ends = dict(zip(started, found["end_ms"][lasts].tolist(), strict=True))
    decided = trace.rows.of_kinds(Recovery)
    answers = defaultdict[tuple[int, int, int], list[tuple[int, str]]](list)
    for (trial, partition, time_ms, leader), detail in zip(_keys(decided), decided.text("detail"), strict=True):
        answers[trial, partition, leader].append((time_ms, detail.as_py()))
    recovered: list[int | None] = []
    given: list[str | None] = []
    for trial, partition, time_ms, leader in _keys(begun):
        end_ms = ends.get((trial, partition, time_ms), time_ms)
        recovered.append(end_ms if end_ms < trace.durations_ms[trial - trace.first] else None)
        possible = [each for each in answers[trial, partition, leader] if 0 <= time_ms - each[0] <= DECIDED_MS]
        given.append(max(possible)[1] if possible else None)
    columns = {
        "leader": begun["node"],
        "recovered_ms": pa.array(recovered, pa.int64()),
        "answers": pa.array(given, pa.string()),
    }
    return table(SILVER["recoveries"], trace.cell, begun.__getitem__, **columns)


def _keys(rows: TraceRows) -> list[tuple[int, int, int, int]]:
    """Trial, partition, time and node of each row."""
    return list(zip(*(rows[name].tolist() for name in ("trial", "partition", "time_ms", "node")), strict=True))


def catch_ups(trace: Trace) -> pa.Table:
    """One row per start of a broker's process and partition whose ISR it joined afterwards."""
    found, starts = trace.intervals, trace.rows.of_kinds(Start)
    changed, joined, _, which = _exchanged(found)
    counts = np.array([len(members) for members in joined], int)[which]
    rows = np.repeat(changed, counts)
    broker = np.array([int(each) for members in (joined[k] for k in which) for each in members], np.int64)
    start_ms, known = _last_starts(starts, found["trial"][rows], broker, found["start_ms"][rows])
    rows, broker, start_ms = rows[known], broker[known], start_ms[known]
    trial, partition, at_ms = (found[name][rows] for name in ("trial", "partition", "start_ms"))
    order = np.lexsort((at_ms, start_ms, broker, partition, trial))
    keys = np.stack([trial, partition, broker, start_ms])[:, order]
    order = order[(np.diff(keys, axis=1, prepend=-1) != 0).any(axis=0)]
    columns = {"broker": broker[order], "start_ms": start_ms[order], "in_sync_ms": at_ms[order]}
    return table(SILVER["catch_ups"], trace.cell, lambda name: found[name][rows[order]], **columns)


def _last_starts(starts: TraceRows, trial: Values, broker: Values, at_ms: Values) -> tuple[Values, Values]:
    """For each broker of a trial at a time, when it was last started by then, and whether it was."""
    trials = np.concatenate([starts["trial"], trial])
    brokers = np.concatenate([starts["node"], broker])
    times = np.concatenate([starts["time_ms"], at_ms])
    order = np.lexsort((np.arange(len(times)) >= len(starts), times, brokers, trials))
    last = np.maximum.accumulate(np.where(order < len(starts), np.arange(len(order)), -1))
    start, present = order[last], last >= 0
    same = present & (trials[start] == trials[order]) & (brokers[start] == brokers[order])
    start_ms, known = np.empty(len(order), np.int64), np.empty(len(order), bool)
    start_ms[order], known[order] = times[start], same
    return start_ms[len(starts) :], known[len(starts) :]


def regressions(trace: Trace) -> pa.Table:
    """One row per new leader whose log ends below what consumers could read."""
    rows = trace.rows.of_kinds(HwRegression)
    return table(SILVER["regressions"], trace.cell, rows.__getitem__, leader=rows["node"])
