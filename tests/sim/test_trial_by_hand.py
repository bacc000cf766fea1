"""Trials whose failures are given, against what each has to measure by hand: losses under load, and writable time.

Every outage begins a whole number of hours after the begin, so a share of time is so many seconds of so many hours. The
controller notices a crash 6.75 to 9 s after it (a heartbeat every 2.25 s, a session of 9 s).
"""

from __future__ import annotations

from functools import partial

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import CatchUp, SlowEpisodes
from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import OutageKind
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.trace.kinds import Loss, Stamped
from experiments.studies.trace.metrics import measure
from experiments.studies.trace.schema import YEAR_MS
from experiments.studies.trials.trial import Trial
from tests.synthetic_studies import cell_like

HOUR_MS = 3_600_000
NEVER_S = 10 * 3_600
BASE = CellParameters(generation="kip-497", duration_ms=24 * HOUR_MS, start="fresh", estimator="plain")
FENCED_S = (6.7, 9.1)
CAUSES = ("unwritable_offline", "unwritable_leader", "unwritable_isr", "unwritable_refused")

_cell = partial(cell_like, BASE)


def _down(broker: int, at_s: float, for_s: float, kind: OutageKind = "unclean") -> Outage:
    begins_ms = HOUR_MS + round(at_s * 1_000)
    return Outage(begins_ms, begins_ms + round(for_s * 1_000), broker, kind, "test")


def _rows(cell: CellParameters, *outages: Outage) -> list[Stamped]:
    return Trial(cell, 1, DrawnTimeline(cell, 1, outages=sorted(outages), own_failures=False)).run().rows


def _losses(cell: CellParameters, *outages: Outage) -> int:
    return sum(isinstance(row.what, Loss) for row in _rows(cell, *outages))


def _seconds(cell: CellParameters, *outages: Outage) -> dict[str, float]:
    """Seconds of each share of time."""
    return {name: value * YEAR_MS / 1_000 for name, value in measure(_rows(cell, *outages)).values.items()}


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"flush_interval_ms": 10_000}, {"flush_interval_ms": 1_000}])
@pytest.mark.parametrize("generation", ["kip-497", "kip-966-elr", "kip-966"])
def test_a_power_loss_under_load_loses_whatever_the_flush_interval_is(
    generation: str, changes: dict[str, object]
) -> None:
    """The record that was acknowledged last is not flushed on any replica."""
    power = [_down(broker, 0, 600, "lossy") for broker in range(3)]
    assert _losses(_cell(generation=generation, **changes), *power) == 1


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize(("after_s", "loses"), [(12, True), (28, True), (32, False), (600, False)])
def test_refused_writes_let_the_page_cache_reach_the_disk(min_isr: int, after_s: float, loses: bool) -> None:
    """Broker 0 is away. From the crash of broker 1 on, the last member of the ISR has no writes if min ISR is 2, so a
    crash of its machine 30 s later takes nothing. With min ISR 1 it has writes, and loses the last ones."""
    away = _down(0, -60, NEVER_S)
    crash, lossy = _down(1, 0, NEVER_S), _down(2, after_s, 60, "lossy")
    assert _losses(_cell(min_insync_replicas=min_isr), away, crash, lossy) == (1 if loses or min_isr == 1 else 0)
    never = _cell(min_insync_replicas=min_isr, writeback_ms=None)
    assert _losses(never, away, crash, lossy) == 1


def test_a_flush_ends_the_exposure_within_its_interval() -> None:
    """As above, with min ISR 2 and a flush every 10 s at a time that is uniform: none is lost 10 s later."""
    cell = _cell(flush_interval_ms=10_000, writeback_ms=None)
    away, crash = _down(0, -60, NEVER_S), _down(1, 0, NEVER_S)
    assert _losses(cell, away, crash, _down(2, 10.1, 60, "lossy")) == 0
    found = [
        Trial(
            cell, seed, DrawnTimeline(cell, seed, outages=[away, crash, _down(2, 5, 60, "lossy")], own_failures=False)
        ).run()
        for seed in range(40)
    ]
    lost = sum(isinstance(row.what, Loss) for result in found for row in result.rows)
    assert 8 <= lost <= 32, "half of the flushes come within 5 s; 99.99 % of 40 draws lie in this range"


def test_a_crash_of_the_process_keeps_the_page_cache() -> None:
    crash = [_down(broker, broker, 600) for broker in range(3)]
    assert _losses(_cell(), *crash) == 0


