"""A branching timeline follows another one to the branch, and is drawn given the state there afterwards."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.impairments import Isolation, Pause
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
    burst=(Burst(per_year=10.0, size=2, window_ms=3_600_000),),
    rolling_restart=RollingRestart(every_ms=30 * DAY_MS, down_ms=600_000),
)
IMPAIRED = CellParameters(
    broker_mttf=Distribution(mean_ms=20 * DAY_MS),
    broker_mttr=Distribution(mean_ms=2 * DAY_MS),
    isolated=(Isolation(of="cluster", per_year=36.5, duration=Distribution(mean_ms=5 * DAY_MS)),),
    paused=(Pause(per_year=36.5, duration=Distribution(mean_ms=DAY_MS)),),
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


def _impaired(seed: int, *branches: Branch) -> list[Event]:
    return _events(BranchingTimeline(IMPAIRED, seed, branches, -warm_up_ms(IMPAIRED)))


def test_impairments_that_last_at_a_branch_end_as_they_would_have_and_later_ones_are_drawn_again() -> None:
    trunk = _impaired(1)
    assert trunk == _events(DrawnTimeline(IMPAIRED, 1, -warm_up_ms(IMPAIRED)))
    begins_ms, ends_ms = next(event.span for event in trunk if event.kind == "isolated" and event.span[0] > 0)
    at_ms = (begins_ms + ends_ms) // 2
    branch = _impaired(1, Branch(at_ms, 5))

    def impairments(events: list[Event], has_begun: bool) -> list[Event]:
        return [event for event in events if event.span != (0, 0) and (event.span[0] <= at_ms) is has_begun]

    assert impairments(branch, has_begun=True) == impairments(trunk, has_begun=True)
    assert [event.ends for event in branch if event.span == (begins_ms, ends_ms)] == [False] * 3 + [True] * 3
    assert impairments(branch, has_begun=False) != impairments(trunk, has_begun=False)


def test_a_branch_does_not_change_the_rates_of_impairments_and_of_failures_beside_them() -> None:
    """40 days from the branch at day 20 on. A cause at 36.5 a year comes 4 times; isolations are of the cluster, so
    that each is one of all 3 brokers, pauses of one broker each: 4 spans and 12. A broker fails every 22 days, up for
    20: 3 x 40 / 22 times. Counts are Poisson, those of failures less spread."""
    seeds, at_ms = 200, 20 * DAY_MS
    found = dict.fromkeys(("isolated", "paused", "unclean"), 0)
    for seed in range(seeds):
        events = _impaired(seed, Branch(at_ms, seed + 1_000))
        after = [event for event in events if at_ms < event.time_ms <= 60 * DAY_MS and not event.ends]
        found["isolated"] += len({event.span for event in after if event.kind == "isolated"})
        for kind in ("paused", "unclean"):
            found[kind] += sum(event.kind == kind for event in after)
    for kind, expected in (("isolated", 4.0), ("paused", 12.0), ("unclean", 3 * 40 / 22)):
        assert found[kind] == pytest.approx(seeds * expected, abs=4.0 * math.sqrt(seeds * expected)), kind
