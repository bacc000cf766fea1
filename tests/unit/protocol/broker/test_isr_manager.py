"""ISR proposals to the controller: one request in flight, retries, responses."""

from __future__ import annotations

import pytest

from experiments.engines.sim.disk import SimLog, SimStorage
from protocol.broker.context import BrokerContext, Replica
from protocol.broker.isr_manager import IsrManager, apply_result
from protocol.broker.leadership import begin
from protocol.contract import CancelTimer, Outbox, Send, SetTimer
from protocol.errors import ErrorCode
from protocol.ids import TopicIdPartition, TopicPartition
from protocol.log.replica_log import ReplicaLog
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse, BrokerState, PartitionIsrResult
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState, PartitionState
from tests.unit.protocol.node_helpers import CONTROLLER, config_of, registrations

TIMEOUT_MS, BACKOFF_MS = 1_000, 70
REPLAYED = 40
CONFIG = config_of(request_timeout_ms=TIMEOUT_MS, retry_backoff_ms=BACKOFF_MS)
STATE = PartitionState(replicas=(0, 1, 2), isr=(0, 1), leader=0, leader_epoch=5, partition_epoch=9)


class Bench:
    """Broker 0 leads partitions 0, 1, ... of topic T."""

    def __init__(self, partitions: int = 1) -> None:
        image = MetadataImage(CONFIG)
        for record in registrations():
            image.replay(record)
        self.out = Outbox()
        self.context = BrokerContext(0, CONFIG, image, SimStorage(), self.out, broker_epoch=0, controller_id=CONTROLLER)
        self.manager = IsrManager(self.context)
        for index in range(partitions):
            key = TopicIdPartition("T", index)
            replica = Replica(key, TopicPartition("t", index), ReplicaLog(SimLog()), leader_epoch=5)
            replica.leadership = begin(STATE, 0, 0, now_ms=0)
            self.context.replicas[key] = replica

    def replica(self, index: int = 0) -> Replica:
        return self.context.replicas[TopicIdPartition("T", index)]

    def maximal_isr(self, index: int = 0) -> set[int]:
        leadership = self.replica(index).leadership
        assert leadership is not None
        return set(leadership.maximal_isr)

    def propose(self, *isr: int, index: int = 0, now_ms: int = 0) -> list[AlterPartitionRequest]:
        self.manager.propose(self.replica(index), isr)
        self.manager.send_queued(now_ms)
        return self.sent()

    def sent(self) -> list[AlterPartitionRequest]:
        effects = self.out.drain()
        self.timers = [e for e in effects if isinstance(e, SetTimer | CancelTimer)]
        return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AlterPartitionRequest)]

    def answer(self, correlation_id: int, *results: PartitionIsrResult, error: ErrorCode = ErrorCode.NONE) -> list[int]:
        """Receives the controller's response; returns the partitions to which it was applied."""
        response = AlterPartitionResponse(correlation_id=correlation_id, error=error, partitions=results)
        applied = self.manager.receive(response, now_ms=500)
        for replica, result in applied:
            apply_result(replica, result, REPLAYED)
        return [replica.key.partition for replica, _ in applied]


def result(index: int = 0, **fields: object) -> PartitionIsrResult:
    stands = {"leader": 0, "leader_epoch": 5, "isr": (0, 1, 2), "partition_epoch": 10}
    return PartitionIsrResult(**({"topic_id": "T", "partition_id": index} | stands | fields))


def refusal(error: ErrorCode, index: int = 0) -> PartitionIsrResult:
    return PartitionIsrResult(topic_id="T", partition_id=index, error=error)


@pytest.mark.covers("B1", "B4", "G6")
def test_a_proposal_carries_leader_epoch_broker_epochs_and_partition_epoch() -> None:
    bench = Bench()
    leadership = bench.replica().leadership
    assert leadership is not None
    leadership.followers[2].broker_epoch = 17
    [request] = bench.propose(0, 1, 2)
    assert (request.broker_id, request.broker_epoch) == (0, 0)
    [proposal] = request.partitions
    assert (proposal.topic_id, proposal.partition_id) == ("T", 0)
    assert (proposal.leader_epoch, proposal.partition_epoch, proposal.leader_recovery_state) == (5, 9, 0)
    expected = {0: 0, 1: 1, 2: 17}
    assert proposal.new_isr == tuple(BrokerState(broker_id=b, broker_epoch=e) for b, e in expected.items()), (
        "a member that has not fetched goes by the metadata, one that has by its fetch"
    )
    assert [timer.at_ms for timer in bench.timers if isinstance(timer, SetTimer)] == [TIMEOUT_MS]


@pytest.mark.covers("B13", "B11", "B12")
def test_the_maximal_isr_contains_the_proposal_until_the_response() -> None:
    bench = Bench()
    [request] = bench.propose(0, 2)
    assert bench.maximal_isr() == {0, 1, 2}
    assert bench.answer(request.correlation_id, result(isr=(0, 2))) == [0]
    assert bench.maximal_isr() == {0, 2}


@pytest.mark.covers("B15", "B21")
def test_proposals_made_during_a_request_share_the_next_one() -> None:
    bench = Bench(partitions=4)
    [first] = bench.propose(0, 1, 2, index=0)
    for index in (1, 2, 3):
        assert bench.propose(0, 1, 2, index=index) == []
    assert bench.propose(0, index=0) == [], "one proposal per partition at a time"
    bench.answer(first.correlation_id, result(0))
    bench.manager.send_queued(500)
    [second] = bench.sent()
    assert [proposal.partition_id for proposal in second.partitions] == [1, 2, 3]
    assert {len(proposal.new_isr) for proposal in second.partitions} == {3}


