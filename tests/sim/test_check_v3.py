"""Recordings of `v3`: what the store published is checked, and decides whether a loss is a violation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.check.check_recording import ReplayedStore, check, replay_store
from experiments.check.engine import CheckedEngine
from experiments.check.recording import MANIFEST, Recording
from experiments.engines.port import TraceEvent
from experiments.scenarios.runner import Runner, run_recorded
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.host import IncarnationEnded
from protocol.events.store import ControllerElected, StoreChanged
from protocol.ids import STORE, TopicPartition
from tests.sim.scenario_helpers import shipped, spec_of

T0 = TopicPartition("t", 0)
Change = Callable[[list[TraceEvent]], None]


def recorded(name: str, folder: Path) -> Recording:
    scenario = shipped(name)
    assert run_recorded(Runner(scenario, CheckedEngine(spec_of(scenario, 0))), folder).passed
    return Recording(folder)


@pytest.fixture(scope="module")
def failover(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded("store-leader-failover", tmp_path_factory.mktemp("recordings") / "failover")


def states(events: Sequence[TraceEvent]) -> list[int]:
    """The positions of the published states of t-0."""
    return [
        at
        for at, event in enumerate(events)
        if isinstance(event.trace, StoreChanged) and event.trace.path.endswith("/t/0/leaderAndISR")
    ]


def replayed(recording: Recording, change: Change) -> ReplayedStore:
    events = list(recording.events())
    change(events)
    return replay_store(recording.spec, events)


def edited(which: int, **fields: object) -> Change:
    """Changes fields of the event of a published state: of its data, or `version`."""

    def change(events: list[TraceEvent]) -> None:
        at = states(events)[which]
        trace = events[at].trace
        assert isinstance(trace, StoreChanged)
        if "version" in fields:
            events[at] = replace(events[at], trace=replace(trace, version=fields["version"]))
            return
        data = trace.data
        for name, (old, new) in fields.items():  # type: ignore[misc]
            assert f'"{name}":{old}' in data, data
            data = data.replace(f'"{name}":{old}', f'"{name}":{new}')
        events[at] = replace(events[at], trace=replace(trace, data=data))

    return change


def added(node: int, trace: object) -> Change:
    def change(events: list[TraceEvent]) -> None:
        events.append(TraceEvent(events[-1].time_ms, node, trace))  # type: ignore[arg-type]

    return change


def test_what_was_published_is_found_clean(failover: Recording) -> None:
    found = replayed(failover, lambda events: None)
    assert (found.violations, found.tolerant) == ([], {T0: True})
    assert found.changes > len(states(list(failover.events()))) > 3


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (edited(1, version=7), "VersionsGrow"),
        (edited(1, leader_epoch=("1", "5")), "LeaderEpochsRise"),
        (edited(1, isr=("[1,2]", "[2,2]")), "LeaderInIsr"),
        (edited(1, controller_epoch=("1", "9")), "DecisionsAreFenced"),
        (added(1, ControllerElected(1)), "OneControllerPerEpoch"),
        (added(1, ControllerElected(50)), "OneControllerPerEpoch"),
    ],
)
def test_a_change_that_breaks_a_rule_is_a_violation(failover: Recording, change: Change, rule: str) -> None:
    assert rule in {violation.invariant for violation in replayed(failover, change).violations}


@pytest.mark.parametrize(
    ("change", "tolerant"),
    [
        (added(0, IncarnationEnded("all", ((T0, 3),))), False),
        (added(0, IncarnationEnded("all", ())), True),
        (added(0, IncarnationEnded("unflushed", None)), False),
        (added(STORE, IncarnationEnded("unflushed", None)), True),
        (added(0, HighWatermarkAdvanced(T0, high_watermark=500, leader_epoch=0)), False),
        (added(0, HighWatermarkAdvanced(T0, high_watermark=500, leader_epoch=99)), True),
        (added(0, BecameLeader(T0, leader_epoch=99, log_end=0, high_watermark=0)), False),
    ],
)
def test_tolerance_ends_by_lost_records_and_by_leaders_that_begin_short(
    failover: Recording, change: Change, tolerant: bool
) -> None:
    assert replayed(failover, change).tolerant == {T0: tolerant}


def test_a_loss_is_a_violation_within_tolerance_only(tmp_path: Path) -> None:
    lossy = recorded("v3-unclean-election", tmp_path / "lossy")
    checked = check(lossy)
    assert (checked.violations, checked.within_tolerance) == ([], {"t-0": False})
    path = tmp_path / "lossy" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nothing_may_be_lost": True}))
    held = check(Recording(tmp_path / "lossy"))
    assert "History.LostRecord" in {violation.invariant for violation in held.violations}
