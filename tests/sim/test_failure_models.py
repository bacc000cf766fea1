"""Failure models in trials: each parameter has its effect on the simulated cluster, and no other."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from experiments.engines.sim.cluster import SimCluster
from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import CatchUp, Reassignments, RollingRestart, SlowEpisodes
from experiments.studies.design.model import DAY_MS, MINUTE_MS, CellParameters
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.trace.kinds import Crash, Loss, State
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials import trial
from experiments.studies.trials.reassignments import Move
from experiments.studies.trials.trial import Trial, run_trial
from tests.synthetic_studies import cell_like
from tests.trace_rows import as_rows

HOUR_MS = 60 * MINUTE_MS
BASE = CellParameters(broker_mttf=None, duration_ms=4 * DAY_MS, start="fresh", detection_ms=None)
PAIR = {"brokers": 2, "replication_factor": 2, "min_insync_replicas": 2}
CATCH_UP = CatchUp(rate=2e6, write_rate=1e6, backlog=7.2e9)

_cell = partial(cell_like, BASE)


def _rows(cell: CellParameters, *outages: Outage) -> list[TraceRow]:
    """The trace of a trial with these failures and those of the cell's sources of slowness."""
    return as_rows(Trial(cell, 1, DrawnTimeline(cell, 1, outages=outages, own_failures=False)).run().rows)


def _down(broker: int, hour: float, hours: float, kind: str = "unclean") -> Outage:
    begins_ms = round(hour * HOUR_MS)
    return Outage(begins_ms, begins_ms + round(hours * HOUR_MS), broker, kind, "test")  # type: ignore[arg-type]


def _minutes_under_min_isr(rows: list[TraceRow]) -> float:
    states = [row for row in rows if row.kind == State.KIND or row is rows[-1]]
    times = (after.time_ms - row.time_ms for row, after in pairwise(states) if row.isr_size < row.min_isr)
    return sum(times) / MINUTE_MS


def _losses(rows: list[TraceRow]) -> int:
    return sum(row.kind == Loss.KIND for row in rows)


@pytest.mark.parametrize(
    ("outages", "minutes"),
    [
        ((_down(1, 1, 1),), 60 + 30),
        ((_down(0, 1, 1),), 60 + 30),
        ((_down(1, 1, 1, "disk"),), 60 + 30 + 60),
        ((_down(1, 1, 0.5), _down(1, 1.5, 0.5, "disk")), 60 + 15 + 60),
        ((_down(1, 1, 1), _down(1, 2.25, 0.5)), 60 + 15 + 30 + 15 + 15),
        ((_down(1, 1, 1), _down(1, 2.25, 0.5, "clean")), 60 + 15 + 30 + 15 + 15),
        ((_down(1, 1, 1), _down(1, 2.25, 0.5, "disk")), 60 + 15 + 30 + 60 + 15),
        ((_down(1, 1, 1, "clean"),), 60 + 30),
    ],
)
def test_catch_up_lengthens_the_time_under_min_isr_by_what_is_behind(
    outages: tuple[Outage, ...], minutes: float
) -> None:
    """Half an hour for each hour down, an hour for a lost disk, and what was missing at a failure before its end."""
    with_catch_up = _minutes_under_min_isr(_rows(_cell(**PAIR, catch_up=CATCH_UP), *outages))
    down = sum(outage.up_ms - outage.down_ms for outage in outages) / MINUTE_MS
    assert with_catch_up == pytest.approx(minutes, abs=0.2)
    assert _minutes_under_min_isr(_rows(_cell(**PAIR), *outages)) == pytest.approx(down, abs=0.2)


@pytest.mark.parametrize(
    ("outages", "minutes"),
    [
        ((_down(1, 1, 1, "isolated"),), 60 + 30),
        ((_down(0, 1, 1, "isolated"),), 60 + 30),
        ((_down(1, 1, 1, "isolated-all"),), 60 + 30),
        ((_down(1, 1, 1, "paused"),), 60 + 30),
        ((_down(1, 1, 1, "isolated"), _down(1, 1.5, 1)), 90 + 45),
        ((_down(1, 1, 1.5, "isolated"), _down(1, 1.5, 0.5)), 90 + 45),
        ((_down(1, 1, 1, "isolated"), _down(1, 1.5, 1.25, "isolated-controllers")), 105),
        ((_down(1, 1, 1, "isolated"), _down(1, 1.5, 1, "isolated-all")), 90 + 45),
        ((_down(1, 1, 1.5, "isolated"), _down(1, 1.5, 0.5, "paused")), 90 + 45),
        ((_down(1, 1, 1, "paused"), _down(1, 1.5, 1, "isolated")), 90 + 45),
        ((_down(1, 1, 1, "isolated"), _down(1, 1.5, 0.25, "disk")), 60 + 30 + 60),
        ((_down(1, 1, 1, "isolated"), _down(1, 2.25, 0.5, "isolated")), 60 + 15 + 30 + 15 + 15),
        ((_down(1, 1, 0.5, "paused"), _down(1, 1.25, 1)), 75 + 37.5),
    ],
)
def test_catch_up_counts_each_time_away_from_the_leader_once(outages: tuple[Outage, ...], minutes: float) -> None:
    """A pair needs half as long to catch up as it was apart, and an hour more for a lost disk; overlapping causes are
    one time apart, which ends with the last of them. A broker that is cut off from the controller alone fetches: it is
    fenced for 45 minutes more, of which it needs 30 to catch up. The fence comes 9 s at most after the beginning, and
    catching up that is cut short leaves the rest to do."""
    rows = _rows(_cell(**PAIR, catch_up=CATCH_UP), *sorted(outages))
    assert _minutes_under_min_isr(rows) == pytest.approx(minutes, abs=0.25)


