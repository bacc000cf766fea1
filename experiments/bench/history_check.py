"""`isray bench history`: the speed of the history check (`experiments.check.history`), and the growth of its time and
memory; docs/benchmarks.md describes the history and the columns.

Each size is checked in a process of its own, so that its memory can be measured. The operations are generated during
the check, as they would be read from a file; the generation with a test of each operation's type is the baseline.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from time import process_time

from experiments.bench.report import BenchReport, growth
from experiments.check.history import Ended, FinalPartition, Invoked, Operation, RecordRange, Seen, judge
from experiments.support.build import PACKAGES_FOLDER
from protocol.ids import TopicPartition

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
PARTITIONS = 4
RECORDS_PER_SEND = 10
IN_FLIGHT = 5
SENDS_PER_ROUND = 40
READERS = 2
_PER_ROUND = 2 * SENDS_PER_ROUND + READERS * SENDS_PER_ROUND // 2


@dataclass(frozen=True, slots=True)
class CheckFigures:
    """The figures of one size: seconds of processor time, and the growth of the process's peak memory in bytes."""

    operations: int
    records: int
    judge_s: float
    making_s: float
    memory_bytes: int

    @property
    def operations_per_second(self) -> int:
        return round(self.operations / self.judge_s)

    def document(self) -> dict[str, object]:
        return asdict(self) | {
            "operations_per_second": self.operations_per_second,
            "memory_bytes_per_operation": round(self.memory_bytes / self.operations, 1),
            "ratio": round(self.judge_s / self.making_s, 2),
        }

    def texts(self) -> list[str]:
        memory = [f"{self.memory_bytes / 1e6:.0f}", f"{self.memory_bytes / self.operations:.0f}"]
        judged = [f"{self.judge_s:.2f}", f"{self.operations_per_second:,}", f"{self.making_s:.2f}"]
        return [f"{self.operations:,}", f"{self.records:,}", *judged, *memory]


class SyntheticHistory:
    """A correct history of about `operations` operations, generated again by each iteration."""

    def __init__(self, operations: int) -> None:
        self._rounds = max(1, operations // _PER_ROUND)
        self.operations = self._rounds * _PER_ROUND
        self.records = self._rounds * SENDS_PER_ROUND * RECORDS_PER_SEND

    def __iter__(self) -> Iterator[Operation]:
        ends = [0] * PARTITIONS
        for number in range(self._rounds):
            at, first = number % PARTITIONS, number * SENDS_PER_ROUND
            partition, runs = TopicPartition("t", at), self._runs(first, ends[at])
            for place in range(SENDS_PER_ROUND + IN_FLIGHT):
                if place < SENDS_PER_ROUND:
                    yield Invoked(first + place, 0, partition, RECORDS_PER_SEND)
                if place >= IN_FLIGHT:
                    run = runs[place - IN_FLIGHT]
                    yield Ended(run.send, 0, RECORDS_PER_SEND, "acknowledged", run.offset)
            ends[at] += SENDS_PER_ROUND * RECORDS_PER_SEND
            for reader in range(READERS):
                for place in range(0, SENDS_PER_ROUND, 2):
                    yield Seen(reader, partition, tuple(runs[place : place + 2]), ends[at])

    def _runs(self, first: int, offset: int) -> list[RecordRange]:
        size = RECORDS_PER_SEND
        return [RecordRange(offset + size * place, 0, first + place, 0, size) for place in range(SENDS_PER_ROUND)]

    def finals(self) -> list[FinalPartition]:
        return [FinalPartition(TopicPartition("t", at), 0, {0: _Log(self, at)}) for at in range(PARTITIONS)]

    def log(self, at: int) -> Iterator[RecordRange]:
        """The runs of the partition with this index."""
        for turn, number in enumerate(range(at, self._rounds, PARTITIONS)):
            yield from self._runs(number * SENDS_PER_ROUND, turn * SENDS_PER_ROUND * RECORDS_PER_SEND)


class _Log:
    """The log of a partition, generated again by each iteration."""

    def __init__(self, history: SyntheticHistory, at: int) -> None:
        self._history, self._at = history, at

    def __iter__(self) -> Iterator[RecordRange]:
        return self._history.log(self._at)


def run(sizes: Sequence[int] = SIZES) -> BenchReport:
    """Measures every size, in ascending order."""
    rows = [_measure_in_process(size) for size in sorted(set(sizes))]
    exponent = growth([row.operations for row in rows], [row.judge_s for row in rows])
    growth_note = "" if exponent is None else f"time grows with size ** {exponent}; "
    return BenchReport(
        title="checking a history that has no violation",
        document={
            "partitions": PARTITIONS,
            "records_per_send": RECORDS_PER_SEND,
            "sizes": [row.document() for row in rows],
            "growth_exponent": exponent,
        },
        columns=("operations", "records", "judge s", "operations/s", "making s", "memory MB", "bytes/operation"),
        rows=[row.texts() for row in rows],
        notes=[growth_note + f"{rows[-1].records:,} records in the largest history"],
    )


def _measure_in_process(size: int) -> CheckFigures:
    code = f"from experiments.bench.history_check import print_measurement; print_measurement({size})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=PACKAGES_FOLDER, text=True, check=True)
    return CheckFigures(**json.loads(done.stdout))


def measure(size: int) -> CheckFigures:
    history = SyntheticHistory(size)
    before, began = _peak_bytes(), process_time()
    found = judge(history, history.finals())
    judged, memory = process_time(), _peak_bytes() - before
    assert not found, f"a violation in a correct history: {found[0].text}"
    making_s = max(_making_s(history), 1e-6)
    return CheckFigures(history.operations, history.records, max(judged - began - making_s, 1e-6), making_s, memory)


def _making_s(history: SyntheticHistory) -> float:
    began = process_time()
    for at in range(PARTITIONS):
        for _ in history.log(at):
            pass
    for operation in history:
        isinstance(operation, Ended)
    return process_time() - began


def print_measurement(size: int) -> None:
    """The entry point of a measuring process: prints the row as JSON."""
    print(json.dumps(asdict(measure(size))))


def _peak_bytes() -> int:
    """The peak resident size of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
