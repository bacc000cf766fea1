"""Topics and partitions are created and removed while brokers and the controller fail: no removed record returns.

Every run is watched by the invariants (`experiments/check`).
"""

from __future__ import annotations

from typing import Any

import pytest

from experiments.engines import admin_requests
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.loader import scenario_from
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import FIRST_CONTROLLER, TopicPartition
from protocol.messages.admin import AdminRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.sim.cluster_helpers import KEEP, ClusterBench
from tests.sim.scenario_helpers import run_scenario, running_engine

pytestmark = pytest.mark.slow

GENERATIONS = [generation.value for generation in LOG_GENERATIONS]
P1 = TopicPartition("t", 1)

Steps = list[dict[str, Any]]


def check_steps(steps: Steps, generation: str = "kip-966") -> None:
    """The steps pass without a violation; topic `t` has partitions 0 and 1 on brokers 0, 1, 2."""
    raw: dict[str, object] = {
        "name": "inline",
        "cluster": {"brokers": 4, "generation": generation},
        "topics": [{"name": "t", "assignments": [[0, 1, 2], [0, 1, 2]], "config": {"min.insync.replicas": 2}}],
        "steps": steps,
    }
    result = run_scenario(scenario_from(raw, "inline"))
    assert result.passed, (result.steps[-1], result.violations)


def produce(records: int) -> dict[str, Any]:
    return {"produce": {"topic": "t", "partition": 1, "records": records}}


def expect(**fields: object) -> dict[str, Any]:
    return {"expect": {"topic": "t", "partition": 1} | fields}


def awaited(**fields: object) -> dict[str, Any]:
    return {"await": {"topic": "t", "partition": 1, "within": "60s"} | fields}


REMOVED = {"remove_partitions": {"name": "t", "partitions": [1]}}
MANY_CHANGES: Steps = [{"configure": {"config": {"flush.ms": 1_000 + number}}} for number in range(80)]
"""More records than a broker may lag behind before it is sent a snapshot."""


def added(*replicas: int) -> dict[str, Any]:
    return {"add_partitions": {"name": "t", "assignments": [list(replicas)]}}


@pytest.mark.covers("M36", "A34", "A21")
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("changes", [[], MANY_CHANGES], ids=["log", "snapshot"])
@pytest.mark.parametrize("loss", ["none", "unflushed", "all"])
@pytest.mark.parametrize("role", ["leads", "follows", "has none"])
def test_a_broker_that_was_down_restores_no_old_record(role: str, loss: str, changes: Steps, generation: str) -> None:
    """Broker 2 slept through the removal; it is made leader of the new partition, or follows, or holds it no more."""
    replicas = (0, 1, 3) if role == "has none" else (2, 0, 1)
    ends = dict.fromkeys(replicas, 3)
    lead = (
        [{"elect": {"topic": "t", "partition": 1, "type": "preferred"}}, awaited(leader=2)] if role == "leads" else []
    )
    check_steps(
        [
            produce(6),
            {"wait": "6s"},
            {"flush": {"broker": 2}},
            {"crash": {"broker": 2, "lose": loss}},
            awaited(isr=[0, 1]),
            REMOVED,
            *changes,
            added(*replicas),
            produce(3),
            {"start": {"broker": 2}},
            awaited(isr=list(replicas), log_end_offset=ends),
            *lead,
            expect(visible=3, lost_acked=0, high_watermark_regressions=0),
            {"crash": {"broker": 0}},
            awaited(isr=[broker for broker in replicas if broker]),
            produce(1),
            expect(visible=4, lost_acked=0, high_watermark_regressions=0),
        ],
        generation,
    )


class Bench(ClusterBench):
    """Brokers 0 to 3 on the sim engine; `t` has two partitions on 0, 1, 2 and min ISR 2."""

    def __init__(self, seed: int = 0, **options: bool) -> None:
        config = ClusterConfig.of(Generation.KIP_966)
        self.engine = running_engine(2_000, ClusterSpec(4, 1, config, seed), NetworkModel(1, 2), **options)
        super().__init__(self.engine.cluster)
        self.administer(admin_requests.create_topic("t", ((0, 1, 2), (0, 1, 2)), {"min.insync.replicas": 2}))
        self.engine.run_for(1_000)

    def restart_controller(self, down_ms: int) -> None:
        self.engine.crash(FIRST_CONTROLLER, KEEP)
        self.engine.run_for(down_ms)
        self.engine.start(FIRST_CONTROLLER)

    def payloads(self, broker: int, partition: TopicPartition = P1) -> list[bytes]:
        return [batch.payload for batch in self.engine.log(broker, partition)]


def requests_of_a_day() -> list[AdminRequest]:
    return [
        admin_requests.add_partitions("t", 2, ((1, 2, 3),)),
        admin_requests.remove_partitions("t", (1, 2)),
        admin_requests.add_partitions("t", 1, ((2, 3, 1), (3, 0, 1))),
        admin_requests.remove_partitions("t", (2,)),
    ]


