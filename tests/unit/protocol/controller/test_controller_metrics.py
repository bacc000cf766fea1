"""Counters, summaries and alerts of a controller node, by example."""

from __future__ import annotations

from random import Random

import pytest

from experiments.engines.admin_requests import alter_config, create_topic, elect_leader, reassign, update_feature
from experiments.engines.sim.disk import formatted_disk
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import ClusterConfig, Generation
from protocol.contract import Effect, Send
from protocol.controller import metrics
from protocol.controller.recovery_requests import RECOVERY_TIMER
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.controller import AlertRaised
from protocol.ids import RECOVERY_MANAGER
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Message
from protocol.messages.cluster import UpgradeType
from protocol.messages.control import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerState,
    PartitionIsrProposal,
)
from protocol.messages.partitions import ElectionType
from protocol.messages.recovery import (
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoverPartitions,
    RecoveryResults,
    ReplicaAnswer,
)
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, ControllerBench, config_of, registrations


class Bench:
    """A controller with brokers 0 to 3, and topic `t` on the first three of them."""

    def __init__(self, config: ClusterConfig | None = None, min_isr: int = 2, serve: bool = True) -> None:
        self.storage = formatted_disk()
        self.config = config or config_of()
        self.now_ms = 0
        self.effects: list[Effect] = []
        self.traces: list[Trace] = []
        self.number = 0
        self.start()
        if serve:
            for broker in range(4):
                self.come(broker)
            self.administer(create_topic("t", ((0, 1, 2),), {"min.insync.replicas": min_isr}))
            self.fetch(0, 1, 2, 3)

    def start(self) -> None:
        """The next incarnation of the controller, on the same log."""
        self.node = ControllerNode(CONTROLLER, [CONTROLLER], self.config, self.storage, Random(1))
        self.took(self.node.start(self.now_ms))

    def took(self, effects: list[Effect]) -> None:
        self.effects = effects
        self.traces += [effect for effect in effects if isinstance(effect, Trace)]

    def receive(self, sender: int, message: Message) -> None:
        self.took(self.node.receive(self.now_ms, sender, message))

    def come(self, broker: int, incarnation: str = "one", previous: int = -1) -> None:
        """Registers and is unfenced."""
        self.receive(
            broker,
            BrokerRegistrationRequest(
                correlation_id=1, broker_id=broker, incarnation_id=incarnation, previous_broker_epoch=previous
            ),
        )
        self.beat(broker)
        self.beat(broker)

    def beat(self, broker: int, **fields: object) -> BrokerHeartbeatResponse:
        image = self.node.state.image
        self.number += 1
        defaults = {"correlation_id": self.number, "broker_id": broker, "broker_epoch": image.broker_epoch(broker)}
        defaults["current_metadata_offset"] = image.next_offset
        self.receive(broker, BrokerHeartbeatRequest.model_validate(defaults | fields))
        [answer] = [e.message for e in self.effects if isinstance(e, Send) and e.to == broker][:1]
        assert isinstance(answer, BrokerHeartbeatResponse)
        return answer

    def fetch(self, *fetching: int) -> None:
        """Brokers ask for metadata from the end of the log on."""
        for broker in fetching:
            self.receive(broker, metadata_fetch(self.node, broker))

    def lose(self, broker: int) -> None:
        """The broker's session ends."""
        self.took(self.node.fire(self.now_ms, f"{SESSION_PREFIX}{broker}"))

    def administer(self, request: AdminRequest) -> None:
        self.receive(CLIENT, request)
        [answer] = [e.message for e in self.effects if isinstance(e, Send) and isinstance(e.message, AdminResponse)]
        assert answer.error is ErrorCode.NONE

    @property
    def partition(self) -> PartitionState:
        topic = self.node.state.image.topic_named("t")
        assert topic is not None
        return topic.partitions[0]

    def propose(self, *isr: int) -> None:
        image, state = self.node.state.image, self.partition
        proposal = PartitionIsrProposal(
            topic_id=image.topic_ids["t"],
            partition_id=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr=tuple(BrokerState(broker_id=b, broker_epoch=image.broker_epoch(b) or 0) for b in isr),
        )
        epoch = image.broker_epoch(state.leader) or 0
        self.number += 1
        request = AlterPartitionRequest(
            correlation_id=self.number, broker_id=state.leader, broker_epoch=epoch, partitions=(proposal,)
        )
        self.receive(state.leader, request)

    def __getitem__(self, name: str) -> int:
        return self.node.metrics()[name]

    def summary(self, name: str) -> tuple[int, int, int, int]:
        """Count, sum, last, max."""
        count, total, last, most = (self[f"{name}_{part}"] for part in ("count", "sum", "last", "max"))
        return count, total, last, most

    def alerts(self) -> list[str]:
        """What was alerted to since this was last asked."""
        alerts = [trace.text() for trace in self.traces if isinstance(trace, AlertRaised)]
        self.traces.clear()
        return alerts


