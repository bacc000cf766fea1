"""Reassignments on running nodes: data is copied under writes and failures, with all invariants checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from experiments.engines.admin_requests import alter_config, elect_leader, reassign
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import NO_LEADER
from protocol.kafka_release import KafkaRelease
from protocol.messages.partitions import ElectionType
from protocol.metadata.partition import PartitionState
from tests.sim.workload_helpers import ContinuouslyWrittenCluster

pytestmark = pytest.mark.slow

GENERATIONS = [Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966]
AFTER_MS = [0, 1, 3, 7, 20, 60, 90, 150, 300]
"""How long after the move began something fails: while data is copied, and around the completion."""


def moved_to(*replicas: int) -> Callable[[PartitionState], bool]:
    def is_there(state: PartitionState) -> bool:
        return state.replicas == replicas and not state.adding_replicas and not state.removing_replicas

    return is_there


def move(cluster: ContinuouslyWrittenCluster, *replicas: int) -> None:
    assert cluster.administer(reassign("t", 0, replicas)) is ErrorCode.NONE


def cancel(cluster: ContinuouslyWrittenCluster) -> ErrorCode:
    return cluster.administer(reassign("t", 0, None))


def is_moving(state: PartitionState) -> bool:
    return bool(state.adding_replicas or state.removing_replicas)


@pytest.mark.covers("M44", "E32")
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("target", [(0, 1, 3), (3, 1, 2), (3, 4), (3,)], ids=str)
def test_a_move_copies_the_data_and_drops_the_old_replicas(generation: Generation, target: tuple[int, ...]) -> None:
    """With and without the leader among those that go."""
    cluster = ContinuouslyWrittenCluster(generation, min_isr=1)
    move(cluster, *target)
    assert is_moving(cluster.state)
    grown = cluster.state
    assert set(grown.replicas) == {0, 1, 2, *target}
    cluster.run_until(moved_to(*target))
    assert cluster.state.leader in target
    cluster.check_settled()
    for broker in {0, 1, 2, 3, 4}.difference(target):
        assert not cluster.has_replica(broker)


def moving(after_ms: int, generation: Generation = Generation.KIP_966) -> ContinuouslyWrittenCluster:
    """A cluster whose partition began to move to 1, 2, 3 that long ago."""
    cluster = ContinuouslyWrittenCluster(generation, seed=after_ms)
    move(cluster, 1, 2, 3)
    cluster.run_for(after_ms)
    return cluster


def leader_fails(cluster: ContinuouslyWrittenCluster) -> None:
    leader = cluster.state.leader
    cluster.crash(leader)
    cluster.run_until(lambda state: state.leader not in (leader, NO_LEADER))
    cluster.start(leader)


def new_replica_fails(cluster: ContinuouslyWrittenCluster) -> None:
    cluster.crash(3)
    cluster.run_for(30_000)
    cluster.start(3)


def leader_and_controller_fail(cluster: ContinuouslyWrittenCluster) -> None:
    leader = cluster.state.leader
    cluster.crash(leader)
    cluster.bounce_controller()
    cluster.run_until(moved_to(1, 2, 3))
    cluster.start(leader)


MIDWAY = [
    *((leader_fails, generation) for generation in GENERATIONS),
    (new_replica_fails, Generation.KIP_966),
    *((ContinuouslyWrittenCluster.bounce_controller, generation) for generation in GENERATIONS),
    (leader_and_controller_fail, Generation.KIP_966),
]


@pytest.mark.covers("M44")
@pytest.mark.parametrize("after_ms", AFTER_MS)
@pytest.mark.parametrize(("fail", "generation"), MIDWAY)
def test_a_move_is_completed_after_a_failure_midway(
    fail: Callable[[ContinuouslyWrittenCluster], None], generation: Generation, after_ms: int
) -> None:
    cluster = moving(after_ms, generation)
    fail(cluster)
    cluster.run_until(moved_to(1, 2, 3))
    cluster.check_settled()


@pytest.mark.covers("M44", "E33")
@pytest.mark.parametrize("after_ms", AFTER_MS)
def test_a_move_is_taken_back_midway(after_ms: int) -> None:
    cluster = moving(after_ms)
    was_moving = is_moving(cluster.state)
    assert cancel(cluster) in ((ErrorCode.NONE,) if was_moving else (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,))
    assert set(cluster.state.replicas) == ({0, 1, 2} if was_moving else {1, 2, 3})
    cluster.check_settled()
    assert not cluster.has_replica(3 if was_moving else 0)


@pytest.mark.covers("M44")
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("after_ms", [0, 7, 60, 150])
def test_a_move_is_replaced_midway(generation: Generation, after_ms: int) -> None:
    cluster = ContinuouslyWrittenCluster(generation, seed=after_ms)
    move(cluster, 1, 2, 3)
    cluster.run_for(after_ms)
    move(cluster, 4, 1)
    cluster.run_until(moved_to(4, 1))
    cluster.check_settled()
    for broker in (0, 2, 3):
        assert not cluster.has_replica(broker)


@pytest.mark.covers("M75", "E32", "E33", "N31")
def test_a_reassignment_that_would_fall_below_min_isr_waits() -> None:
    cluster = ContinuouslyWrittenCluster()
    cluster.lose(1, 2)
    move(cluster, 1, 2, 3)
    cluster.run_until(lambda state: 3 in state.isr)
    cluster.run_for(60_000)
    assert is_moving(cluster.state), "3 alone would be left of the final assignment"
    assert cancel(cluster) is ErrorCode.INVALID_REPLICA_ASSIGNMENT, "and 0 alone of the first one"
    cluster.start(1)
    cluster.run_until(moved_to(1, 2, 3))
    assert sorted(cluster.state.isr) == [1, 3]
    cluster.start(2)
    cluster.check_settled()


@pytest.mark.covers("E33", "E35")
@pytest.mark.parametrize("strategy", ["balanced", "proactive"])
@pytest.mark.parametrize("original", [None, (0, 1, 2), (2, 1, 0)], ids=["cancel", "same order", "other order"])
def test_a_reassignment_that_only_removes_is_not_cancelled_below_min_isr(
    original: tuple[int, ...] | None, strategy: str
) -> None:
    cluster = ContinuouslyWrittenCluster(unclean_recovery_strategy=strategy)
    cluster.lose(0, 1)
    move(cluster, 0, 1)
    back = reassign("t", 0, original)
    if strategy == "balanced":
        assert cluster.administer(back) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert is_moving(cluster.state)
        cluster.start(0)
        cluster.run_until(lambda state: sorted(state.isr) == [0, 2])
    assert cluster.administer(back) is ErrorCode.NONE
    assert (set(cluster.state.replicas), is_moving(cluster.state)) == ({0, 1, 2}, False)
    cluster.start(*(broker for broker in (0, 1) if broker not in cluster.state.isr))
    cluster.check_settled()


@pytest.mark.covers("L16", "E32")
@pytest.mark.parametrize(
    ("generation", "release", "completes"),
    [
        (Generation.KIP_966, KafkaRelease.V4_4, True),
        (Generation.KIP_966_ELR, KafkaRelease.V4_1_2, False),
        (Generation.KIP_966_ELR, KafkaRelease.V4_3, True),
    ],
)
def test_a_replica_that_is_down_does_not_delay_a_reassignment(
    generation: Generation, release: KafkaRelease, completes: bool
) -> None:
    cluster = ContinuouslyWrittenCluster(generation, kafka_release=release)
    cluster.lose(2)
    move(cluster, 0, 2, 3)
    cluster.run_for(60_000)
    assert is_moving(cluster.state) is not completes
    cluster.start(2)
    cluster.run_until(moved_to(0, 2, 3))
    cluster.check_settled()


@pytest.mark.covers("M76", "E34")
def test_an_elr_member_that_is_reassigned_away_is_not_eligible() -> None:
    cluster = ContinuouslyWrittenCluster()
    cluster.lose(1)
    cluster.crash(2)
    cluster.run_until(lambda state: state.elr == (2,))
    move(cluster, 0, 3, 4)
    cluster.run_until(moved_to(0, 3, 4))
    assert (cluster.state.elr, cluster.state.last_known_elr) == ((), ())
    cluster.start(1, 2)
    cluster.check_settled()
    for broker in (1, 2):
        assert not cluster.has_replica(broker), "they were down when they lost it"


@pytest.mark.covers("E35")
def test_a_cancellation_that_loses_records_is_left_to_a_recovery() -> None:
    """Both original replicas are gone before 2 has been written to alone; the user wants 0 back all the same."""
    cluster = ContinuouslyWrittenCluster(replicas=(0, 1), min_isr=1)
    cluster.lose(1)
    move(cluster, 2, 1, 3)
    cluster.crash(3)
    cluster.run_until(lambda state: 2 in state.isr)
    cluster.crash(0)
    cluster.run_until(lambda state: state.isr == (2,))
    cluster.run_for(5_000)
    assert cancel(cluster) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    allowed = alter_config("t", {"unclean.recovery.strategy": "proactive"})
    assert cluster.administer(allowed) is ErrorCode.NONE
    assert cancel(cluster) is ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no original replica is active"
    cluster.start_and_wait(1)
    assert cancel(cluster) is ErrorCode.NONE
    cluster.run_until(lambda state: state.leader != NO_LEADER)
    unclean = [detail for _, _, detail in cluster.traced("partition") if detail["recovering"]]
    assert [(detail["leader"], detail["isr"]) for detail in unclean] == [(1, (1,))]
    cluster.start(0)
    cluster.run_until(lambda state: sorted(state.isr) == [0, 1])


@pytest.mark.covers("F22", "F23", "F24", "M74", "M63")
def test_a_designated_leader_leads_and_the_others_follow_it() -> None:
    """The named replica leads, even where another has more records; a partition with a leader is not changed."""
    cluster = ContinuouslyWrittenCluster(min_isr=1)

    def designate(broker: int) -> ErrorCode:
        return cluster.administer(elect_leader("t", 0, ElectionType.DESIGNATION, broker))

    assert designate(1) is ErrorCode.ELECTION_NOT_NEEDED
    cluster.lose(1, 2, 0)
    assert cluster.state.leader == NO_LEADER
    assert designate(1) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert designate(3) is ErrorCode.INVALID_REQUEST
    cluster.start_and_wait(1)
    assert cluster.state.leader == NO_LEADER
    assert designate(1) is ErrorCode.NONE
    cluster.run_until(lambda state: state.leader == 1 and not state.leader_recovery_state)
    cluster.start(0, 2)
    cluster.run_until(lambda state: sorted(state.isr) == [0, 1, 2])
    cluster.run_for(60_000)
    assert not cluster.engine.violations()
    logs = [[batch.payload for batch in cluster.replica(broker).log.storage.read(0, 2**60)] for broker in (0, 1, 2)]
    assert logs[0] == logs[1] == logs[2]
    assert not set(cluster.acknowledged()) <= set(logs[0]), "what only 0 had is the price"
