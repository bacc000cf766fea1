"""Bronze: the trace of one batch, as columns in memory.

A batch holds whole trials in their order (`sweeps/batches.py` checks it). So whatever follows from the rows of a trial
follows from one file: tasks share the batches, and no row is exchanged between them. Columns are read when they are
first used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.studies.sweeps.batches import file_names
from experiments.studies.sweeps.storage import Store
from experiments.studies.trace.kinds import Observation
from experiments.studies.trace.schema import Values as Values
from experiments.studies.trials.batch import Batch

T = TypeVar("T")
TEXTS = ("kind", "detail", "isr", "elr")


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


@dataclass(frozen=True)
class Trace:
    """A batch of one cell: `rows` of `trace/`, `trials` of `trials/`, and the cell's `partitions` and whether
    acks=all."""

    cell: str
    partitions: int
    acks_all: bool
    rows: TraceRows
    trials: pa.Table
    _derived: dict[Callable[[Trace], object], object] = field(default_factory=dict, repr=False)

    def derived(self, derive: Callable[[Trace], T]) -> T:
        """What a function makes of this trace; computed when it is first asked for, as several tables need it."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return cast("T", self._derived[derive])

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


def read_batch(store: Store, batch: Batch, partitions: int, acks_all: bool) -> Trace:
    """The trace of a batch that was checked. Raises StorageFailed; FileNotFoundError if a file has gone since."""
    trace, trials = map(store.read, file_names(batch))
    if trace is None or trials is None:
        raise FileNotFoundError(store.place(file_names(batch)[0 if trace is None else 1]))
    rows = TraceRows.of_file(trace)
    return Trace(batch.cell, partitions, acks_all, rows, pq.read_table(pa.BufferReader(trials)))


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
