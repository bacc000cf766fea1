"""The biased timeline: its likelihood ratio is exact, regenerations draw again, and without bias it is the model."""

from __future__ import annotations

import math
from functools import partial
from random import Random
from statistics import fmean, stdev

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst, CatchUp
from experiments.studies.design.model import DAY_MS, YEAR_MS, CellParameters
from experiments.studies.design.placement import assignments
from experiments.studies.failures.biased import BiasedTimeline, length_biased_ms
from experiments.studies.failures.transitions import KindDraw
from tests.synthetic_studies import cell_like

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
CYCLES = 1_200
FIRST_SEED = 40_000
SEEN_ONCE = 2 / CYCLES
"""Tolerance for what plain sampling sees once or never."""
CELL = CellParameters(
    broker_mttf=Distribution(mean_ms=20 * DAY_MS), broker_mttr=Distribution(mean_ms=12 * HOUR_MS), writeback_ms=None
)

SHARED = {
    "power_events_per_year": 2.0,
    "racks": 3,
    "rack_power_events_per_year": 3.0,
    "burst": (Burst(per_year=4.0, size=2),),
    "disk_loss_probability": 0.05,
    "unclean_probability": 0.7,
}

_cell = partial(cell_like, CELL)


def _timeline(cell: CellParameters, seed: int, bias: bool = True) -> BiasedTimeline:
    return BiasedTimeline(cell, seed, assignments(cell), bias)


def _cycle(cell: CellParameters, seed: int, bias: bool) -> list[float]:
    """One cycle, weighted: 1, the failures, the lossy ones, the hours with two brokers absent or more, whether three
    were. A broker is absent until `_away_ms` after its start. All but the first are weighted where they happen."""
    timeline, down, failed_ms, back_ms = _timeline(cell, seed, bias), set[int](), dict[int, int](), dict[int, int]()
    failures = lossy = hours = three = 0.0
    before_ms = 0
    event = timeline.next_event()
    while event is not None:
        weight = math.exp(timeline.log_weight(event.time_ms))
        absent_ms = [max(0, back_ms.get(broker, math.inf) - before_ms) for broker in failed_ms]
        if len(absent_ms) > 1:
            hours += weight * min(event.time_ms - before_ms, sorted(absent_ms)[-2]) / HOUR_MS
        before_ms = event.time_ms
        for broker in [broker for broker, at_ms in back_ms.items() if at_ms <= event.time_ms]:
            del back_ms[broker], failed_ms[broker]
        if event.kind == "start":
            down.remove(event.broker)
            back_ms[event.broker] = event.time_ms + _away_ms(cell, event.time_ms - failed_ms[event.broker])
        elif event.kind != "mark":
            failures += weight
            lossy += weight * (event.kind == "lossy")
            down.add(event.broker)
            back_ms.pop(event.broker, None)
            failed_ms.setdefault(event.broker, event.time_ms)
            three = three or weight * (len(failed_ms) > 2)
        event = timeline.next_event()
        if timeline.all_up:
            return [weight, failures, lossy, hours, three]
    raise AssertionError("the timeline ends")


def _away_ms(cell: CellParameters, down_ms: int) -> int:
    """How long a broker is absent after its start: its process starts, and it fetches what was written meanwhile."""
    catch_up = cell.catch_up
    return cell.restart_time_ms + (
        round((down_ms + cell.restart_time_ms) * catch_up.write_rate / catch_up.rate) if catch_up else 0
    )