@pytest.mark.covers("M45", "A21", "A22")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("after_ms", range(0, 12, 2))
@pytest.mark.parametrize("down_ms", [10, 30_000])
def test_a_controller_crash_between_the_steps_converges(after_ms: int, down_ms: int, seed: int) -> None:
    """Each request is made again until it is answered; done twice it would be refused, so none is done twice."""
    bench = Bench(seed)
    bench.produce(partition=1, payload=b"old")
    bench.engine.run_for(500)
    for request in requests_of_a_day():
        found = bench.administer(request)
        bench.engine.run_for(after_ms)
        bench.restart_controller(down_ms)
        bench.engine.run_for(40_000)
        while bench.error(found) not in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS):
            found = bench.administer(request)
            bench.engine.run_for(40_000)
    written = bench.produce(partition=1, payload=b"new")
    bench.engine.run_for(120_000)
    view = bench.engine.view()
    assert view is not None
    assert sorted(view.partitions) == [TopicPartition("t", 0), P1]
    assert sorted(view.partitions[P1].isr) == [1, 2, 3]
    assert bench.error(written) is ErrorCode.NONE
    assert [bench.payloads(broker) for broker in (1, 2, 3)] == [[b"new"]] * 3
    assert [bench.engine.replica(broker, TopicPartition("t", 2)) for broker in range(4)] == [None] * 4
    assert bench.engine.replica(0, P1) is None
    assert bench.engine.violations() == []


def test_a_restarted_controller_does_not_trace_replayed_records() -> None:
    """Replayed records were traced when they were committed; observers would take a second event for a new change."""
    bench = Bench()
    bench.administer(admin_requests.remove_partitions("t", (1,)))
    bench.engine.run_for(1_000)
    bench.administer(admin_requests.add_partitions("t", 1, ((0, 1, 2),)))
    bench.administer(admin_requests.delete_topic("no-such-topic"))
    bench.engine.run_for(1_000)
    bench.produce(partition=1, payload=b"new")
    bench.engine.run_for(1_000)
    assert bench.engine.suite.truth.of(P1).committed_end == 1
    seen = len(bench.engine.traces())
    bench.restart_controller(10)
    kinds = [event.trace.kind for event in bench.engine.traces()[seen:] if event.node == FIRST_CONTROLLER]
    assert [kind for kind in kinds if not kind.startswith("quorum_")] == ["controller_started"]
    assert bench.engine.suite.truth.of(P1).committed_end == 1


@pytest.mark.covers("A19", "J19")
def test_the_controller_places_a_topic_that_is_created_by_count() -> None:
    bench = Bench(paranoid=True)
    wanted = CreatableTopic(name="wide", num_partitions=8, replication_factor=3)
    bench.engine.crash(3, KEEP)
    bench.engine.run_for(30_000)
    bench.administer(CreateTopicsRequest(correlation_id=0, topics=(wanted,)))
    bench.engine.run_for(2_000)
    view = bench.engine.view()
    assert view is not None
    placed = {name: state for name, state in view.partitions.items() if name.topic == "wide"}
    assert len(placed) == 8
    assert all(set(state.replicas) == set(state.isr) == {0, 1, 2} for state in placed.values())
    assert {state.leader for state in placed.values()} == {0, 1, 2}
    for name, state in placed.items():
        replica = bench.engine.replica(state.leader, name)
        assert replica is not None
        assert replica.leads
    assert bench.engine.violations() == []


@pytest.mark.parametrize("seed", range(8))
def test_partitions_are_added_and_removed_under_writes_and_crashes(seed: int) -> None:
    """After crashes and stale leaders every replica finally has the records of the last incarnation."""
    bench = Bench(seed)
    writes: dict[int, bytes] = {}
    for incarnation in range(6):
        victim = (seed + incarnation) % 3
        bench.engine.crash(victim, KEEP)
        writes = {}
        for number in range(4):
            payload = f"{incarnation}/{number}".encode()
            writes[bench.produce(partition=1, payload=payload)] = payload
            bench.engine.run_for(1 + 3 * (seed + number))
        if incarnation < 5:
            bench.administer(admin_requests.remove_partitions("t", (1,)))
            bench.administer(
                admin_requests.add_partitions(
                    "t", 1, (((incarnation + 1) % 3, (incarnation + 2) % 3, incarnation % 3),)
                )
            )
        bench.engine.run_for((seed * 7 + incarnation) % 20 * 1_000)
        bench.engine.start(victim)
        bench.engine.run_for(200 * incarnation)
    bench.engine.run_for(200_000)
    logs = [bench.payloads(broker) for broker in range(3)]
    assert logs[0] == logs[1] == logs[2]
    acknowledged = {payload for command, payload in writes.items() if bench.error(command) is ErrorCode.NONE}
    assert acknowledged <= set(logs[0])
    assert bench.engine.violations() == []