def test_a_broker_that_is_behind_may_be_elected_and_is_in_sync_as_leader() -> None:
    """No replica is ahead of the last member of the ISR: with min ISR 1 only its own outage is without a leader."""
    rows = _rows(_cell(**PAIR | {"min_insync_replicas": 1}, catch_up=CATCH_UP), _down(1, 1, 4), _down(0, 2, 1))
    assert _minutes_under_min_isr(rows) == pytest.approx(60, abs=0.2)
    assert _losses(rows) == 0


def test_catch_up_costs_no_events_while_it_lasts() -> None:
    short, long = (
        Trial(cell, 1, DrawnTimeline(cell, 1, outages=[_down(1, 1, 1)], own_failures=False)).run().events
        for cell in (_cell(**PAIR, catch_up=CatchUp(rate=rate, write_rate=1e6)) for rate in (1e8, 1e5))
    )
    assert long <= short + 20


def test_idle_timers_that_sleep_through_catch_up_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = _cell(**PAIR, catch_up=CATCH_UP, duration_ms=15 * MINUTE_MS)

    def trace(elide_idle: bool) -> tuple[str, int]:
        monkeypatch.setattr(trial, "SimCluster", partial(SimCluster, elide_idle=elide_idle))
        outages = [_down(1, 0.02, 0.05, "lossy"), _down(0, 0.15, 0.02)]
        result = Trial(cell, 1, DrawnTimeline(cell, 1, outages=outages, own_failures=False)).run()
        return result.trace_hash, result.events

    (asleep, few), (awake, many) = trace(elide_idle=True), trace(elide_idle=False)
    assert asleep == awake
    assert few < many / 20


def test_a_slow_broker_leaves_the_isr_if_it_is_slower_than_the_lag_limit() -> None:
    def minutes(delay_s: int) -> float:
        duration = Distribution(dist="constant", mean_ms=3 * MINUTE_MS)
        slow = SlowEpisodes(per_year=180.0, duration=duration, delay_ms=delay_s * 1_000)
        return _minutes_under_min_isr(_rows(_cell(**PAIR, slow=slow)))

    assert minutes(1) == 0.0
    assert minutes(45) > 0.5


def test_power_loss_of_a_rack_hits_min_isr_only_where_replicas_are_together() -> None:
    """Brokers 0 and 2 are in rack 0, broker 1 and 3 in rack 1; RF 2, min ISR 1."""
    power = [_down(broker, 1, 2, "lossy") for broker in (0, 2)]
    rack = {"brokers": 4, "racks": 2, "replication_factor": 2, "min_insync_replicas": 1}
    together, spread = (_rows(_cell(**rack, placement=placement), *power) for placement in ("together", "spread"))
    assert (_losses(together), _losses(spread)) == (1, 0)
    assert _minutes_under_min_isr(together) == pytest.approx(120, abs=0.2)
    assert _minutes_under_min_isr(spread) == pytest.approx(0, abs=0.2)


def test_rack_power_events_end_the_brokers_of_one_rack_at_a_time() -> None:
    cell = _cell(brokers=6, racks=3, rack_power_events_per_year=30.0, duration_ms=30 * DAY_MS)
    crashes: dict[int, set[int]] = {}
    for row in as_rows(run_trial(cell, 2).rows):
        if row.kind == Crash.KIND:
            crashes.setdefault(row.time_ms, set()).add(row.node % 3)
    assert len(crashes) >= 3
    assert all(len(racks) == 1 for racks in crashes.values())


