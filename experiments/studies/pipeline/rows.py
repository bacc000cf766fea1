"""Bronze: the trace of one batch, as columns in memory.

A batch holds whole trials in their order (`sweeps/batches.py` checks it). So whatever follows from the rows of a trial
follows from one file: tasks share the batches, and no row is exchanged between them. Columns are read when they are
first used.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.studies.design.cluster import Cluster
from experiments.studies.sweeps.batches import file_names
from experiments.studies.sweeps.storage import Store
from experiments.studies.trace.kinds import End, Observation, State
from experiments.studies.trace.metrics import FRACTIONS
from experiments.studies.trace.schema import Values as Values
from experiments.studies.trials.batch import Batch

TEXTS = ("kind", "detail", "isr", "elr", "cause", "why")
SHARES = tuple(metric.column for metric in FRACTIONS.values())


class Texts(NamedTuple):
    """A column of texts: row i has the text `distinct[codes[i]]`."""

    codes: Values
    distinct: list[str]

    def at(self, rows: Values, missing: Values | None = None) -> pa.Array:
        """The texts of these rows; null where `missing`."""
        return pa.array(self.distinct, pa.string()).take(pa.array(self.codes[rows], mask=missing))


class TraceRows:
    """Rows of a trace: all rows of a batch, or the `chosen` ones."""

    def __init__(self, read: Callable[[str], pa.Array], chosen: Values | None = None) -> None:
        self._read, self._chosen = read, chosen
        self._columns: dict[str, Values] = {}

    @classmethod
    def of_file(cls, content: bytes) -> TraceRows:
        """All rows of a Parquet file."""
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=TEXTS)

        @cache
        def column(name: str) -> pa.Array:
            found = file.read([name]).column(0)
            return (found.dictionary_encode().unify_dictionaries() if name in TEXTS else found).combine_chunks()

        return cls(column)

    def __getitem__(self, name: str) -> Values:
        """A column of numbers; `weight`: the likelihood ratios."""
        if name == "weight":
            return np.exp(self["log_weight"])
        if name not in self._columns:
            values = self._read(name).to_numpy(zero_copy_only=False)
            self._columns[name] = values if self._chosen is None else values[self._chosen]
        return self._columns[name]

    def __len__(self) -> int:
        return len(self._read("trial")) if self._chosen is None else len(self._chosen)

    def texts(self, name: str) -> Texts:
        """A column of texts, as whole numbers that stand for the few distinct ones."""
        found = self._read(name)
        codes = found.indices.to_numpy()
        return Texts(codes if self._chosen is None else codes[self._chosen], found.dictionary.to_pylist())

    def text(self, name: str) -> pa.Array:
        """A column of texts, in full."""
        return self.texts(name).at(np.arange(len(self)))

    def of_kinds(self, *kinds: type[Observation]) -> TraceRows:
        """The rows of these kinds."""
        return self.where(self.are(*kinds))

    def are(self, *kinds: type[Observation]) -> Values:
        """Whether each row is of one of these kinds."""
        return self.have_text("kind", *(kind.KIND for kind in kinds))

    def at(self, positions: Values) -> TraceRows:
        """The rows at these positions."""
        return TraceRows(self._read, positions if self._chosen is None else self._chosen[positions])

    def where(self, mask: Values) -> TraceRows:
        """The rows for which `mask` is true."""
        return self.at(np.flatnonzero(mask))

    def have_text(self, name: str, *texts: str) -> Values:
        """Whether each row has one of these texts in the column."""
        column = self.texts(name)
        wanted: Values = np.isin(np.array(column.distinct, object), texts)
        return wanted[column.codes] if len(wanted) else np.zeros(len(column.codes), bool)


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

    def spans(self, episode: str) -> tuple[Values, Values]:
        """The first and the last interval of each episode."""
        holds = self[episode]
        starts = np.flatnonzero(self.episodes[episode])
        following = np.append(self.begins[1:] | ~holds[1:], True) if len(holds) else holds
        return starts, np.flatnonzero(holds & following)


def _find_intervals(trace: Trace) -> Intervals:
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


@dataclass(frozen=True)
class Trace:
    """A batch of one cell: `rows` of `trace/`, `trials` of `trials/`, the number of `partitions` in the trace, whether
    acks=all, and the `cluster` whose classes of partitions these are, if it is one."""

    cell: str
    partitions: int
    acks_all: bool
    rows: TraceRows
    trials: pa.Table
    cluster: Cluster | None = None

    @cached_property
    def counts(self) -> Values:
        """How many partitions each partition of the trace stands for."""
        return np.array((1,) * self.partitions if self.cluster is None else self.cluster.counts, np.int64)

    @cached_property
    def visible(self) -> Values:
        """Whether an acknowledged record of each partition is visible to consumers, as with acks=all."""
        if self.cluster is None:
            return np.full(self.partitions, self.acks_all)
        return np.array([each.acks == "all" for each in self.cluster.classes])

    @cached_property
    def intervals(self) -> Intervals:
        return _find_intervals(self)

    @cached_property
    def first(self) -> int:
        """The number of the first trial."""
        return int(self.trials["trial"][0].as_py())

    @cached_property
    def durations_ms(self) -> Values:
        """The lengths of the trials."""
        return np.asarray(self.trials["duration_ms"])

    def groups(self, trial: Values, partition: Values) -> Values:
        """A number for each partition of each trial, ascending by trial, then partition."""
        return (trial.astype(np.int64) - self.first) * self.partitions + partition

    def by_partition(self, *kinds: type[Observation]) -> tuple[TraceRows, Values]:
        """The rows of these kinds, by partition and in their order, and the numbers of their partitions."""
        rows = self.rows.of_kinds(*kinds)
        group = self.groups(rows["trial"], rows["partition"])
        if (np.diff(group) >= 0).all():
            return rows, group
        order = np.argsort(group, kind="stable")
        return rows.at(order), group[order]


def read_batch(store: Store, batch: Batch, partitions: int, acks_all: bool, cluster: Cluster | None = None) -> Trace:
    """The trace of a batch that was checked. Raises StorageFailed; FileNotFoundError if a file has gone since."""
    trace, trials = map(store.read, file_names(batch))
    if trace is None or trials is None:
        raise FileNotFoundError(store.place(file_names(batch)[0 if trace is None else 1]))
    rows = TraceRows.of_file(trace)
    return Trace(batch.cell, partitions, acks_all, rows, pq.read_table(pa.BufferReader(trials)), cluster)


def first_at_or_below(offsets: Values, begin: Values, end: Values, limits: Values) -> Values:
    """For each limit, the first position from `begin` up to, not including, `end` at which the offset is at or below
    it; -1 without one. Each round tests the next position of all that are left."""
    found = np.full(len(limits), -1)
    left = np.flatnonzero(begin < end)
    position = begin[left]
    while len(left):
        hit = offsets[position] <= limits[left]
        found[left[hit]] = position[hit]
        position = position + 1
        open_ = ~hit & (position < end[left])
        left, position = left[open_], position[open_]
    return found