@pytest.mark.covers("I10")
def test_a_failover_lasts_until_all_active_brokers_have_its_records() -> None:
    bench = Bench()
    bench.now_ms = 100
    bench.lose(0)
    bench.now_ms = 130
    bench.fetch(1)
    bench.receive(2, metadata_fetch(bench.node, 2, offset=bench.node.state.image.next_offset - 1))
    bench.fetch(3)
    assert bench.summary(metrics.FAILOVER_LATENCY) == (0, 0, 0, 0)
    bench.now_ms = 150
    bench.beat(2)
    assert bench.summary(metrics.FAILOVER_LATENCY) == (1, 50, 50, 50)
    assert bench.summary(metrics.FAILOVER_RECORDS) == (1, 2, 2, 2), "one partition, one registration"


@pytest.mark.covers("I10")
def test_overlapping_failovers_are_measured_separately_and_do_not_wait_for_a_dead_broker() -> None:
    bench = Bench(min_isr=1)
    bench.now_ms = 100
    bench.lose(0)
    bench.fetch(2)
    bench.now_ms = 120
    bench.lose(1)
    bench.fetch(3)
    assert bench.summary(metrics.FAILOVER_LATENCY) == (1, 20, 20, 20), "broker 2 knows of the first one only"
    bench.now_ms = 125
    bench.fetch(2)
    assert bench.summary(metrics.FAILOVER_LATENCY) == (2, 25, 5, 20)


@pytest.mark.covers("I10")
def test_a_fencing_without_leaderships_or_active_brokers_has_no_latency() -> None:
    bench = Bench()
    bench.lose(3)
    bench.fetch(0, 1, 2)
    bench.lose(2)
    bench.fetch(0, 1)
    assert bench.summary(metrics.FAILOVER_RECORDS)[0] == bench.summary(metrics.FAILOVER_LATENCY)[0] == 0
    bench.lose(0)
    bench.lose(1)
    bench.now_ms = 5_000
    bench.come(3, incarnation="two")
    bench.fetch(3)
    assert bench.summary(metrics.FAILOVER_LATENCY)[0] == 0
    assert bench.summary(metrics.FAILOVER_RECORDS)[0] == 2


@pytest.mark.covers("I10")
def test_a_controlled_shutdown_is_measured_from_the_request_to_the_permission() -> None:
    bench = Bench()
    bench.now_ms = 10
    assert not bench.beat(0, want_shut_down=True).should_shut_down
    bench.now_ms = 45
    bench.fetch(1, 2, 3)
    assert bench.beat(0, want_shut_down=True).should_shut_down
    assert bench.summary(metrics.SHUTDOWN_TIME) == (1, 35, 35, 35)
    assert bench.beat(3, want_shut_down=True).should_shut_down, "it leads nothing"
    assert bench.summary(metrics.SHUTDOWN_TIME) == (2, 35, 0, 35)
    bench.beat(1, want_shut_down=True)
    bench.lose(1)
    assert bench.summary(metrics.SHUTDOWN_TIME)[0] == 2, "it was given up"
    assert bench.summary(metrics.FAILOVER_RECORDS)[0] == 0, "a broker that has left leads nothing"
    bench.now_ms = 9_000
    bench.come(1, incarnation="two")
    assert bench.beat(1, want_shut_down=True).should_shut_down
    assert bench.summary(metrics.SHUTDOWN_TIME) == (3, 35, 0, 35)