CELLS = {
    "exponential": CELL,
    "weibull": _cell(broker_mttr=Distribution(dist="weibull", mean_ms=12 * HOUR_MS, shape=0.7)),
    "lognormal": _cell(broker_mttr=Distribution(dist="lognormal", mean_ms=12 * HOUR_MS, shape=1.0)),
    "constant": _cell(broker_mttr=Distribution(dist="constant", mean_ms=12 * HOUR_MS)),
    "shared": _cell(**SHARED),
    "catch-up": _cell(broker_mttr=Distribution(mean_ms=4 * HOUR_MS), catch_up=CatchUp(rate=5e6, write_rate=10e6)),
    "restart": _cell(broker_mttr=Distribution(mean_ms=4 * HOUR_MS), restart_time_ms=8 * HOUR_MS),
    "exposed": _cell(writeback_ms=HOUR_MS),
    "more brokers": _cell(brokers=5, partitions=2),
    "bursts": _cell(
        broker_mttr=Distribution(dist="lognormal", mean_ms=12 * HOUR_MS, shape=1.2),
        burst=(Burst(per_year=9.0, size=2, window_ms=6 * HOUR_MS), Burst(name="deploys", per_year=3.0, size=2)),
    ),
    "bursts in a rack": _cell(
        brokers=4,
        racks=2,
        partitions=2,
        broker_mttf=Distribution(mean_ms=60 * DAY_MS),
        burst=(Burst(per_year=9.0, fraction=0.3, same_rack=0.5, down=Distribution(mean_ms=DAY_MS)),),
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_weights_average_one_and_weighted_sums_agree_with_the_model(name: str) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + CYCLES)
    biased = list(zip(*(_cycle(CELLS[name], seed, True) for seed in seeds), strict=True))
    plain = list(zip(*(_cycle(CELLS[name], seed, False) for seed in range(CYCLES, 2 * CYCLES)), strict=True))
    assert set(plain[0]) == {1.0}
    for found, expected in zip(biased, plain, strict=True):
        error = math.hypot(stdev(found), stdev(expected)) / math.sqrt(CYCLES)
        assert fmean(found) == pytest.approx(fmean(expected), abs=3.5 * error + SEEN_ONCE)
        assert error < 0.4 * max(1.0, fmean(expected))
    assert sum(value > 0 for value in biased[4]) > 4 * sum(value > 0 for value in plain[4])


def test_the_weight_before_an_event_is_that_of_the_time_without_one() -> None:
    """Between changes the weight is continuous in time, and at any fixed time it averages one."""
    weights = []
    for seed in range(2_000):
        timeline = _timeline(CELL, seed)
        first = timeline.next_event()
        assert first is not None
        timeline.next_event()
        weights.append(math.exp(timeline.log_weight(first.time_ms + HOUR_MS)))
    assert fmean(weights) == pytest.approx(1.0, abs=3.5 * stdev(weights) / math.sqrt(len(weights)))


def test_all_replicas_are_down_far_more_often_than_in_the_model() -> None:
    cell = _cell(broker_mttf=Distribution(mean_ms=YEAR_MS), broker_mttr=Distribution(mean_ms=HOUR_MS))

    def all_down(seed: int, bias: bool) -> bool:
        timeline, down = _timeline(cell, seed, bias), set()
        while True:
            event = timeline.next_event()
            assert event is not None
            if event.kind != "start":
                down.add(event.broker)
                if len(down) == 3:
                    return True
            else:
                down.discard(event.broker)
                if not down:
                    return False

    assert sum(all_down(seed, True) for seed in range(100)) > 25
    assert not any(all_down(seed, False) for seed in range(100))


def test_a_regeneration_draws_anew_with_weight_one() -> None:
    timeline = _timeline(CELL, 1)
    failure = timeline.next_event()
    assert failure is not None
    assert failure.kind != "start"
    event = timeline.next_event()
    with pytest.raises(ValueError, match="no regeneration point"):
        timeline.regenerate(failure.time_ms)
    while event is not None and not timeline.all_up:
        before, event = event, timeline.next_event()
    assert before.kind == "start"
    assert event is not None
    assert timeline.log_weight(before.time_ms) != 0.0
    assert timeline.regenerate(before.time_ms + 5)
    assert timeline.log_weight(before.time_ms + 5) == 0.0
    drawn = timeline.next_event()
    assert drawn is not None
    assert drawn.kind != "start"
    assert drawn.time_ms > before.time_ms + 5


def test_power_strikes_all_brokers_at_once() -> None:
    timeline = _timeline(_cell(broker_mttf=None, power_events_per_year=1.0), 1)
    assert timeline.next_event() is not None
    assert timeline.struck() == [0, 1, 2]


def test_no_bias_after_its_end() -> None:
    timeline = _timeline(CELL, 3)
    timeline.end_bias()
    for _ in range(40):
        event = timeline.next_event()
        assert event is not None
        assert timeline.log_weight(event.time_ms) == 0.0


def test_brokers_that_come_back_together_all_start() -> None:
    """Power events that end all three brokers for an hour: three failures at one time, three starts an hour later."""
    hour = Distribution(dist="constant", mean_ms=HOUR_MS)
    timeline = _timeline(_cell(broker_mttf=None, power_events_per_year=12.0, power_mttr=hour), 3, bias=False)
    for _ in range(4):
        events = [timeline.next_event() for _ in range(6)]
        failed_ms = events[0].time_ms if events[0] is not None else 0
        found = [(event.time_ms - failed_ms, event.kind == "start") for event in events if event is not None]
        assert found == [(0, False)] * 3 + [(HOUR_MS, True)] * 3


def test_bounded_ratios_of_kinds() -> None:
    drawn = [KindDraw({"unclean": 0.9, "lossy": 0.1}, 0.5).draw(Random(seed)) for seed in range(400)]
    assert 150 < sum(kind == "lossy" for kind, _ in drawn) < 250
    ratios = {round(math.exp(log_ratio), 12) for _, log_ratio in drawn}
    assert ratios == {0.2, 1.8}
    assert KindDraw({"unclean": 1.0, "lossy": 0.0}, 0.5).draw(Random(1)) == ("unclean", 0.0)


@pytest.mark.parametrize(
    ("dist", "shape", "mean"),
    [
        ("exponential", None, 2.0),
        ("weibull", 2.0, 4 / math.pi),
        ("lognormal", 0.5, math.exp(0.25)),
        ("constant", None, 1.0),
    ],
)
def test_length_biased_mean(dist: str, shape: float | None, mean: float) -> None:
    """E[X^2] / E[X], in means of the distribution."""
    distribution = Distribution.model_validate({"dist": dist, "mean_ms": 1_000_000, "shape": shape})
    random = Random(4)
    drawn = [length_biased_ms(distribution, random) / 1_000_000 for _ in range(5_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.06)