def test_a_replica_that_catches_up_is_no_copy() -> None:
    """Two replicas: broker 0 was down for 10 min and needs 20 min more; meanwhile broker 1 loses its machine."""
    cell = _cell(
        brokers=2,
        replication_factor=2,
        min_insync_replicas=1,
        catch_up=CatchUp(rate=25e6, write_rate=50e6),
    )
    behind = _down(0, 0, 600)
    for after_s, losses in ((650, 1), (1_700, 1), (1_900, 0)):
        assert _losses(cell, behind, _down(1, after_s, 60, "lossy")) == losses, after_s


# -- writable time -----------------------------------------------------------------------------------------------------


def _check_cause(found: dict[str, float], cause: str, low_s: float, high_s: float) -> None:
    assert low_s <= found[cause] <= high_s, found
    assert found["unwritable"] == pytest.approx(sum(found[name] for name in CAUSES))


def test_writes_wait_for_a_crashed_follower_until_it_is_fenced() -> None:
    follower = _down(2, 0, 600)
    found = _seconds(_cell(), follower)
    assert FENCED_S[0] <= found["stalled"] <= FENCED_S[1]
    assert found["unwritable"] == 0.0, "a write waits for 9 s, and its producer for 120 s"
    found = _seconds(_cell(delivery_timeout_ms=1_000), follower)
    _check_cause(found, "unwritable_isr", FENCED_S[0] - 1.0, FENCED_S[1] - 1.0)
    assert found["unwritable"] == pytest.approx(found["unwritable_isr"], abs=0.05)


def test_acks_1_does_not_wait_for_a_follower() -> None:
    found = _seconds(_cell(acks="1", delivery_timeout_ms=1_000), _down(2, 0, 600))
    assert (found["stalled"], found["unwritable"]) == (0.0, 0.0)


def test_writes_wait_for_a_crashed_leader_until_another_one_answers() -> None:
    found = _seconds(_cell(delivery_timeout_ms=1_000), _down(0, 0, 600))
    assert FENCED_S[0] <= found["stalled"] <= FENCED_S[1]
    _check_cause(found, "unwritable_leader", FENCED_S[0] - 1.0, FENCED_S[1] - 1.0)


def test_too_small_an_isr_refuses_writes_after_the_delivery_timeout() -> None:
    """Two of three are down for 10 min: writes that were begun in all but the last 2 min fail."""
    found = _seconds(_cell(), _down(1, 0, 600), _down(2, 0, 600))
    assert found["refuses"] == pytest.approx(600 - 8, abs=1.5)
    _check_cause(found, "unwritable_refused", 480 - 0.1, 480 + 0.1)


def test_a_partition_without_a_leader_is_not_writable() -> None:
    alone = _cell(brokers=1, replication_factor=1, min_insync_replicas=1, delivery_timeout_ms=60_000)
    found = _seconds(alone, _down(0, 0, 600))
    assert found["offline"] == pytest.approx(600 - 8, abs=1.5)
    _check_cause(found, "unwritable_offline", 540 - 0.1, 540 + 0.1)


def test_an_outage_shorter_than_the_delivery_timeout_costs_no_write() -> None:
    alone = _cell(brokers=1, replication_factor=1, min_insync_replicas=1)
    assert _seconds(alone, _down(0, 0, 100))["unwritable"] == 0.0


@pytest.mark.parametrize("factor", [1, 2])
def test_a_slow_broker_delays_writes_until_answers_come(factor: int) -> None:
    """The only broker is slow for an hour, 40 s or 80 s for each message. The first write of the hour is answered so
    much later; a producer that waits for 60 s gives up all of the hour if that takes longer, but for its first 60 s."""
    slow = SlowEpisodes(
        per_year=20_000, duration=Distribution(dist="constant", mean_ms=HOUR_MS), delay_ms=factor * 40_000
    )
    cell = _cell(
        brokers=1,
        replication_factor=1,
        min_insync_replicas=1,
        detection_ms=600_000,
        delivery_timeout_ms=60_000,
        slow=slow,
        duration_ms=4 * HOUR_MS,
    )
    found = _seconds(cell)
    assert found["stalled"] > 30.0
    if factor == 1:
        assert found["unwritable"] == 0.0
    else:
        _check_cause(found, "unwritable_isr", 1_000.0, 4 * 3_600.0)
