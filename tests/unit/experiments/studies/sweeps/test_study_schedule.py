"""What runs next: every trial once, batches of seconds, and bookkeeping that does not grow with the trials."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.studies.sweeps.schedule import (
    FIRST_BATCH_TRIALS,
    LARGEST_BATCH_ROWS,
    LARGEST_BATCH_TRIALS,
    TASK_S,
    CellWork,
    Cost,
    Schedule,
    Values,
    batch_size,
)

WORKERS = 2


def fixed(trials: int) -> CellWork:
    return CellWork(lambda values: trials, sequential=False)


def begun(work: CellWork) -> CellWork:
    work.begin([])
    return work


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20))), st.integers(1, 100), st.floats(1e-3, 10))
def test_each_missing_trial_runs_once(parts: list[tuple[int, int]], trials: int, trial_s: float) -> None:
    taken: set[int] = set()
    done: list[tuple[int, int]] = []
    for first, length in parts:
        numbers = set(range(first, first + length))
        if not numbers & taken:
            taken |= numbers
            done.append((first, first + length))
    work = fixed(trials)
    work.begin(sorted(done))
    ran: list[int] = []
    while part := work.take(WORKERS):
        ran += range(*part)
        work.cost.add(part[1] - part[0], trial_s * (part[1] - part[0]), 10)
        work.complete(*part, None)
    assert sorted(ran) == sorted(set(range(trials)) - taken)
    assert work.finished
    assert work.trials == work.target == trials


@pytest.mark.parametrize(
    ("cost", "left", "expected"),
    [
        (Cost(), 1_000, FIRST_BATCH_TRIALS),
        (Cost(10, 0.1, 100), 1_000_000, TASK_S / 0.01),
        (Cost(10, 100.0, 100), 1_000_000, 1),
        (Cost(10, 0.1, 100), 400, 100),
        (Cost(10, 0.1, 100), 4, 25),
        (Cost(10, 1e-6, 0), 1_000_000, LARGEST_BATCH_TRIALS),
        (Cost(10, 0.001, 10_000), 1_000_000, LARGEST_BATCH_ROWS / 1_000),
    ],
)
def test_batches_last_seconds_and_end_together(cost: Cost, left: int, expected: float) -> None:
    assert batch_size(cost, left, WORKERS) == expected


def test_cells_of_one_engine_are_taken_without_the_others_and_begin_with_batches_of_their_own_size() -> None:
    schedule = Schedule([begun(fixed(20)), begun(CellWork(lambda values: 3, sequential=False, first_batch=1))])
    assert [schedule.take(WORKERS, {1}) for _ in range(4)] == [(1, 0, 1), (1, 1, 2), (1, 2, 3), None]
    assert schedule.take(WORKERS, {0}) == (0, 0, FIRST_BATCH_TRIALS)


def test_cells_take_turns() -> None:
    schedule = Schedule([begun(fixed(20)), begun(fixed(4)), begun(fixed(20))])
    assert [part[0] for _ in range(5) if (part := schedule.take(WORKERS))] == [0, 1, 2, 0, 2]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 30), max_size=20), st.randoms())
def test_stopping_rule_sees_the_first_trials_in_order_whatever_ended_first(sizes: list[int], random: object) -> None:
    targets = [64, 96, 144, 200]
    seen: list[Values] = []

    def rule(values: Values) -> int:
        seen.append(values)
        return next((target for target in targets if len(values) < target), targets[-1])

    work = CellWork(rule, sequential=True)
    work.begin([(10, 20)], [(10, np.arange(10.0, 20.0))])
    under_way: list[tuple[int, int]] = []
    while not work.finished:
        while part := work.take(WORKERS):
            under_way.append(part)
            size = sizes[len(under_way) % len(sizes)] if sizes else 5
            work.cost = Cost(size, TASK_S, 1)
        random.shuffle(under_way)  # type: ignore[attr-defined]
        first, stop = under_way.pop()
        work.complete(first, stop, np.arange(float(first), float(stop)))
    assert [len(values) for values in seen] == [0, *targets]
    assert all(np.array_equal(values, np.arange(float(len(values)))) for values in seen)


def test_bookkeeping_of_a_million_trials_is_that_of_their_batches() -> None:
    trials, cells = 500_000, 2
    tracemalloc.start()
    try:
        schedule = Schedule([begun(fixed(trials)) for _ in range(cells)])
        batches = 0
        while part := schedule.take(WORKERS):
            index, first, stop = part
            schedule.cells[index].cost.add(stop - first, 0.01 * (stop - first), 20 * (stop - first))
            schedule.cells[index].complete(first, stop, None)
            batches += 1
        assert schedule.finished
        assert schedule.trials == trials * cells
        assert 2 * trials * 0.01 / TASK_S <= batches < 4_000
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
