"""LeaderRecoveryState on running nodes: set by an unclean election, seen by all, cleared after the leader's hook."""

from __future__ import annotations

import pytest

from experiments.engines.admin_requests import elect_leader
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.cluster import SimCluster
from protocol.config import ClusterConfig, ConfigError
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, NO_LEADER
from protocol.messages.partitions import ElectionType
from protocol.metadata.partition import LeaderRecoveryState
from tests.sim.workload_helpers import ContinuouslyWrittenCluster

RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING
HOOK_MS = 10_000
GENERATIONS = [Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966]


def elected_uncleanly(
    generation: Generation = Generation.KIP_966, hook: str = "experiments.scenarios.hooks:wait_10s"
) -> ContinuouslyWrittenCluster:
    """An operator has designated broker 1 as leader, which lacks records of broker 0; 0 and 2 are down."""
    cluster = ContinuouslyWrittenCluster(generation, brokers=3, min_isr=1, unclean_leader_hook=hook)
    cluster.lose(1, 2, 0)
    cluster.start_and_wait(1)
    assert (cluster.state.leader, cluster.state.leader_recovery_state) == (NO_LEADER, RECOVERED)
    assert cluster.administer(elect_leader("t", 0, ElectionType.DESIGNATION, 1)) is ErrorCode.NONE
    assert (cluster.state.leader, cluster.state.isr) == (1, (1,))
    assert cluster.state.leader_recovery_state is RECOVERING
    return cluster


def routines(cluster: ContinuouslyWrittenCluster) -> list[tuple[int, object]]:
    """The broker and leader epoch of each run of the hook."""
    return [(node, detail["leader_epoch"]) for _, node, detail in cluster.traced("data_loss_routine")]


def seen_by(cluster: ContinuouslyWrittenCluster, broker: int) -> LeaderRecoveryState:
    image = cluster.broker(broker).context.image
    [state] = [state for _, state in image.partitions()]
    return state.leader_recovery_state


def check_recovers(cluster: ContinuouslyWrittenCluster) -> None:
    cluster.run_until(lambda state: state.leader_recovery_state is RECOVERED and len(state.isr) == 3)
    cluster.run_for(1_000)
    assert [seen_by(cluster, broker) for broker in (0, 1, 2)] == [RECOVERED] * 3


@pytest.mark.covers("M57", "C1", "C3", "C5", "C7", "C8", "C11")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_all_nodes_see_the_recovery_state_and_the_leader_clears_it_after_its_hook(generation: Generation) -> None:
    cluster = elected_uncleanly(generation)
    epoch = cluster.state.leader_epoch
    cluster.start(0, 2)
    cluster.run_for(5_000)
    assert [seen_by(cluster, broker) for broker in (0, 1, 2)] == [RECOVERING] * 3
    assert cluster.replica(2).log.end_offset == cluster.replica(1).log.end_offset, "2 is in step"
    assert (cluster.state.isr, cluster.state.leader_epoch) == ((1,), epoch), "and waits"
    check_recovers(cluster)
    assert routines(cluster) == [(1, epoch)]
    [(began_ms, _, _)] = cluster.traced("data_loss_routine")
    [(handled_ms, _, _)] = cluster.traced("data_loss_handled")
    assert handled_ms - began_ms == HOOK_MS
    cleared_ms = next(
        time_ms for time_ms, _, detail in cluster.traced("partition") if time_ms > began_ms and not detail["recovering"]
    )
    assert handled_ms < cleared_ms < handled_ms + 100
    assert cluster.state.leader_epoch == epoch
    assert not cluster.engine.violations()


@pytest.mark.covers("C9", "M57")
@pytest.mark.parametrize("after_ms", [100, 9_990, 9_999, 10_000, 10_001, 10_003])
def test_the_recovery_state_survives_a_crash_of_the_controller(after_ms: int) -> None:
    """The controller crashes during the routine, or just as the leader proposes to clear the state."""
    cluster = elected_uncleanly()
    cluster.run_for(50)
    [(began_ms, _, _)] = cluster.traced("data_loss_routine")
    cluster.start(0, 2)
    cluster.run_for(began_ms + after_ms - cluster.engine.now_ms())
    before = cluster.state.leader_recovery_state
    cluster.bounce_controller()
    assert cluster.state.leader_recovery_state is before
    check_recovers(cluster)
    assert [node for node, _ in routines(cluster)] == [1]