@pytest.mark.covers("B22", "M55")
def test_a_timeout_repeats_the_proposal_and_keeps_the_maximal_isr() -> None:
    bench = Bench()
    [first] = bench.propose(0)
    bench.manager.fire(TIMEOUT_MS)
    [second] = bench.sent()
    assert second.partitions == first.partitions
    assert second.correlation_id != first.correlation_id
    assert bench.maximal_isr() == {0, 1}
    assert bench.answer(first.correlation_id, result(isr=(0,))) == [], "an answer to the earlier request is late"
    assert bench.answer(second.correlation_id, result(isr=(0,))) == [0]
    assert bench.maximal_isr() == {0}


@pytest.mark.covers("B20", "B22")
@pytest.mark.parametrize(
    "error",
    [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_REQUEST],
)
def test_an_error_of_the_whole_request_is_retried_after_the_back_off(error: ErrorCode) -> None:
    bench = Bench()
    [first] = bench.propose(0)
    assert bench.answer(first.correlation_id, error=error) == []
    assert bench.sent() == []
    assert [timer.at_ms for timer in bench.timers if isinstance(timer, SetTimer)] == [500 + BACKOFF_MS]
    assert bench.maximal_isr() == {0, 1}
    bench.context.broker_epoch = 33
    bench.manager.fire(500 + BACKOFF_MS)
    [second] = bench.sent()
    assert second.partitions == first.partitions
    assert second.broker_epoch == 33


@pytest.mark.covers("B19", "B22")
@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_REQUEST, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
)
def test_a_definite_rejection_withdraws_the_proposal(error: ErrorCode) -> None:
    bench = Bench()
    [request] = bench.propose(0, 1, 2)
    assert bench.answer(request.correlation_id, refusal(error)) == [0]
    assert bench.maximal_isr() == {0, 1}
    bench.manager.fire(TIMEOUT_MS)
    assert bench.sent() == []
    [again] = bench.propose(0, 1, 2)
    assert again.partitions == request.partitions


@pytest.mark.covers("B19")
@pytest.mark.parametrize(
    "error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED]
)
def test_after_an_epoch_error_the_maximal_isr_is_kept_until_newer_metadata(error: ErrorCode) -> None:
    bench = Bench()
    [request] = bench.propose(0)
    bench.answer(request.correlation_id, refusal(error))
    assert bench.maximal_isr() == {0, 1}
    bench.manager.fire(TIMEOUT_MS)
    bench.manager.send_queued(TIMEOUT_MS)
    assert bench.sent() == [], "no retry"


@pytest.mark.covers("B20", "B22", "B23")
def test_not_controller_repeats_the_proposal() -> None:
    bench = Bench()
    [first] = bench.propose(0)
    bench.answer(first.correlation_id, refusal(ErrorCode.NOT_CONTROLLER))
    assert bench.maximal_isr() == {0, 1}
    bench.sent()
    bench.manager.fire(TIMEOUT_MS)
    bench.manager.send_queued(TIMEOUT_MS)
    [second] = bench.sent()
    assert second.partitions == first.partitions


@pytest.mark.covers("B18")
def test_newer_metadata_voids_a_proposal_in_flight() -> None:
    bench = Bench(partitions=2)
    bench.manager.propose(bench.replica(0), (0,))
    [request] = bench.propose(0, index=1)
    newer = bench.replica(1).leadership
    assert newer is not None
    newer.partition_epoch, newer.proposed_isr = 10, None
    bench.manager.fire(TIMEOUT_MS)
    [again] = bench.sent()
    assert [proposal.partition_id for proposal in again.partitions] == [0]
    assert len(request.partitions) == 2
    assert bench.answer(again.correlation_id, result(0, isr=(0,)), result(1, isr=(0,))) == [0]
    assert newer.isr == (0, 1)


def test_resigning_voids_a_proposal_in_flight() -> None:
    bench = Bench()
    [request] = bench.propose(0)
    bench.replica().leadership = None
    bench.manager.fire(TIMEOUT_MS)
    assert bench.sent() == []
    assert bench.propose(0) == []
    assert bench.answer(request.correlation_id, result()) == []


APPLIED = {
    "the committed state": (result(), True, (0, 1, 2), 10),
    "nothing changed": (result(isr=(0, 1), partition_epoch=9), True, (0, 1), 9),
    "older than what is known": (result(partition_epoch=8), False, (0, 1), 9),
    "of another leader epoch": (result(leader_epoch=6), False, (0, 1), 9),
    "behind what is replayed": (result(metadata_offset=REPLAYED), True, (0, 1, 2), 10),
    "ahead of what is replayed": (result(metadata_offset=REPLAYED + 1), False, (0, 1), 9),
}


@pytest.mark.covers("H15", "N3", "M8")
@pytest.mark.parametrize(("answer", "changed", "isr", "partition_epoch"), APPLIED.values(), ids=APPLIED)
def test_the_newest_partition_epoch_wins(
    answer: PartitionIsrResult, changed: bool, isr: tuple[int, ...], partition_epoch: int
) -> None:
    replica = Bench().replica()
    assert replica.leadership is not None
    replica.leadership.proposed_isr = (0, 1, 2)
    assert apply_result(replica, answer, REPLAYED) is changed
    assert (replica.leadership.isr, replica.leadership.partition_epoch) == (isr, partition_epoch)
    assert (replica.leadership.proposed_isr is None) == changed


@pytest.mark.covers("C5")
def test_the_response_carries_the_recovery_state() -> None:
    replica = Bench().replica()
    assert replica.leadership is not None
    apply_result(replica, result(leader_recovery_state=1), REPLAYED)
    assert replica.leadership.recovery_state is LeaderRecoveryState.RECOVERING