def test_power_loss_takes_the_page_cache_of_a_crashed_broker_too() -> None:
    """All records are unflushed. The only replica's process crashes; the power fails while it is down, an hour later or
    10 s later. The kernel writes the page cache back after 30 s, or never."""
    cached = _cell(brokers=1, replication_factor=1, min_insync_replicas=1)
    alone = cached.model_copy(update={"writeback_ms": None})
    crash, power = _down(0, 1, 2), _down(0, 2, 1, "lossy")
    assert _losses(_rows(alone, crash)) == 0
    assert _losses(_rows(alone, crash, power)) == 1
    assert _losses(_rows(alone, crash, power._replace(kind="unclean"))) == 0
    flushed = alone.model_copy(update={"flush_interval_ms": 1})
    assert _losses(_rows(flushed, crash, power)) == 0
    assert _losses(_rows(cached, crash, power)) == 0
    soon = power._replace(down_ms=crash.down_ms + 10_000)
    assert _losses(_rows(cached, crash, soon)) == 1
    assert _losses(_rows(cached, crash._replace(kind="lossy"))) == 1, "what was acknowledged last is in the page cache"
    assert _losses(_rows(flushed.model_copy(update={"flush_interval_ms": 10_000}), crash._replace(kind="lossy"))) == 1


def test_a_lost_disk_is_refilled_from_the_others_and_loses_nothing_alone() -> None:
    cell = _cell(min_insync_replicas=2)
    assert _losses(_rows(cell, _down(0, 1, 1, "disk"), _down(1, 3, 1, "disk"), _down(2, 5, 1, "disk"))) == 0
    alone = _cell(brokers=1, replication_factor=1, min_insync_replicas=1)
    assert _losses(_rows(alone, _down(0, 1, 1, "disk"))) == 1


def test_rolling_restarts_neither_lose_records_nor_stop_writes() -> None:
    rolling = RollingRestart(every_ms=DAY_MS, down_ms=2 * MINUTE_MS)
    cell = _cell(rolling_restart=rolling, detection_ms=9_000, duration_ms=4 * DAY_MS - HOUR_MS)
    rows = as_rows(run_trial(cell, 1).rows)
    restarts = [row.node for row in rows if row.kind == Crash.KIND and row.detail == "clean"]
    assert restarts == [0, 1, 2] * 3
    assert _losses(rows) == 0
    assert _minutes_under_min_isr(rows) == 0.0
    assert all(row.leader != -1 for row in rows if row.kind == State.KIND)


MOVED = {"brokers": 3, "replication_factor": 2, "min_insync_replicas": 2}
TO_4_2, FROM_4_3 = "4.1.2", "4.4"


@pytest.mark.parametrize(
    ("release", "leaving", "outages", "minutes"),
    [
        (TO_4_2, 0, (), 0),
        (FROM_4_3, 0, (), 0),
        (TO_4_2, 0, (_down(1, 1, 4),), 60 + 60),
        (FROM_4_3, 0, (_down(1, 1, 4),), 60 + 60 + 120 + 120),
        (TO_4_2, 1, (_down(1, 1, 4),), 60 + 60),
        (FROM_4_3, 1, (_down(1, 1, 4),), 60 + 60),
        (TO_4_2, 0, (_down(2, 2.5, 1),), 0),
        (FROM_4_3, 0, (_down(2, 2.5, 1),), 0),
        (TO_4_2, 1, (_down(1, 1, 6), _down(2, 2.5, 1)), 60 + 30 + 60 + 30 + 30),
        (FROM_4_3, 1, (_down(1, 1, 6), _down(2, 2.5, 1)), 60 + 30 + 60 + 30 + 30),
    ],
)
def test_a_move_takes_the_old_replica_away_when_the_release_says_so(
    release: str, leaving: int, outages: tuple[Outage, ...], minutes: float
) -> None:
    """RF 2 and min ISR 2 on brokers 0 and 1; after two hours one of them moves to broker 2, which copies for an hour,
    and for the half hour of what it missed besides if it is down for one. Broker 1 returns after 4 hours, and is in
    sync 2 hours later. Up to 4.2 the move of broker 0 waits for broker 1; from 4.3 on it leaves broker 2 alone."""
    cell = _cell(**MOVED, kafka_release=release, catch_up=CATCH_UP)
    moves = iter([Move(2 * HOUR_MS, 0, leaving=leaving / 2, joining=0.0)])
    timeline = DrawnTimeline(cell, 1, outages=outages, own_failures=False)
    rows = as_rows(Trial(cell, 1, timeline, moves).run().rows)
    assert _minutes_under_min_isr(rows) == pytest.approx(minutes, abs=0.5)
    assert _losses(rows) == 0


def test_moves_are_drawn_for_each_partition_and_keep_all_records() -> None:
    cell = _cell(brokers=5, partitions=2, reassignments=Reassignments(per_year=2 * 365.0))
    rows = as_rows(run_trial(cell, 1).rows)
    brokers = {broker for row in rows if row.kind == State.KIND for broker in row.isr.split(",")}
    assert len(brokers) == 5
    assert _losses(rows) == 0


def test_the_failure_model_of_the_guide_runs() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "failure-models.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    study = names["study"]
    crashes: dict[int, set[int]] = {}
    for row in as_rows(study.trial()(study.plan().cells[0].parameters, 1).rows):
        if row.kind == Crash.KIND:
            crashes.setdefault(row.time_ms, set()).add(row.node)
    assert len(crashes) >= 4
    assert all(brokers == {0, 1} for brokers in crashes.values())
