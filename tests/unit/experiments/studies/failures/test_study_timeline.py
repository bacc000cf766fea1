"""The timeline: independent of protocol settings, stationary from time 0, paired where cells agree."""

from __future__ import annotations

import itertools
import math
from functools import partial
from itertools import islice

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst, RollingRestart
from experiments.studies.design.model import DAY_MS, YEAR_MS, CellParameters
from experiments.studies.failures.shared import shared_outages
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline, Event, events_until, warm_up_ms
from tests.synthetic_studies import cell_like
from tests.yaml_rows import rows

CELL = CellParameters(
    broker_mttf=Distribution(mean_ms=20 * DAY_MS), broker_mttr=Distribution(mean_ms=5 * DAY_MS), unclean_probability=0.5
)

_cell = partial(cell_like, CELL)


def _events(cell: CellParameters, seed: int, days: int = 200) -> list[Event]:
    return list(events_until(DrawnTimeline(cell, seed, -warm_up_ms(cell)), days * DAY_MS))


ALL_SOURCES = {
    "racks": 3,
    "power_events_per_year": 12.0,
    "rack_power_events_per_year": 3.0,
    "rack_power_mttr": Distribution(mean_ms=DAY_MS),
    "burst": (Burst(per_year=5.0, size=2, same_rack=0.5),),
    "rolling_restart": RollingRestart(every_ms=30 * DAY_MS, down_ms=60_000),
}


@pytest.mark.parametrize("changes", rows(__file__, "protocol-settings.yaml"))
def test_protocol_settings_do_not_change_it(changes: dict[str, object]) -> None:
    cell = _cell(**ALL_SOURCES)
    assert _events(_cell(**ALL_SOURCES | changes), 7) == _events(cell, 7)
    assert _events(cell, 8) != _events(cell, 7)
    assert {event.cause for event in _events(cell, 7)} >= {"broker", "cluster power", "burst", "rolling restart"}


def test_a_broker_keeps_its_failures_in_a_larger_cluster() -> None:
    larger = [event for event in _events(_cell(brokers=5), 3) if event.broker < 3]
    assert larger == _events(CELL, 3)


def test_other_probabilities_change_kinds_only() -> None:
    lossy = _events(_cell(unclean_probability=1.0, tail_loss_probability=1.0), 5)
    assert [event[:2] for event in lossy] == [event[:2] for event in _events(CELL, 5)]
    assert {event.kind for event in lossy} == {"start", "lossy"}
    assert {event.kind for event in _events(CELL, 5)} > {"clean", "unclean"}


def test_each_broker_fails_and_starts_in_turn_and_in_time_order() -> None:
    events = _events(_cell(power_events_per_year=20.0, power_loss_probability=0.0), 2)
    assert [event.time_ms for event in events] == sorted(event.time_ms for event in events)
    for broker in range(CELL.brokers):
        starts = [event.kind == "start" for event in events if event.broker == broker]
        assert starts == [index % 2 == 1 for index in range(len(starts))]


@pytest.mark.parametrize("lifetime", ["exponential", "constant", "lognormal"])
def test_the_start_is_stationary(lifetime: str) -> None:
    """The share of brokers that are down at the beginning is MTTR / (MTTF + MTTR); with a fresh start it is 0."""
    shape = 0.5 if lifetime == "lognormal" else None
    mttf = Distribution.model_validate({"dist": lifetime, "mean_ms": 20 * DAY_MS, "shape": shape})
    cells = [_cell(broker_mttf=mttf, brokers=20, start=start) for start in ("stationary", "fresh")]

    def down_at_beginning(cell: CellParameters) -> float:
        found = 0
        for seed in range(100):
            first = DrawnTimeline(cell, seed, -warm_up_ms(cell))
            found += sum(event.time_ms == -warm_up_ms(cell) for event in islice(iter(first.next_event, None), 20))
        return found / 2_000

    assert down_at_beginning(cells[0]) == pytest.approx(0.2, abs=0.035)
    assert down_at_beginning(cells[1]) == 0.0


def test_power_events_end_all_running_brokers_at_once_and_leave_other_failures_paired() -> None:
    cell = _cell(broker_mttf=Distribution(mean_ms=YEAR_MS * 50), power_events_per_year=12.0)
    power = [event for event in _events(cell, 1, days=365) if event.cause == "cluster power"]
    times = {event.time_ms for event in power if event.time_ms >= 0}
    assert 4 <= len(times) <= 24
    assert any(sum(event.time_ms == time_ms for event in power) == cell.brokers for time_ms in times)
    first = next(event for event in _events(CELL, 1) if event.cause == "broker" and event.time_ms > 0)
    assert first in _events(_cell(power_events_per_year=0.001), 1)


