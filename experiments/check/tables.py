"""Compact tables for the check of histories: records, sends and logs as columns of numbers.

A history has millions of sends and a log millions of records, so there is no object for each. A log is kept as *runs*:
records of one send that follow each other in both. Numbers of sends, and offsets, nearly always rise in the order of
the operations, so a row is found by bisection in an array; only sends out of order need a dict.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from protocol.ids import Offset


class Record(NamedTuple):
    """The name of a record: the send that it belongs to, and its place in it."""

    send: int
    place: int

    def __str__(self) -> str:
        return f"{self.send}/{self.place}"


class RecordRange(NamedTuple):
    """Records `first .. first + size - 1` of a send, at offsets from `offset` on, appended in `leader_epoch`."""

    offset: Offset
    leader_epoch: int
    send: int
    first: int
    size: int

    def records(self) -> Iterator[tuple[Offset, Record]]:
        for index in range(self.size):
            yield self.offset + index, Record(self.send, self.first + index)


class SendTable:
    """Sends in the order in which they were invoked, a row each; `groups` is a number of the caller's."""

    def __init__(self) -> None:
        self.numbers = array("q")
        self.groups = array("l")
        self.producers = array("q")
        self.sizes = array("q")
        self.idempotent = array("b")
        self._open = array("q")
        self._rows: dict[int, int] | None = None

    def add(self, send: int, group: int, producer: int, size: int, idempotent: bool) -> None:
        """Adds a send. ValueError where it was added before."""
        if self.numbers and send <= self.numbers[-1]:
            if self.row(send) is not None:
                raise ValueError(f"send {send} was invoked twice")
            if self._rows is None:
                self._rows = {number: row for row, number in enumerate(self.numbers)}
        if self._rows is not None:
            self._rows[send] = len(self.numbers)
        self.numbers.append(send)
        self.groups.append(group)
        self.producers.append(producer)
        self.sizes.append(size)
        self.idempotent.append(idempotent)
        self._open.append(size)

    def row(self, send: int) -> int | None:
        """The row of a send, None where it was not invoked."""
        if self._rows is not None:
            return self._rows.get(send)
        row = bisect_left(self.numbers, send)
        return row if row < len(self.numbers) and self.numbers[row] == send else None

    def end(self, send: int, size: int) -> int:
        """Counts `size` records of a send as answered; returns its row. ValueError where it was not invoked."""
        row = self.row(send)
        if row is None:
            raise ValueError(f"send {send} ended and was not invoked")
        self._open[row] -= size
        return row

    def unanswered(self) -> Iterator[tuple[int, int]]:
        """(row, number of records without an answer) for each send that has any."""
        return ((row, left) for row, left in enumerate(self._open) if left)


class RunLog:
    """The records of a log by offset, and their offsets by record."""

    def __init__(self, runs: Iterable[RecordRange] = ()) -> None:
        self._offsets = array("q")
        self._sends = array("q")
        self._firsts = array("q")
        self._sizes = array("q")
        self._order: array[int] | None = None
        for run in runs:
            if not self.take(run):
                raise ValueError(f"a run at offset {run.offset} lies before the end of the log")

    def start_offset(self, of_empty: Offset) -> Offset:
        """The offset of the first record; `of_empty` where there is none."""
        return self._offsets[0] if self._offsets else of_empty

    def end_offset(self, of_empty: Offset) -> Offset:
        """The offset behind the last record; `of_empty` where there is none."""
        return self._offsets[-1] + self._sizes[-1] if self._offsets else of_empty

    def take(self, run: RecordRange) -> bool:
        """Appends a run; returns False and does nothing where it begins before the end."""
        offset, _, send, first, size = run
        if self._offsets:
            end = self._offsets[-1] + self._sizes[-1]
            if offset < end:
                return False
            if offset == end and send == self._sends[-1] and first == self._firsts[-1] + self._sizes[-1]:
                self._sizes[-1] += size
                self._order = None
                return True
        self._offsets.append(offset)
        self._sends.append(send)
        self._firsts.append(first)
        self._sizes.append(size)
        self._order = None
        return True

    def runs(self) -> Iterator[RecordRange]:
        """The runs in order of offsets, adjacent ones merged; their leader epoch is not kept."""
        for offset, send, first, size in zip(self._offsets, self._sends, self._firsts, self._sizes, strict=True):
            yield RecordRange(offset, 0, send, first, size)

    def holds(self, run: RecordRange) -> bool:
        """Whether these records are at these offsets, in one run."""
        offset, _, send, first, size = run
        row = bisect_right(self._offsets, offset) - 1
        if row < 0 or self._sends[row] != send:
            return False
        into = offset - self._offsets[row]
        return self._firsts[row] + into == first and into + size <= self._sizes[row]

    def at(self, offset: Offset) -> Record | None:
        """The record at an offset."""
        row = bisect_right(self._offsets, offset) - 1
        into = offset - self._offsets[row] if row >= 0 else 0
        if row < 0 or into >= self._sizes[row]:
            return None
        return Record(self._sends[row], self._firsts[row] + into)

    def places(self, record: Record) -> tuple[Offset, ...]:
        """The offsets at which a record is, in order."""
        send, place = record
        order = self._by_send()
        found = []
        for index in range(bisect_left(order, send, key=self._sends.__getitem__), len(order)):
            row = order[index]
            if self._sends[row] != send:
                break
            into = place - self._firsts[row]
            if 0 <= into < self._sizes[row]:
                found.append(self._offsets[row] + into)
        return tuple(sorted(found))

    def repeated(self) -> dict[Record, tuple[Offset, ...]]:
        """Records that the log holds more than once, with their offsets, in order of the first offset."""
        found: dict[Record, tuple[Offset, ...]] = {}
        before, covered = -1, 0
        for row in self._by_send():
            send, first, size = self._sends[row], self._firsts[row], self._sizes[row]
            if send != before:
                before, covered = send, first
            for place in range(first, min(first + size, covered)):
                record = Record(send, place)
                if record not in found:
                    found[record] = self.places(record)
            covered = max(covered, first + size)
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _by_send(self) -> array[int]:
        """Rows by send and first place."""
        if self._order is None:
            keys = [send << 32 | first for send, first in zip(self._sends, self._firsts, strict=True)]
            self._order = array("q", sorted(range(len(keys)), key=keys.__getitem__))
        return self._order


class Spans:
    """A set of offsets, kept as spans that do not touch."""

    def __init__(self) -> None:
        self._begins: list[Offset] = []
        self._ends: list[Offset] = []

    def add(self, begin: Offset, end: Offset) -> None:
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if last == first + 1 and self._begins[first] <= begin and end <= self._ends[first]:
            return
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def __contains__(self, offset: Offset) -> bool:
        row = bisect_right(self._begins, offset) - 1
        return row >= 0 and offset < self._ends[row]
