"""Sources of outages: their rates, whom they strike, how they end, and that they do not disturb each other."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import pairwise, takewhile

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst, RollingRestart, SlowEpisodes
from experiments.studies.design.model import DAY_MS, YEAR_MS, CellParameters
from experiments.studies.design.recorded import RecordedFailures, RecordedOutage
from experiments.studies.failures.shared import recorded_outages, shared_outages
from experiments.studies.failures.sources import (
    Draws,
    Outage,
    kind_of_failure,
    poisson_outages,
    poisson_sources,
    split_bursts,
)
from experiments.studies.failures.timeline import DrawnTimeline, events_until
from experiments.studies.trials.degraded import episodes
from tests.synthetic_studies import cell_like
from tests.yaml_rows import rows

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
CELL = CellParameters(brokers=6, racks=3, tail_loss_probability=0.25, start="fresh")

LINES = {(2, "paused"): 1, (0, "isolated"): 6, (1, "isolated"): 6}
"""Hours that an impairment of a record lasts, by broker and kind."""

_cell = partial(cell_like, CELL)


def _outages(cell: CellParameters, years: int, seed: int = 1) -> list[Outage]:
    return list(takewhile(lambda outage: outage.down_ms < years * YEAR_MS, shared_outages(cell, seed, 0)))


def _times(outages: list[Outage]) -> list[int]:
    return sorted({outage.down_ms for outage in outages})


def test_power_of_a_rack_fails_at_its_rate_and_strikes_all_its_brokers_and_no_other() -> None:
    outages = _outages(_cell(rack_power_events_per_year=2.0, power_loss_probability=0.5), years=200)
    racks = [[outage for outage in outages if outage.broker % 3 == rack] for rack in range(3)]
    for rack, struck in enumerate(racks):
        assert len(_times(struck)) == pytest.approx(400, rel=0.15)
        assert {outage.cause for outage in struck} == {f"rack {rack} power"}
        assert len(struck) == 2 * len(_times(struck))
    assert not set(_times(racks[0])) & set(_times(racks[1]))
    assert sum(outage.kind == "lossy" for outage in outages) == pytest.approx(len(outages) / 2, rel=0.1)


def test_gaps_between_power_events_are_exponential() -> None:
    times = _times(_outages(_cell(power_events_per_year=4.0), years=500))
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(YEAR_MS / 4, rel=0.08)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.1)


@pytest.mark.parametrize(
    "fields", [{"power_events_per_year": 4.0}, {"burst": (Burst(per_year=4.0, size=6, window_ms=0),)}]
)
def test_who_fails_last_in_one_moment_is_not_down_for_longer(fields: dict[str, object]) -> None:
    """The last of the six may be the one that the partition waits for. Its repair has the mean that all have, and not
    that of the longest of six exponential times, 1 + 1/2 + ... + 1/6 = 2.45 of it; of 1,600 events, +- 0.1."""
    outages = _outages(_cell(brokers=6, broker_mttr=Distribution(mean_ms=HOUR_MS), **fields), years=400)
    last = [one for one, following in pairwise(outages) if following.down_ms != one.down_ms]
    assert len(last) == pytest.approx(1_600, rel=0.1)
    down_ms = sum(outage.up_ms - outage.down_ms for outage in last) / len(last)
    assert down_ms == pytest.approx(HOUR_MS, rel=0.1)


def test_a_domain_with_a_down_time_comes_back_at_once() -> None:
    down = Distribution(mean_ms=5 * HOUR_MS)
    outages = _outages(_cell(power_events_per_year=4.0, power_mttr=down), years=100)
    ends = {at_ms: {outage.up_ms for outage in outages if outage.down_ms == at_ms} for at_ms in _times(outages)}
    assert all(len(up_ms) == 1 for up_ms in ends.values())
    assert sum(min(up_ms) - at_ms for at_ms, up_ms in ends.items()) / len(ends) == pytest.approx(5 * HOUR_MS, rel=0.15)
    assert all(outage.holds for outage in outages)
    assert not any(outage.holds for outage in _outages(_cell(power_events_per_year=4.0), years=10))


def test_a_source_leaves_the_others_and_the_brokers_own_failures_as_they_are() -> None:
    cell = _cell(power_events_per_year=2.0, broker_mttf=Distribution(mean_ms=30 * DAY_MS))
    more = cell.model_copy(update={"rack_power_events_per_year": 1.0, "burst": (Burst(per_year=3.0, size=2),)})
    alone = _outages(cell, years=10)
    assert [outage for outage in _outages(more, years=10) if outage.cause == "cluster power"] == alone
    first = next(iter(DrawnTimeline(_cell(), 5).next_event, None))
    assert first in list(events_until(DrawnTimeline(_cell(rack_power_events_per_year=0.001), 5), YEAR_MS))


@pytest.mark.parametrize(("burst", "events", "struck"), rows(__file__, "bursts.yaml"))
def test_bursts_come_and_strike_at_their_rates(burst: dict[str, float], events: float, struck: float) -> None:
    cell = _cell(burst=(burst,))
    outages = _outages(cell, years=200)
    (source,) = poisson_sources(cell)
    assert source.events_per_year == pytest.approx(events)
    assert len(outages) == pytest.approx(200 * events * struck, rel=0.1)
    assert outages == sorted(outages)
    each = [sum(outage.broker == broker for outage in outages) for broker in range(6)]
    assert each == pytest.approx([len(outages) / 6] * 6, rel=0.2)


def test_a_burst_lies_within_its_window_and_in_one_rack_with_its_probability() -> None:
    (source,) = poisson_sources(_cell(burst=(Burst(per_year=1.0, size=2, window_ms=90_000, same_rack=0.5),)))
    draws = Draws(source.name, 3)
    bursts = [source.strike(1_000, draws) for _ in range(600)]
    assert all(1_000 <= outage.down_ms < 91_000 for burst in bursts for outage in burst)
    in_one_rack = sum(len({outage.broker % 3 for outage in burst}) == 1 for burst in bursts) / len(bursts)
    assert in_one_rack == pytest.approx(0.5 + 0.5 * 0.2, abs=0.06)  # 3 of the 15 pairs are a rack


def test_events_of_a_source_are_drawn_whatever_came_before() -> None:
    """The same event after another one: what importance sampling needs to draw events at other times."""
    (source,) = poisson_sources(_cell(power_events_per_year=1.0))
    early, late = (source.strike(at_ms, Draws(source.name, 3)) for at_ms in (0, 7))
    assert [(outage.down_ms - 7, outage.up_ms - 7, *outage[2:]) for outage in late] == [tuple(item) for item in early]
    assert list(takewhile(lambda outage: outage.down_ms < 0, poisson_outages(source, 3, 0))) == []


@pytest.mark.parametrize(
    "burst",
    [
        Burst(per_year=10.0, size=2),
        Burst(per_broker_year=5.0, size=3, same_rack=0.4),
        Burst(per_year=10.0, fraction=0.4, same_rack=0.7, down=Distribution(mean_ms=DAY_MS)),
    ],
)
def test_bursts_split_by_the_brokers_that_they_strike_have_the_rates_of_the_whole(burst: Burst) -> None:
    cell = CellParameters(brokers=5, racks=2, burst=(burst,))
    (whole,) = poisson_sources(cell)
    parts = {part.brokers: part for part in split_bursts(cell)}
    draws, events = Draws("whole", 1), 4_000
    struck = Counter(tuple(sorted(outage.broker for outage in whole.strike(0, draws))) for _ in range(events))
    del struck[()]
    assert set(struck) == set(parts)
    for brokers, part in parts.items():
        expected = part.events_per_year / whole.events_per_year * events
        assert struck[brokers] == pytest.approx(expected, abs=4.0 * math.sqrt(expected) + 1.0)
        assert {outage.broker for outage in part.strike(0, draws)} == set(brokers)


def test_causes_of_bursts_are_told_apart_and_leave_each_other_alone() -> None:
    one, other = Burst(per_year=10.0, size=2), Burst(name="deploys", per_year=20.0, size=3)
    both = _outages(_cell(burst=(one, other)), years=50)
    assert [outage for outage in both if outage.cause == "burst"] == _outages(_cell(burst=(one,)), years=50)
    deploys = [outage for outage in both if outage.cause == "burst deploys"]
    assert len(deploys) == pytest.approx(50 * 20 * 3, rel=4.0 / math.sqrt(50 * 20))
    assert {part.group for part in split_bursts(_cell(burst=(one, other)))} == {"burst", "burst deploys"}


def test_impairments_of_a_record_keep_their_lengths_and_what_they_share_in_its_blocks() -> None:
    """1,000 blocks of 2 of the 10 days have each line 200 times on average, binomial. Brokers 0 and 1 are isolated
    together: their events have one span, also while broker 1 is down meanwhile."""
    lines = [
        RecordedOutage(2, DAY_MS, DAY_MS + HOUR_MS, "paused"),
        *(RecordedOutage(broker, 3 * DAY_MS, 3 * DAY_MS + 6 * HOUR_MS, "isolated") for broker in (0, 1)),
        RecordedOutage(1, 3 * DAY_MS + HOUR_MS, 3 * DAY_MS + 2 * HOUR_MS, "unclean"),
    ]
    record = RecordedFailures(
        file="f.csv", mode="blocks", block_ms=2 * DAY_MS, length_ms=10 * DAY_MS, outages=tuple(lines)
    )
    cell = _cell(failures=record, duration_ms=2_000 * DAY_MS)
    events = list(events_until(DrawnTimeline(cell, 3), cell.duration_ms))
    begun = {key: [e.span for e in events if (e.broker, e.kind, e.ends) == (*key, False)] for key in LINES}
    ended = {key: [e.span for e in events if (e.broker, e.kind, e.ends) == (*key, True)] for key in LINES}
    for key, hours in LINES.items():
        assert len(begun[key]) == pytest.approx(200, abs=4.0 * math.sqrt(200 * 0.8))
        assert {(end - begin) // HOUR_MS for begin, end in begun[key]} == {hours}
        assert ended[key] == begun[key][: len(ended[key])]
        assert len(begun[key]) - len(ended[key]) <= 1, "the last one may outlast the trial"
    assert begun[0, "isolated"] == begun[1, "isolated"]
    crashes = [event.time_ms for event in events if event.kind == "unclean"]
    isolated = {begin + HOUR_MS for begin, _ in begun[1, "isolated"]}
    assert len(isolated.intersection(crashes)) > 0.9 * len(crashes)


def test_bursts_over_too_many_sets_of_brokers_are_not_split() -> None:
    cell = CellParameters(brokers=40, burst=(Burst(per_year=10.0, size=2),))
    assert [part.brokers for part in split_bursts(cell)] == [tuple(range(40))]
    assert len(split_bursts(CellParameters(brokers=14, burst=(Burst(per_year=10.0, size=2),)))) == 91
    assert split_bursts(CellParameters()) == []


def test_kinds_of_failures_have_their_probabilities() -> None:
    cell = _cell(unclean_probability=0.8, disk_loss_probability=0.5, tail_loss_probability=0.25)
    draws = Draws("kinds", 1)
    kinds = [kind_of_failure(cell, draws.gaps, draws.event) for _ in range(4_000)]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in ("clean", "disk", "lossy", "unclean")}
    assert shares == pytest.approx({"clean": 0.2, "disk": 0.4, "lossy": 0.1, "unclean": 0.3}, abs=0.03)


def test_a_rolling_restart_takes_the_brokers_in_turn() -> None:
    rolling = RollingRestart(every_ms=30 * DAY_MS, down_ms=2 * MINUTE_MS, pause_ms=MINUTE_MS)
    outages = _outages(_cell(rolling_restart=rolling), years=1)
    assert [outage.broker for outage in outages] == list(range(6)) * 12
    assert outages[0] == Outage(30 * DAY_MS, 30 * DAY_MS + 2 * MINUTE_MS, 0, "clean", "rolling restart")
    assert outages[1].down_ms == outages[0].up_ms + MINUTE_MS
    assert outages[6].down_ms == 60 * DAY_MS
    firsts = [next(shared_outages(_cell(rolling_restart=rolling, start="stationary"), seed, 0)) for seed in range(60)]
    assert sum(outage.down_ms for outage in firsts) / 60 == pytest.approx(15 * DAY_MS, rel=0.25)


def _record(mode: str, block_days: int = 5) -> RecordedFailures:
    outages = (
        RecordedOutage(0, DAY_MS, DAY_MS + HOUR_MS, "unclean"),
        RecordedOutage(1, DAY_MS + 1_000, 2 * DAY_MS, "lossy"),
        RecordedOutage(2, 19 * DAY_MS, 20 * DAY_MS, "disk"),
    )
    fields = {"file": "f.csv", "mode": mode, "block_ms": block_days * DAY_MS, "length_ms": 20 * DAY_MS}
    return RecordedFailures.model_validate(fields | {"outages": outages})


def test_replayed_failures_are_those_of_the_file_and_brokers_have_no_others() -> None:
    cell = _cell(failures=_record("replay"), duration_ms=20 * DAY_MS, start="stationary")
    found = [list(events_until(DrawnTimeline(cell, seed, -DAY_MS), YEAR_MS)) for seed in (1, 2)]
    assert found[0] == found[1]
    kinds = [(event.time_ms, event.broker, event.kind) for event in found[0] if event.kind != "start"]
    assert kinds == [(DAY_MS, 0, "unclean"), (DAY_MS + 1_000, 1, "lossy"), (19 * DAY_MS, 2, "disk")]


def test_blocks_keep_rates_lengths_and_what_happened_together() -> None:
    record = _record("blocks")
    years = 40
    outages = list(takewhile(lambda found: found.down_ms < years * YEAR_MS, recorded_outages(record, 1, 0)))
    assert outages == sorted(outages)
    expected = years * 365 / 20
    for broker in range(3):
        own = [outage for outage in outages if outage.broker == broker]
        assert len(own) == pytest.approx(expected, rel=0.15)
        assert {outage.up_ms - outage.down_ms for outage in own} == {
            outage.up_ms - outage.down_ms for outage in record.outages if outage.node == broker
        }
    first = {outage.down_ms for outage in outages if outage.broker == 0}
    together = sum(outage.down_ms - 1_000 in first for outage in outages if outage.broker == 1)
    assert together >= 0.98 * len(first)
    assert list(takewhile(lambda found: found.down_ms < YEAR_MS, recorded_outages(record, 2, 0))) != outages[:50]


@pytest.mark.parametrize("start", ["fresh", "stationary"])
def test_slow_episodes_have_their_rate_and_length(start: str) -> None:
    slow = SlowEpisodes(per_year=6.0, duration=Distribution(mean_ms=3 * DAY_MS), delay_ms=1_000)
    found = takewhile(lambda item: item.begins_ms < 100 * YEAR_MS, episodes(slow, _cell(start=start), 1, -DAY_MS))
    listed = list(found)
    slow_share = sum(episode.ends_ms - episode.begins_ms for episode in listed) / (6 * 100 * YEAR_MS)
    assert slow_share == pytest.approx(6 * 3 / 365, rel=0.1)
    assert listed == sorted(listed)
    for broker in range(6):
        own = [episode for episode in listed if episode.broker == broker]
        assert all(before.ends_ms <= after.begins_ms for before, after in pairwise(own))
