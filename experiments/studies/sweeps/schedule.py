"""Which trials run next, and how many in one task: bookkeeping whose size is that of the batches, not of the trials.

A Ray task costs milliseconds to submit and to commit, so a batch should last seconds; a batch that lasts long delays
the end of the sweep and is lost as a whole with its worker. The time of a trial varies between cells by orders of
magnitude and is unknown before the first. So the first batches of a cell are small, and the following ones take
seconds (`task_s`) by the mean time of the cell's trials so far, but no more than an even share of what is left (guided
self-scheduling: Polychronopoulos and Kuck, IEEE Transactions on Computers 36, 1987). Batch boundaries therefore differ
between runs; trials do not.

A cell without `precision` has one target. With `precision`, a stopping rule looks at the values of the cell's first
trials whenever all trials up to the present target are complete, and returns the next target or the same one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from experiments.support.intervals import merged

TASK_S = 4.0
"""The least time that a batch should take."""
DRIVER_S = 0.005
"""The time that a batch may cost the driver, which submits its task and takes its result (about 2 ms, `isray
bench sweep`). So that it serves any number of workers, batches last this long times the number of workers."""
FIRST_BATCH_TRIALS = 4
LARGEST_BATCH_TRIALS = 10_000
LARGEST_BATCH_ROWS = 250_000
"""Rows of trace that a worker holds in memory at most, by the mean of the cell's trials so far."""
SMALLEST_SHARE = 16
"""An even share of what is left is no reason to make batches that last less than `task_s / SMALLEST_SHARE`."""

Values = NDArray[np.float64]
"""What each trial measured for the stopping rule, by the trial's number: one row per trial."""
StoppingRule = Callable[[Values], int]
"""The number of trials that a cell needs, from the values of its trials 0, 1, ..."""


@dataclass(slots=True)
class Cost:
    """What a cell's trials have cost so far: their number, the time of the workers, the rows of their traces."""

    trials: int = 0
    seconds: float = 0.0
    rows: int = 0

    def add(self, trials: int, seconds: float, rows: int) -> None:
        self.trials += trials
        self.seconds += seconds
        self.rows += rows


def task_s(workers: int) -> float:
    """The time that a batch should take on a cluster of that many CPUs, in seconds."""
    return max(TASK_S, DRIVER_S * workers)


def batch_size(cost: Cost, left: int, workers: int, first_batch: int = FIRST_BATCH_TRIALS) -> int:
    """The trials of the next batch of a cell with `left` trials to assign; `first_batch` while costs are unknown."""
    if not cost.trials:
        return first_batch
    by_time = task_s(workers) * cost.trials / max(cost.seconds, 1e-9)
    by_rows = LARGEST_BATCH_ROWS * cost.trials / max(cost.rows, 1)
    share = max(left / (2 * workers), by_time / SMALLEST_SHARE)
    return max(1, int(min(by_time, by_rows, share, LARGEST_BATCH_TRIALS)))


@dataclass(slots=True)
class CellWork:
    """The trials of one cell: complete, under way, or to be run. Parts are (first, stop), without `stop`. `rule` gives
    the target. `sequential`: whether it depends on the values, which are kept only then. `first_batch`: the trials of a
    batch while the cost of one is unknown."""

    rule: StoppingRule
    sequential: bool
    first_batch: int = FIRST_BATCH_TRIALS
    cost: Cost = field(default_factory=Cost)
    target: int = 0
    _done: list[tuple[int, int]] = field(default_factory=list)
    _gaps: deque[tuple[int, int]] = field(default_factory=deque)
    _values: list[tuple[int, Values]] = field(default_factory=list)
    _under_way: int = 0

    def begin(self, done: Sequence[tuple[int, int]], values: Sequence[tuple[int, Values]] = ()) -> None:
        """Sets the complete parts, in order and disjoint; if sequential, the values of each by its first trial."""
        self._done, self._values = merged(done), list(values)
        self._open_round()

    def take(self, workers: int) -> tuple[int, int] | None:
        """Assigns the next part; None if all trials of the round are assigned."""
        if not self._gaps:
            return None
        left = sum(stop - first for first, stop in self._gaps)
        first, stop = self._gaps.popleft()
        middle = min(stop, first + batch_size(self.cost, left, workers, self.first_batch))
        if middle < stop:
            self._gaps.appendleft((middle, stop))
        self._under_way += 1
        return first, middle

    def complete(self, first: int, stop: int, values: Values | None) -> None:
        """Records that an assigned part is complete; at the end of a round, the rule decides on the next."""
        self._under_way -= 1
        self._done = merged([*self._done, (first, stop)])
        if values is not None:
            self._values.append((first, values))
        if not self._gaps and not self._under_way and self.sequential:
            self._open_round()

    @property
    def finished(self) -> bool:
        """Whether the cell has all trials that it needs."""
        return not self._gaps and not self._under_way

    @property
    def trials(self) -> int:
        """The number of complete trials below the target."""
        return sum(min(stop, self.target) - min(first, self.target) for first, stop in self._done)

    @property
    def missing(self) -> int:
        """The number of trials below the target that are not complete."""
        return self.target - self.trials

    def _open_round(self) -> None:
        """Sets the target by the values of trials 0, 1, ... up to the first that is missing."""
        leading: list[Values] = []
        known = 0
        for first, values in sorted(self._values, key=lambda item: item[0]):
            if first == known:
                leading.append(values)
                known += len(values)
        self.target = self.rule(np.concatenate(leading) if leading else np.empty(0))
        self._gaps = deque(gaps(self._done, self.target))


def gaps(done: Sequence[tuple[int, int]], target: int) -> Iterator[tuple[int, int]]:
    """The parts of 0 to `target` that the parts `done`, in order, do not cover."""
    covered = 0
    for first, stop in [*done, (target, target)]:
        if covered < min(first, target):
            yield covered, min(first, target)
        covered = max(covered, stop)


class Schedule:
    """The work of all cells, which take turns."""

    def __init__(self, cells: Sequence[CellWork]) -> None:
        self.cells = cells
        self._turn = itertools.cycle(range(len(cells)))

    def take(self, workers: int, among: Collection[int] | None = None) -> tuple[int, int, int] | None:
        """Assigns the next part of the cells `among`, by default of all, as (index of the cell, first, stop); None
        while there is nothing to assign."""
        for index in itertools.islice(self._turn, len(self.cells)):
            if (among is None or index in among) and (part := self.cells[index].take(workers)):
                return index, *part
        return None

    @property
    def trials(self) -> int:
        """The number of complete trials that the study needs."""
        return sum(cell.trials for cell in self.cells)

    @property
    def target(self) -> int:
        """The number of trials that the study needs, as far as it is known."""
        return sum(cell.target for cell in self.cells)

    @property
    def finished(self) -> bool:
        return all(cell.finished for cell in self.cells)

    def left_s(self) -> list[float | None]:
        """By cell, the time that one core needs for its missing trials, as far as targets are known: by the mean time
        of the cell's own trials, or of all trials where it has none; None if this command has measured none."""
        costs = [cell.cost for cell in self.cells]
        trials, seconds = sum(cost.trials for cost in costs), sum(cost.seconds for cost in costs)
        found: list[float | None] = []
        for cell in self.cells:
            own, of = (cell.cost.seconds, cell.cost.trials) if cell.cost.trials else (seconds, trials)
            found.append(cell.missing * own / of if of else None if cell.missing else 0.0)
        return found