@pytest.mark.parametrize("start", ["stationary", "fresh"])
def test_shared_events_of_the_measurement_do_not_depend_on_repair_times(start: str) -> None:
    """Cells that differ in how long repairs take have their shared events at the same times."""

    def times(mttr_ms: int) -> set[tuple[int, int, str]]:
        cell = _cell(**ALL_SOURCES | {"start": start, "broker_mttr": Distribution(mean_ms=mttr_ms)})
        outages = shared_outages(cell, 4, -20 * warm_up_ms(cell))
        found = itertools.takewhile(lambda outage: outage.down_ms < YEAR_MS, outages)
        return {(outage.down_ms, outage.broker, outage.cause) for outage in found if outage.down_ms >= DAY_MS}

    assert times(DAY_MS) == times(60_000)
    assert {cause for _, _, cause in times(DAY_MS)} >= {"cluster power", "burst", "rolling restart", "rack 1 power"}


def test_power_that_comes_back_for_all_at_once_leaves_the_share_of_time_of_a_queue_without_end() -> None:
    """Outages that extend each other are the busy periods of the queue M/G/infinity: a share of 1 - exp(-rate x mean)
    of the time, whatever the distribution (Takacs, Introduction to the Theory of Queues, 1962)."""
    down = Distribution(dist="lognormal", mean_ms=10 * DAY_MS, shape=0.8)
    cell = _cell(broker_mttf=None, power_events_per_year=20.0, power_mttr=down, power_loss_probability=0.0)
    years, down_ms, since_ms = 200, 0, 0
    for event in events_until(DrawnTimeline(cell, 1), years * YEAR_MS):
        if event.broker == 0 and event.kind == "start":
            down_ms += event.time_ms - since_ms
        elif event.broker == 0:
            since_ms = event.time_ms
    assert down_ms / (years * YEAR_MS) == pytest.approx(1 - math.exp(-20 * 10 / 365), rel=0.06)


def _events_of(*outages: Outage) -> list[Event]:
    return list(iter(DrawnTimeline(_cell(start="fresh"), 0, outages=outages, own_failures=False).next_event, None))


def test_an_outage_of_a_broker_that_is_down_acts_on_its_disk_only() -> None:
    first = Outage(10, 50, 0, "unclean", "a")
    assert _events_of(first, Outage(20, 90, 0, "unclean", "b"), Outage(60, 61, 0, "disk", "c")) == [
        Event(10, 0, "unclean", "a"),
        Event(50, 0, "start"),
        Event(60, 0, "disk", "c"),
        Event(61, 0, "start"),
    ]
    lost = Event(20, 0, "lossy", "b")
    assert _events_of(first, Outage(20, 90, 0, "lossy", "b")) == [first_event(first), lost, Event(50, 0, "start")]
    held = _events_of(first, Outage(20, 90, 0, "lossy", "b", holds=True))
    assert held == [first_event(first), lost, Event(90, 0, "start")]


def first_event(outage: Outage) -> Event:
    return Event(outage.down_ms, outage.broker, outage.kind, outage.cause)


def test_plain_sampling_has_weight_one_and_draws_nothing_again() -> None:
    timeline = DrawnTimeline(CELL, 0)
    assert timeline.log_weight(100) == 0.0
    assert not timeline.regenerate(100)


def test_no_power_events_by_default() -> None:
    assert list(shared_outages(CELL, 0, 0)) == []


def test_an_outage_that_begins_when_the_last_one_ends_acts() -> None:
    """The broker is started first: both outages end it, and it is up again when the second one is over."""
    outages = [Outage(3_600_000, 3_900_000, 0, "unclean", ""), Outage(3_900_000, 9_000_000, 0, "disk", "")]
    cell = _cell(start="fresh")
    events = list(events_until(DrawnTimeline(cell, 1, outages=outages, own_failures=False), DAY_MS))
    assert [event[:3] for event in events] == [
        (3_600_000, 0, "unclean"),
        (3_900_000, 0, "start"),
        (3_900_000, 0, "disk"),
        (9_000_000, 0, "start"),
    ]


def test_the_brokers_that_are_struck_at_one_time() -> None:
    """Two of one outage and one that is started then; before and after it each alone."""
    outages = [
        Outage(10, 40, 2, "unclean", "a"),
        Outage(40, 90, 0, "lossy", "b"),
        Outage(40, 95, 1, "lossy", "b"),
        Outage(41, 96, 2, "unclean", "c"),
    ]
    timeline = DrawnTimeline(_cell(start="fresh"), 1, outages=outages, own_failures=False)
    found = [(event.time_ms, list(timeline.struck())) for event in iter(timeline.next_event, None)]
    assert found == [
        (10, [2]),
        (40, [0, 1, 2]),
        (40, [0, 1]),
        (40, [1]),
        (41, [2]),
        (90, [0]),
        (95, [1]),
        (96, [2]),
    ]
