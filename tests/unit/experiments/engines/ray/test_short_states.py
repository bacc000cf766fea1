"""`await` on ray judges every state that the controller has published, those that end before the next poll included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from actors.nodes import NodeSnapshot, PollReport
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.ray import engine as ray_engine
from experiments.engines.ray.engine import RayEngine
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import AwaitStep
from experiments.scenarios.runner import Runner, StepFailedError
from protocol.config import ClusterConfig
from protocol.events.controller import PartitionChanged
from protocol.features import Generation
from protocol.ids import NodeId
from tests.unit.partition_events import partition_changed

CONTROLLER = 1000


def changed(partition_epoch: int, recovering: bool, isr: tuple[int, ...] = (1,)) -> PartitionChanged:
    return partition_changed("t", 1, 3, partition_epoch, isr, recovering=recovering)


class PolledCluster:
    """Stands for `ActorCluster`: each poll returns the next of `polls`, and no snapshot ever shows a state."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.polls: list[list[PartitionChanged]] = []

    def poll(self, wait_s: float) -> list[tuple[NodeId, PollReport]]:
        traces = self.polls.pop(0) if self.polls else []
        return [(CONTROLLER, PollReport([(1, trace) for trace in traces], [], False, None))]

    def snapshots(self, wait_s: float) -> list[tuple[NodeId, NodeSnapshot]]:
        return []

    def running(self) -> Sequence[NodeId]:
        return [CONTROLLER]

    def is_running(self, node: NodeId) -> bool:
        return True

    def crash(self, node: NodeId, kind: str, count: int) -> list[PollReport]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> RayEngine:
    monkeypatch.setattr(ray_engine, "ActorCluster", PolledCluster)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    return RayEngine(ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966)))


def runner(engine: RayEngine, *polls: list[PartitionChanged]) -> Runner:
    """A runner whose cluster's polls return these events."""
    engine.cluster.polls = list(polls)  # type: ignore[attr-defined]
    topic = {"name": "t", "assignments": [[0, 1]]}
    raw: dict[str, object] = {
        "name": "s",
        "cluster": {"brokers": 2, "controllers": 1},
        "topics": [topic],
        "steps": [{"wait": "1s"}],
    }
    return Runner(scenario_from(raw, "s.yaml"), engine)


def awaiting(**fields: Any) -> AwaitStep:
    return AwaitStep(topic="t", within="200ms", **fields)  # type: ignore[arg-type]


def test_a_state_that_the_same_poll_ends_is_seen(engine: RayEngine) -> None:
    run = runner(engine, [], [changed(1, recovering=True), changed(2, recovering=False)])
    assert run._await(awaiting(leader_recovery_state="recovering", isr=[1]))


def test_a_state_that_ended_with_the_poll_that_ended_the_step_before_is_seen(engine: RayEngine) -> None:
    run = runner(engine, [changed(1, recovering=True), changed(2, recovering=False)])
    assert run._await(awaiting(partition_epoch=2))
    assert run._await(awaiting(leader_recovery_state="recovering"))


def test_a_state_of_before_an_action_is_not_seen(engine: RayEngine) -> None:
    run = runner(engine, [changed(1, recovering=True), changed(2, recovering=False)])
    run._await(awaiting(partition_epoch=2))
    engine.crash(0, Loss("none"))
    with pytest.raises(StepFailedError):
        run._await(awaiting(leader_recovery_state="recovering"))


def test_all_that_is_expected_holds_in_one_state(engine: RayEngine) -> None:
    run = runner(engine, [changed(1, recovering=True), changed(2, recovering=False, isr=(0, 1))])
    with pytest.raises(StepFailedError):
        run._await(awaiting(leader_recovery_state="recovering", isr=[0, 1]))


def test_offsets_are_not_judged_by_published_states(engine: RayEngine) -> None:
    run = runner(engine, [changed(1, recovering=True)])
    with pytest.raises(StepFailedError):
        run._await(awaiting(leader_recovery_state="recovering", high_watermark=7))