@pytest.mark.covers("C9", "N13", "M57")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_recovery_state_survives_a_crash_of_the_leader_and_a_clean_election(generation: Generation) -> None:
    cluster = elected_uncleanly(generation)
    first = cluster.state.leader_epoch
    cluster.run_for(3_000)
    cluster.crash(1)
    cluster.run_until(lambda state: state.leader == NO_LEADER)
    assert cluster.state.leader_recovery_state is RECOVERING
    cluster.start(1)
    cluster.run_until(lambda state: state.leader == 1)
    assert cluster.state.leader_recovery_state is RECOVERING
    second = cluster.state.leader_epoch
    cluster.start(0, 2)
    cluster.run_for(9_000)
    assert cluster.state.leader_recovery_state is RECOVERING, "the routine has started again"
    check_recovers(cluster)
    assert routines(cluster) == [(1, first), (1, second)]
    assert not cluster.engine.violations()


def crash_before_clearing(cluster: ContinuouslyWrittenCluster) -> None:
    """Cuts the leader off from the controller at the moment when its hook is over, and crashes it."""
    handled: list[int] = []
    sim = cluster.engine.cluster

    def cut() -> None:
        sim.set_link(handled[0], FIRST_CONTROLLER, False)
        sim.set_link(FIRST_CONTROLLER, handled[0], False)

    def observe(now_ms: int, node: int, trace: Trace) -> None:
        if trace.kind == "data_loss_handled" and not handled:
            handled.append(node)
            sim.call_at(now_ms, cut)

    sim.trace_observers.append(observe)
    assert cluster.engine.run_until(lambda: bool(handled), HOOK_MS + 1_000)
    cluster.run_for(1_000)
    assert handled == [1]
    assert cluster.state.leader_recovery_state is RECOVERING
    cluster.crash(1)
    cluster.engine.heal_links()


@pytest.mark.covers("M58", "N13")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_next_clean_leader_runs_its_own_hook(generation: Generation) -> None:
    cluster = elected_uncleanly(generation)
    crash_before_clearing(cluster)
    cluster.run_until(lambda state: state.leader == NO_LEADER)
    cluster.start(1)
    cluster.run_until(lambda state: state.leader == 1)
    assert cluster.state.leader_recovery_state is RECOVERING
    cluster.start(0, 2)
    check_recovers(cluster)
    assert [node for node, _ in routines(cluster)] == [1, 1]


@pytest.mark.covers("M58", "C12")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_next_unclean_leader_runs_its_own_hook(generation: Generation) -> None:
    cluster = elected_uncleanly(generation)
    crash_before_clearing(cluster)
    cluster.run_until(lambda state: state.leader == NO_LEADER)
    cluster.start_and_wait(2)
    assert cluster.administer(elect_leader("t", 0, ElectionType.UNCLEAN)) is ErrorCode.NONE
    assert (cluster.state.leader, cluster.state.leader_recovery_state) == (2, RECOVERING)
    cluster.start(0, 1)
    check_recovers(cluster)
    assert [node for node, _ in routines(cluster)] == [1, 2]
    logs = [[batch.payload for batch in cluster.replica(broker).log.storage.read(0, 2**60)] for broker in (0, 1, 2)]
    assert logs[0] == logs[1] == logs[2]


def test_without_a_hook_the_state_is_cleared_at_once() -> None:
    cluster = elected_uncleanly(hook="")
    cluster.run_for(100)
    assert cluster.state.leader_recovery_state is RECOVERED
    assert len(cluster.traced("data_loss_handled")) == 1


def test_an_unknown_hook_is_an_error_before_the_run() -> None:
    config = ClusterConfig.of(Generation.KIP_966, {"unclean.leader.hook": "experiments.scenarios.hooks:nothing"})
    with pytest.raises(ConfigError, match=r"unclean\.leader\.hook: found 'experiments\.scenarios\.hooks:nothing'"):
        SimCluster(ClusterSpec(1, 1, config))