@pytest.mark.covers("I10")
def test_the_size_of_alter_partition_requests() -> None:
    bench = Bench()
    bench.propose(0, 1)
    bench.propose(0, 1, 2)
    assert bench.summary(metrics.ALTER_PARTITION_BATCH) == (2, 2, 1, 1)
    epoch = bench.node.state.image.broker_epoch(0) or 0
    empty = AlterPartitionRequest(correlation_id=9, broker_id=0, broker_epoch=epoch + 99, partitions=())
    bench.receive(0, empty)
    assert bench.summary(metrics.ALTER_PARTITION_BATCH)[0] == 2, "a stale epoch is not taken up"


@pytest.mark.covers("I10")
def test_a_reassignment_is_measured_from_start_to_completion() -> None:
    bench = Bench()
    bench.now_ms = 1_000
    bench.administer(reassign("t", 0, (0, 1, 3)))
    assert bench[metrics.REASSIGNING] == 1
    bench.now_ms = 1_070
    bench.propose(0, 1, 2, 3)
    assert bench.partition.replicas == (0, 1, 3)
    assert bench.summary(metrics.REASSIGNMENT_DELAY) == (1, 70, 70, 70)
    assert bench[metrics.REASSIGNING] == 0
    bench.administer(reassign("t", 0, (3, 1, 0)))
    assert bench.summary(metrics.REASSIGNMENT_DELAY) == (2, 70, 0, 70), "complete at once"


def test_a_reassignment_that_only_removes_replicas_is_measured_too() -> None:
    bench = Bench()
    bench.propose(0, 2)
    bench.administer(reassign("t", 0, (0, 1)))
    assert bench[metrics.REASSIGNING] == 1, "broker 1 is not in sync"
    bench.now_ms = 30
    bench.propose(0, 1, 2)
    assert bench.partition.replicas == (0, 1)
    assert bench.summary(metrics.REASSIGNMENT_DELAY) == (1, 30, 30, 30)


@pytest.mark.covers("I10")
def test_a_cancelled_reassignment_does_not_count_and_a_replaced_one_begins_anew() -> None:
    bench = Bench()
    bench.administer(reassign("t", 0, (0, 1, 3)))
    bench.now_ms = 50
    bench.administer(reassign("t", 0, None))
    assert (bench[metrics.REASSIGNING], bench.summary(metrics.REASSIGNMENT_DELAY)[0]) == (0, 0)
    bench.administer(reassign("t", 0, (0, 1, 3)))
    bench.now_ms = 60
    bench.administer(reassign("t", 0, (0, 3)))
    bench.now_ms = 100
    bench.propose(0, 1, 2, 3)
    assert bench.summary(metrics.REASSIGNMENT_DELAY) == (1, 40, 40, 40)


@pytest.mark.covers("I8")
def test_alerts_name_offline_partitions_and_unclean_elections() -> None:
    bench = Bench(min_isr=1, config=config_of(Generation.KIP_966_ELR))
    for broker in (1, 2):
        bench.lose(broker)
    bench.administer(alter_config("t", {"unclean.leader.election.enable": True}))
    assert bench.alerts() == []
    bench.lose(0)
    assert bench.alerts() == ["t-0 is offline: it has no leader"]
    assert (bench[metrics.OFFLINE], bench[metrics.UNCLEAN_ELECTIONS]) == (1, 0)
    bench.come(1, incarnation="two")
    epoch = bench.partition.leader_epoch
    assert bench.partition.leader == 1
    lost = f"t-0 may have lost acknowledged records: broker 1 was elected uncleanly in epoch {epoch}"
    assert bench.alerts() == [lost]
    assert (bench[metrics.OFFLINE], bench[metrics.UNCLEAN_ELECTIONS]) == (0, 1)


