"""A branching timeline follows another one to the branch, and is drawn given the state there afterwards."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst, RollingRestart
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.failures.sources import Branch
from experiments.studies.failures.timeline import (
    BranchingTimeline,
    DrawnTimeline,
    Event,
    Timeline,
    events_until,
    longer_than_ms,
    warm_up_ms,
)

CELL = CellParameters(
    broker_mttf=Distribution(dist="weibull", mean_ms=20 * DAY_MS, shape=2.0),
    broker_mttr=Distribution(mean_ms=2 * DAY_MS),
    power_events_per_year=10.0,
    burst=Burst(per_year=10.0, size=2, window_ms=3_600_000),
    rolling_restart=RollingRestart(every_ms=30 * DAY_MS, down_ms=600_000),
)
DAYS = 120


def _events(timeline: Timeline) -> list[Event]:
    return list(events_until(timeline, DAYS * DAY_MS))


def _branching(seed: int, *branches: Branch) -> list[Event]:
    return _events(BranchingTimeline(CELL, seed, branches, -warm_up_ms(CELL)))


def test_without_branches_it_is_the_drawn_timeline() -> None:
    for seed in range(3):
        assert _branching(seed) == _events(DrawnTimeline(CELL, seed, -warm_up_ms(CELL)))


def test_events_up_to_the_branch_stay_and_later_ones_are_drawn_again() -> None:
    trunk = _branching(1)
    at_ms = trunk[len(trunk) // 2].time_ms
    first, second = _branching(1, Branch(at_ms, 5)), _branching(1, Branch(at_ms, 6))
    before = [event for event in trunk if event.time_ms <= at_ms]
    for branch in (first, second):
        assert [event for event in branch if event.time_ms <= at_ms] == before
    assert first[len(before) :] != trunk[len(before) :]
    assert first[len(before) :] != second[len(before) :]
    later_ms = first[len(before) + 4].time_ms
    nested = _branching(1, Branch(at_ms, 5), Branch(later_ms, 9))
    kept = [event for event in first if event.time_ms <= later_ms]
    assert nested[: len(kept)] == kept
    assert nested != first


def test_a_branch_does_not_change_the_distribution() -> None:
    """Failures after a branch in the middle, on average over many seeds."""

    def failures(branches: bool) -> float:
        counts = []
        for seed in range(300):
            at_ms = 20 * DAY_MS
            events = _branching(seed, *([Branch(at_ms, seed + 1_000)] if branches else []))
            counts.append(sum(at_ms < event.time_ms < 60 * DAY_MS and event.kind != "start" for event in events))
        return fmean(counts)

    assert failures(branches=True) == pytest.approx(failures(branches=False), rel=0.06)


@pytest.mark.parametrize(
    ("dist", "shape"),
    [("exponential", None), ("weibull", 0.7), ("weibull", 2.0), ("lognormal", 1.0), ("constant", None)],
)
def test_remaining_times_have_the_conditional_distribution(dist: str, shape: float | None) -> None:
    """Against draws of the whole time, of which those that are longer are kept."""
    distribution = Distribution.model_validate({"dist": dist, "mean_ms": 1_000_000, "shape": shape})
    random, passed_ms = Random(2), 800_000
    drawn = sorted(longer_than_ms(distribution, passed_ms, random) for _ in range(4_000))
    whole = (distribution.sample_ms(random) for _ in range(20_000))
    kept = sorted(time_ms for time_ms in whole if time_ms > passed_ms)
    assert drawn[0] > passed_ms
    for share in (0.25, 0.5, 0.75):
        expected = kept[math.floor(share * len(kept))] - passed_ms
        assert drawn[math.floor(share * len(drawn))] - passed_ms == pytest.approx(expected, rel=0.12)
