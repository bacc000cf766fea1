"""Sweeps in the command's process: which ones stay there, and the estimates of the time that is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.sweeps.identity import cell_digests
from experiments.studies.sweeps.local import LITTLE_S, TRY_S, is_little, is_promising, run_here
from experiments.studies.sweeps.output import StudyRecord, claim
from experiments.studies.sweeps.remaining import remaining
from experiments.studies.sweeps.schedule import CellWork, Schedule
from experiments.studies.sweeps.storage import Folder
from experiments.studies.sweeps.sweep import job_of, needed_batches
from tests.spark.trial_helpers import fake_trial


def begun(target: int, trials: int = 0, seconds: float = 0.0) -> CellWork:
    work = CellWork(lambda values: target, sequential=False)
    work.begin([(0, trials)] if trials else [])
    work.cost.add(trials, seconds, 0)
    return work


def test_time_left_is_by_the_trials_of_the_cell_and_of_all_where_it_has_none() -> None:
    """10 trials took 20 s, 2 took 1 s: the first cell's 20 others take 2 s each, the second's 8 take 0.5 s each, the
    third's 12 the mean of all, 21 s / 12."""
    schedule = Schedule([begun(30, 10, 20.0), begun(10, 2, 1.0), begun(12)])
    assert schedule.left_s() == pytest.approx([40.0, 4.0, 21.0])
    assert Schedule([begun(5), begun(0)]).left_s() == [None, 0.0]


def test_time_left_names_the_slowest_cell_and_counts_no_more_workers_than_trials() -> None:
    cells = [("min ISR 1", 10, 30), ("min ISR 2", 2, 10), ("min ISR 3", 4, 4)]
    assert remaining(cells, [100.0, 4.0, 0.0], 4) == (26.0, "min ISR 1 (10 of 30, 2 min of one core left)")
    assert remaining([("a", 9, 10), ("b", 1, 1)], [60.0, 0.0], 8) == (60.0, "a (9 of 10, 60 s of one core left)")
    assert remaining(cells, [None, None, None], 4) == (None, "")
    assert remaining([("a", 1, 1)], [0.0], 4) == (None, "")


@pytest.mark.parametrize(
    ("given", "promising"),
    [
        ({"trials": 20}, True),
        ({"trials": 21}, False),
        ({"trials": 5, "sweep": {"min_insync_replicas": [1, 2], "acks": ["all", 1]}}, True),
        ({"trials": 7, "base": {"partitions": 3}}, False),
        ({"trials": 1, "duration": "21y"}, False),
        ({"trials": 1, "engine": "ray", "duration": "1h"}, False),
    ],
)
def test_the_virtual_time_of_all_trials_says_whether_spark_starts_before_them(
    given: dict[str, object], promising: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial simulates its duration once for each partition: 20 years in all at most."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    whole = {"name": "s", "seed": 1, "duration": "1y"} | given
    study = study_from(whole, "s")
    assert is_promising(study) is promising
    assert not is_promising(study, "10.0.0.1:6379")


def test_a_sweep_is_little_by_all_the_time_that_it_takes() -> None:
    assert is_little(0.0, [None, None])
    assert is_little(LITTLE_S - 3.0, [1.0, 2.0])
    assert not is_little(LITTLE_S - 3.0, [1.0, 2.1])


def clock(step_s: float) -> Callable[[], float]:
    """A clock that goes on by a step whenever it is read."""
    times = [0.0]

    def now_s() -> float:
        times[0] += step_s
        return times[0]

    return now_s


@pytest.mark.parametrize(("step_s", "runs_all"), [(0.01, True), (LITTLE_S + 1.0, False)])
def test_trials_run_here_until_they_take_long(tmp_path: Path, step_s: float, runs_all: bool) -> None:
    """The trials themselves take no time: what decides is the clock, and it is read once per batch."""
    assert LITTLE_S > TRY_S
    raw = {"name": "s", "seed": 3, "trials": 6, "duration": "1h", "sweep": {"min_insync_replicas": [1, 2]}}
    study, store = study_from(raw, "s.yaml"), Folder(tmp_path)
    cells = cell_digests(study, "0")
    job = job_of(study, store, fake_trial, claim(store, study, cells))
    _, schedule = needed_batches(StudyRecord(study, [], cells), store)
    calls: list[int] = []
    ran = list(run_here(study, cells, schedule, job, lambda: calls.append(len(calls)), clock(step_s)))
    assert schedule.finished == runs_all
    assert calls == ([0] if runs_all else [])
    assert sum(batch.stop - batch.first for _, batch, _ in ran) == (12 if runs_all else 4)
    batches, again = needed_batches(StudyRecord(study, [], cells), store)
    assert batches == sorted(batch for _, batch, _ in ran)
    assert again.trials == schedule.trials