@pytest.mark.covers("I8")
@pytest.mark.covers("I8")
def test_an_election_from_the_elr_raises_no_alert() -> None:
    bench = Bench()
    epoch = bench.node.state.image.broker_epoch(1) or 0
    for broker in (2, 1, 0):
        bench.lose(broker)
    bench.alerts()
    bench.come(1, incarnation="two", previous=epoch)
    assert bench.partition.leader == 1
    assert (bench.alerts(), bench[metrics.UNCLEAN_ELECTIONS]) == ([], 0)


def test_a_restarted_controller_has_its_gauges_and_counts_from_0() -> None:
    bench = Bench(min_isr=1, config=config_of(Generation.KIP_966_ELR, unclean_leader_election_enable=True))
    for broker in (1, 2, 0):
        bench.lose(broker)
    bench.come(2, incarnation="two")
    bench.administer(reassign("t", 0, (2, 3)))
    before = bench.node.metrics()
    assert before[metrics.UNCLEAN_ELECTIONS] == 1
    bench.alerts()
    bench.now_ms = 7_000
    bench.start()
    after = bench.node.metrics()
    for gauge in (metrics.UNDER_MIN_ISR, metrics.OFFLINE, metrics.MANUAL_ELECTION_REQUIRED, metrics.REASSIGNING):
        assert after[gauge] == before[gauge]
    counted = [metrics.UNCLEAN_ELECTIONS, metrics.UNCLEAN_RECOVERY_FINISHED]
    assert {after[name] for name in (*counted, *(f"{name}_count" for name in metrics.SUMMARIES))} == {0}
    bench.now_ms = 7_020
    bench.propose(2, 3)
    assert bench.partition.replicas == (2, 3)
    assert bench.summary(metrics.REASSIGNMENT_DELAY) == (1, 20, 20, 20)
    assert bench.alerts() == []


@pytest.mark.covers("I5")
def test_a_controller_that_becomes_active_again_counts_from_0() -> None:
    found = metrics.ControllerMetrics(ControllerBench(*registrations()).state, lambda: (1, 0, 0, 0))
    found.recovered(2)
    found.altered(3)
    counted = (metrics.UNCLEAN_RECOVERY_FINISHED, f"{metrics.ALTER_PARTITION_BATCH}_sum")
    assert [found.values()[name] for name in counted] == [2, 3]
    found.begin(7_000)
    assert [found.values()[name] for name in counted] == [0, 0]


def lossy(strategy: str) -> Bench:
    """A bench whose topic has the strategy, no leader, and the last known ELR 1 and 2, who are back."""
    bench = Bench(config=config_of(unclean_recovery_strategy=strategy))
    for broker in (0, 1, 2):
        bench.lose(broker)
    bench.come(1, incarnation="two")
    bench.come(2, incarnation="two")
    assert (bench.partition.leader, set(bench.partition.last_known_elr)) == (-1, {1, 2})
    return bench


def requested(bench: Bench) -> PartitionRecovery:
    """The recovery that the controller requested."""
    bench.took(bench.node.fire(bench.now_ms, RECOVERY_TIMER))
    [recovery] = [
        recovery
        for effect in bench.effects
        if isinstance(effect, Send) and isinstance(effect.message, RecoverPartitions)
        for recovery in effect.message.recoveries
    ]
    return recovery


def found_by(recovery: PartitionRecovery, leader: int) -> RecoveryResults:
    """Results with the answers of all queried replicas."""
    answers = tuple(
        ReplicaAnswer(
            broker_id=replica.broker_id,
            broker_epoch=replica.broker_epoch,
            last_written_leader_epoch=0,
            log_end_offset=1,
        )
        for replica in recovery.replicas
    )
    result = PartitionRecoveryResult(
        recovery_id=recovery.recovery_id,
        topic_id=recovery.topic_id,
        partition_id=recovery.partition_id,
        leader_epoch=recovery.leader_epoch,
        leader=leader,
        reason="it won",
        answers=answers,
    )
    return RecoveryResults(results=(result,))


