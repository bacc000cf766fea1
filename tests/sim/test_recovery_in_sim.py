"""Unclean recovery under the virtual clock: faults during a recovery, message counts, and toggling the flag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines import admin_requests
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.network import Disturbance
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner, ScenarioResult
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.events.registry import detail_of
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, NO_LEADER, RECOVERY_MANAGER, NodeId, TopicPartition
from protocol.messages.base import Message
from protocol.messages.cluster import UpgradeType
from protocol.messages.commands import AdminCommand, AdminOutcome, ShutdownCommand
from protocol.messages.partitions import ElectionType
from protocol.messages.recovery import (
    MAX_PARTITIONS_PER_REQUEST,
    CancelRecoveries,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    RecoverPartitions,
    RecoveryResults,
)
from protocol.metadata.partition import LeaderRecoveryState
from tests.sim.partition_helpers import Bench
from tests.sim.scenario_helpers import running_engine, spec_of

T0 = TopicPartition("t", 0)
UNCLEAN = Loss("none")


class Lost(Bench):
    """`t-0` on brokers 0, 1, 2 with min ISR 2 has records, and then everyone crashes; the last known ELR will be who is
    in the ELR now.
    """

    def __init__(self, strategy: str = "balanced", **config: object) -> None:
        super().__init__(config={"unclean.recovery.strategy": strategy} | config)
        self.seen: list[tuple[int, NodeId, NodeId, Message]] = []
        self.cluster.on_message = self._note
        self.acknowledged = [self.produce() for _ in range(5)]
        self.run_until(4_000)
        for broker in range(3):
            self.cluster.crash(broker, UNCLEAN)
        self.run_until(20_000)
        assert (self.state.leader, self.state.isr, len(self.state.elr)) == (NO_LEADER, (), 2)
        self.known = tuple(sorted(self.state.elr))
        [self.other] = {0, 1, 2} - set(self.known)

    def _note(self, source: NodeId, target: NodeId, message: Message) -> None:
        self.seen.append((self.cluster.now_ms, source, target, message))

    def times(self, kind: type[Message]) -> list[int]:
        return [time_ms for time_ms, _, _, message in self.seen if isinstance(message, kind)]

    def start(self, *brokers: int, wait_ms: int = 2_000) -> None:
        for broker in brokers:
            self.cluster.start(broker)
        self.run_until(self.cluster.now_ms + wait_ms)

    def start_but_no_answers(self) -> None:
        """Everyone is back, and nothing that brokers answer reaches the manager."""
        for broker in range(3):
            self.cluster.set_link(broker, RECOVERY_MANAGER, False)
        self.start(0, 1, 2)
        assert self.state.leader == NO_LEADER
        assert self.times(RecoverPartitions)

    def let_answers_pass(self) -> None:
        for broker in range(3):
            self.cluster.set_link(broker, RECOVERY_MANAGER, True)

    def details(self, kind: str) -> list[Mapping[str, object]]:
        return [detail_of(event.trace) for event in self.cluster.traces if event.trace.kind == kind]

    def kinds(self) -> list[str]:
        return [event.trace.kind for event in self.cluster.traces if event.trace.kind.startswith("recovery")]


@pytest.mark.covers("M59", "F4", "F11")
def test_a_balanced_recovery_waits_for_all_of_the_last_known_elr() -> None:
    cluster = Lost()
    cluster.start(cluster.other, cluster.known[0], wait_ms=60_000)
    assert (cluster.state.leader, cluster.kinds()) == (NO_LEADER, [])
    cluster.start(cluster.known[1])
    assert cluster.state.leader in cluster.known
    assert cluster.kinds() == ["recovery_began", "recovery"]


@pytest.mark.covers("F14", "M70")
@pytest.mark.parametrize("outage_ms", [0, 5_000])
def test_the_manager_crashes_during_a_recovery(outage_ms: int) -> None:
    cluster = Lost()
    cluster.start_but_no_answers()
    cluster.cluster.crash(RECOVERY_MANAGER, UNCLEAN)
    cluster.let_answers_pass()
    cluster.run_until(cluster.cluster.now_ms + outage_ms)
    assert cluster.state.leader == NO_LEADER
    cluster.start(RECOVERY_MANAGER, wait_ms=2_500)
    assert cluster.state.leader in cluster.known


@pytest.mark.covers("F14", "M70")
def test_the_manager_hangs_during_a_recovery() -> None:
    cluster = Lost()
    cluster.start_but_no_answers()
    cluster.cluster.pause(RECOVERY_MANAGER)
    cluster.let_answers_pass()
    cluster.run_until(cluster.cluster.now_ms + 20_000)
    assert cluster.state.leader == NO_LEADER
    cluster.cluster.resume(RECOVERY_MANAGER)
    cluster.run_until(cluster.cluster.now_ms + 2_500)
    assert cluster.state.leader in cluster.known


@pytest.mark.covers("F14", "M70")
@pytest.mark.parametrize("kind", [RecoverPartitions, RecoveryResults, CancelRecoveries])
def test_messages_between_controller_and_manager_may_be_lost(kind: type[Message]) -> None:
    cluster = Lost()
    ways = (FIRST_CONTROLLER, RECOVERY_MANAGER), (RECOVERY_MANAGER, FIRST_CONTROLLER)
    lossy = [Disturbance(source, target, "lose", only=(kind,)) for source, target in ways]
    for disturbance in lossy:
        cluster.cluster.disturb_link(disturbance)
    cluster.start(0, 1, 2, wait_ms=9_000)
    assert (cluster.state.leader == NO_LEADER) is (kind is not CancelRecoveries)
    for disturbance in lossy:
        cluster.cluster.clear_disturbance(disturbance)
    cluster.run_until(cluster.cluster.now_ms + 2_500)
    assert cluster.state.leader in cluster.known


@pytest.mark.covers("F15", "M68")
def test_the_controller_crashes_during_a_recovery() -> None:
    cluster = Lost()
    cluster.start_but_no_answers()
    [first] = cluster.details("recovery_began")
    cluster.cluster.crash(FIRST_CONTROLLER, UNCLEAN)
    cluster.let_answers_pass()
    cluster.run_until(cluster.cluster.now_ms + 3_000)
    cluster.start(FIRST_CONTROLLER, wait_ms=3_000)
    assert cluster.state.leader in cluster.known
    [elected] = cluster.details("recovery")
    assert elected["recovery_id"] != first["recovery_id"]


@pytest.mark.covers("F8", "F10", "M65")
def test_a_broker_answers_and_then_reboots_with_an_empty_log() -> None:
    cluster = Lost("proactive", **{"unclean.recovery.timeout.ms": 60_000})
    other, (first, second) = cluster.other, cluster.known
    for broker in (first, other):
        cluster.cluster.disks[broker].apply_loss(Loss("records", 2))
    cluster.cluster.set_link(first, RECOVERY_MANAGER, False)
    cluster.start(first)
    cluster.start(second)
    answers = [source for _, source, _, message in cluster.seen if isinstance(message, GetReplicaLogInfoResponse)]
    assert second in answers
    assert cluster.state.leader == NO_LEADER
    cluster.cluster.crash(second, Loss("all"))
    cluster.run_until(cluster.cluster.now_ms + 12_000)
    cluster.start(second)
    cluster.cluster.set_link(first, RECOVERY_MANAGER, True)
    cluster.run_until(cluster.cluster.now_ms + 60_000)
    assert cluster.state.leader == first, "the answer of the earlier incarnation would have won"


@pytest.mark.covers("F9", "F10", "M67")
def test_a_broker_with_stale_metadata_is_queried_until_it_has_caught_up() -> None:
    cluster = Lost("manual")
    cluster.start(0, 1, 2)
    behind = cluster.known[0]
    cluster.cluster.set_link(FIRST_CONTROLLER, behind, False)
    cluster.administer(admin_requests.reassign("t", 0, (1, 2, 0)))
    command = cluster.administer(admin_requests.elect_leader("t", 0, ElectionType.LONGEST_LOG_BALANCED))
    cluster.run_until(cluster.cluster.now_ms + 100)
    cluster.cluster.set_link(FIRST_CONTROLLER, behind, True)
    cluster.run_until(cluster.cluster.now_ms + 3_000)
    outcome = cluster.cluster.outcomes[command]
    assert isinstance(outcome, AdminOutcome)
    assert (outcome.error, cluster.state.leader in cluster.known) == (ErrorCode.NONE, True)


@pytest.mark.covers("H14")
def test_an_election_that_cannot_end_is_answered_after_a_minute() -> None:
    cluster = Lost("manual", **{"delivery.timeout.ms": 120_000})  # A client that waits longer than the request.
    cluster.start(0, 1, 2)
    cluster.cluster.set_link(RECOVERY_MANAGER, cluster.known[0], False)
    command = cluster.administer(admin_requests.elect_leader("t", 0, ElectionType.LONGEST_LOG_BALANCED))
    began_ms = cluster.cluster.now_ms
    cluster.run_until(began_ms + 59_900)
    assert command not in cluster.cluster.outcomes
    cluster.run_until(began_ms + 60_100)
    outcome = cluster.cluster.outcomes[command]
    assert isinstance(outcome, AdminOutcome)
    assert (outcome.error, cluster.state.leader) == (ErrorCode.REQUEST_TIMED_OUT, NO_LEADER)


@pytest.mark.covers("F16", "M72")
def test_an_eligible_replica_that_becomes_active_ends_a_recovery_and_late_answers_change_nothing() -> None:
    cluster = Bench(config={"unclean.recovery.strategy": "proactive"})
    cluster.cluster.crash(0, UNCLEAN)
    cluster.run_until(15_000)
    assert cluster.state.isr == (1, 2)
    cluster.cluster.crash(1, UNCLEAN)
    cluster.run_until(30_000)
    assert (cluster.state.leader, cluster.state.elr) == (2, (1,))
    cluster.cluster.command(2, ShutdownCommand())
    cluster.run_until(60_000)
    assert (cluster.state.leader, set(cluster.state.elr)) == (NO_LEADER, {1, 2})
    cluster.cluster.set_link(0, RECOVERY_MANAGER, False)
    cluster.cluster.start(0)
    cluster.run_until(63_000)
    assert cluster.state.leader == NO_LEADER
    cluster.cluster.start(2)
    cluster.run_until(63_500)
    assert (cluster.state.leader, cluster.state.leader_recovery_state) == (2, LeaderRecoveryState.RECOVERED)
    cluster.cluster.set_link(0, RECOVERY_MANAGER, True)
    cluster.run_until(75_000)
    assert (cluster.state.leader, cluster.state.leader_recovery_state) == (2, LeaderRecoveryState.RECOVERED)


@pytest.mark.covers("H8", "K5", "M73")
def test_disabling_recovery_cancels_a_running_one_and_elects_by_the_rules_of_the_first_phase() -> None:
    cluster = Lost()
    cluster.start_but_no_answers()
    last = cluster.state.last_known_leader
    cluster.administer(admin_requests.update_feature("unclean.recovery.enabled", 0, UpgradeType.SAFE_DOWNGRADE))
    cluster.run_until(cluster.cluster.now_ms + 500)
    assert cluster.state.leader == last
    assert cluster.times(CancelRecoveries)
    cluster.let_answers_pass()
    cluster.run_until(cluster.cluster.now_ms + 5_000)
    assert "recovery" not in cluster.kinds()


@pytest.mark.covers("F20", "M71")
@pytest.mark.slow
def test_five_thousand_leaderless_partitions_take_three_queries_per_broker() -> None:
    count = 5_000
    config = ClusterConfig.of(Generation.KIP_966)
    engine = CheckedEngine(ClusterSpec(3, 1, config))
    engine.suite.stop()
    cluster = engine.cluster
    sizes: dict[NodeId, list[int]] = {0: [], 1: [], 2: []}
    under_way: Counter[NodeId] = Counter()

    def count_messages(source: NodeId, target: NodeId, message: Message) -> None:
        if isinstance(message, GetReplicaLogInfoRequest):
            assert message.topic_partitions is not None
            sizes[target].append(sum(len(topic.partitions) for topic in message.topic_partitions))
            under_way[target] += 1
            assert under_way[target] == 1
        elif isinstance(message, GetReplicaLogInfoResponse):
            under_way[source] -= 1

    cluster.on_message = count_messages
    for node in engine.spec.node_ids:
        engine.start(node)
    engine.run_for(1_000)
    create = admin_requests.create_topic("t", ((0, 1, 2),) * count, {"min.insync.replicas": 2})
    engine.submit(AdminCommand(command_id=1, request=create))
    engine.run_for(2_000)
    for broker in range(3):
        cluster.crash(broker, UNCLEAN)
    engine.run_for(15_000)
    for broker in range(3):
        engine.start(broker)
    engine.run_for(5_000)
    view = engine.view()
    assert view is not None
    assert len(view.partitions) == count
    assert all(state.leader != NO_LEADER for state in view.partitions.values())
    expected = [MAX_PARTITIONS_PER_REQUEST, MAX_PARTITIONS_PER_REQUEST, count - 2 * MAX_PARTITIONS_PER_REQUEST]
    assert sizes == {0: expected, 1: expected, 2: expected}


# -- in scenarios ------------------------------------------------------------------------------------------------------


def scenario(strategy: str, *steps: dict[str, object]) -> ScenarioResult:
    """All brokers have seven records, broker 2 only the first four; then all brokers are down, 0 and 1 have lost all
    but two, and broker 2 comes back first.
    """
    text: dict[str, object] = {
        "name": "lost",
        "cluster": {"brokers": 3, "config": {"unclean.recovery.strategy": strategy}},
        "topics": [{"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}],
        "steps": [
            {"produce": {"topic": "t", "records": 4}},
            {"crash": {"broker": 2}},
            {"await": {"topic": "t", "isr": [0, 1], "within": "60s"}},
            {"produce": {"topic": "t", "records": 3}},
            {"crash": {"broker": 1, "lose": 5}},
            {"await": {"topic": "t", "isr": [0], "within": "60s"}},
            {"crash": {"broker": 0, "lose": 5}},
            {"await": {"topic": "t", "leader": -1, "within": "60s"}},
            *steps,
        ],
    }
    loaded = scenario_from(text, "inline")
    return Runner(loaded, CheckedEngine(spec_of(loaded, 0))).run()


@pytest.mark.covers("F27")
def test_a_scenario_reports_what_each_recovery_lost() -> None:
    result = scenario(
        "balanced",
        *({"start": {"broker": broker}} for broker in (2, 1, 0)),
        {"await": {"topic": "t", "leader": 2, "isr": [0, 1, 2], "within": "60s"}},
    )
    assert result.passed, result.steps[-1]
    [recovery] = result.recoveries
    assert (recovery.decided.leader, recovery.lost, recovery.decided.mode) == (2, 3, "balanced")
    assert [(broker, end) for broker, _, _, end in recovery.decided.answers] == [(0, 2), (1, 2), (2, 4)]
    assert result.losses.lost_acked == 3


@pytest.mark.covers("F14", "M70")
def test_a_scenario_injects_faults_into_the_manager() -> None:
    result = scenario(
        "proactive",
        {"cut": {"between": ["urm", "rest"]}},
        {"start": {"broker": 2}},
        {"wait": "3s"},
        {"expect": {"topic": "t", "leader": -1}},
        {"crash": {"urm": True}},
        {"heal": "all"},
        {"start": {"urm": True}},
        {"await": {"topic": "t", "leader": 2, "within": "10s"}},
        {"pause": {"urm": True}},
        {"resume": {"urm": True}},
        {"expect": {"topic": "t", "leader": 2}},
    )
    assert result.passed, result.steps[-1]
    assert [(recovery.lost, recovery.decided.absent) for recovery in result.recoveries] == [(3, (0, 1))]


@pytest.mark.covers("H5", "F12")
@pytest.mark.parametrize("changed", ["before", "meanwhile"])
def test_the_recovery_timeout_is_the_topics_config(changed: str) -> None:
    shorter = {"configure": {"topic": "t", "config": {"unclean.recovery.timeout.ms": 2_000}}}
    result = scenario(
        "proactive",
        *([shorter] if changed == "before" else []),
        {"cut": {"from": 1, "to": "urm"}},
        {"cut": {"from": "urm", "to": 2}},
        {"start": {"broker": 2}},
        {"start": {"broker": 1}},
        {"heal": {"from": "urm", "to": 2}},
        {"wait": "1s"},
        {"expect": {"topic": "t", "leader": -1}},
        *([shorter] if changed == "meanwhile" else []),
        {"await": {"topic": "t", "leader": 2, "within": "1500ms"}},
    )
    assert (result.passed, result.violations) == (True, []), result.steps[-1]
    assert [recovery.decided.silent for recovery in result.recoveries] == [(1,)]


@pytest.mark.covers("K8", "H6", "M73")
def test_the_manager_starts_when_recovery_is_enabled() -> None:
    engine = running_engine(1_000, ClusterSpec(1, 1, ClusterConfig.of(Generation.KIP_966_ELR)))
    assert not engine.is_running(RECOVERY_MANAGER)
    enable = admin_requests.update_feature("unclean.recovery.enabled", 1, UpgradeType.UPGRADE)
    engine.submit(AdminCommand(command_id=1, request=enable))
    engine.run_for(1_000)
    assert engine.is_running(RECOVERY_MANAGER)