I345 = (metrics.UNCLEAN_RECOVERY, metrics.MANUAL_ELECTION_REQUIRED, metrics.UNCLEAN_RECOVERY_FINISHED)


@pytest.mark.covers("I3", "I4", "I5", "F27")
def test_a_recovery_is_counted_while_it_runs_and_once_when_it_has_elected() -> None:
    bench = lossy("balanced")
    assert [bench[name] for name in I345] == [1, 0, 0]
    results = found_by(requested(bench), leader=2)
    bench.alerts()
    bench.receive(RECOVERY_MANAGER, results)
    assert bench.partition.leader == 2
    assert [bench[name] for name in (*I345, metrics.UNCLEAN_ELECTIONS)] == [0, 0, 1, 1]
    assert bench.alerts() == ["t-0 may have lost acknowledged records: broker 2 was elected uncleanly in epoch 4"]
    bench.receive(RECOVERY_MANAGER, results)
    assert [bench[name] for name in I345] == [0, 0, 1], "a late result elects no leader"
    bench.start()
    assert [bench[name] for name in I345] == [0, 0, 0], "a new controller counts from 0"


@pytest.mark.covers("I3", "I4", "I5", "I7", "J4")
def test_a_partition_whose_recovery_a_user_requested_does_not_wait_for_a_user() -> None:
    bench = lossy("manual")
    assert [bench[name] for name in I345] == [0, 1, 0]
    bench.receive(CLIENT, elect_leader("t", 0, ElectionType.LONGEST_LOG_BALANCED))
    assert [bench[name] for name in I345] == [1, 0, 0]
    bench.receive(RECOVERY_MANAGER, found_by(requested(bench), leader=1))
    assert [bench[name] for name in I345] == [0, 0, 1]


@pytest.mark.covers("I4", "I5", "F22")
def test_a_designation_is_not_counted_as_recovery() -> None:
    bench = lossy("manual")
    bench.administer(elect_leader("t", 0, ElectionType.DESIGNATION, 1))
    assert [bench[name] for name in (*I345, metrics.UNCLEAN_ELECTIONS)] == [0, 0, 0, 1]


@pytest.mark.covers("I3", "I5", "F16", "M72", "M73")
@pytest.mark.parametrize("how", ["pre-empted", "disabled"])
def test_a_recovery_that_is_not_needed_any_more_is_not_counted(how: str) -> None:
    bench = lossy("balanced")
    results = found_by(requested(bench), leader=2)
    if how == "disabled":
        bench.administer(update_feature("unclean.recovery.enabled", 0, UpgradeType.SAFE_DOWNGRADE))
    else:
        bench.administer(elect_leader("t", 0, ElectionType.DESIGNATION, 1))
    bench.receive(RECOVERY_MANAGER, results)
    assert [bench[name] for name in I345] == [0, 0, 0]


@pytest.mark.covers("I9", "D34")
def test_the_quorum_gauges_count_one_voter_and_its_fetching_observers() -> None:
    bench = Bench(serve=False)
    raft = (metrics.VOTERS, metrics.OBSERVERS, metrics.UNCOMMITTED_VOTER_CHANGE, metrics.IGNORED_STATIC_VOTERS)
    assert [bench[name] for name in raft] == [1, 0, 0, 0]
    bench.come(0)
    bench.come(1)
    assert bench[metrics.OBSERVERS] == 0
    bench.fetch(0, 1, 2)
    assert bench[metrics.OBSERVERS] == 3, "broker 2 is not registered, and fetches nevertheless"
    bench.now_ms = 1_000_000
    bench.fetch(0)
    assert bench[metrics.OBSERVERS] == 3, "the others wait still"
    bench.lose(1)
    bench.fetch(0)
    assert bench[metrics.OBSERVERS] == 1, "the others were answered, and have not asked again"
