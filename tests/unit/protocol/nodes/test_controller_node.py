"""The controller node: decide, append, replay, answer; sessions; restart from its log."""

from __future__ import annotations

import sys
from random import Random
from typing import TypeVar

import pytest

from experiments.engines.admin_requests import alter_config, create_topic
from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimStorage, formatted_disk
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import ClusterConfig
from protocol.contract import Effect, Exit, Send, SetTimer
from protocol.errors import CodecError, ErrorCode, ProtocolInvariantError
from protocol.ids import METADATA_LOG, TimeMs
from protocol.messages.admin import AdminRequest, AdminResponse, MetadataRequest, MetadataResponse
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
    PartitionIsrProposal,
)
from protocol.messages.metadata_batch import pack_records, unpack_records
from protocol.messages.quorum import LeaderChangeRecord, QuorumFetchResponse
from protocol.messages.records import ConfigRecord, PartitionChangeRecord
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, config_of, topic_records

SESSION_MS = 9_000
M = TypeVar("M", bound=Message)


class Bench:
    """A controller with brokers 0, 1, 2 that beat by hand, and topic `t` on all three with min ISR 2."""

    def __init__(
        self, storage: SimStorage | None = None, config: ClusterConfig | None = None, start_ms: TimeMs = 0
    ) -> None:
        self.storage = storage or formatted_disk()
        self.node = ControllerNode(CONTROLLER, [CONTROLLER], config or config_of(), self.storage, Random(1))
        self.now_ms = start_ms
        self.number = 0
        self.effects: list[Effect] = self.node.start(start_ms)

    def receive(self, sender: int, message: Message) -> Bench:
        self.effects = self.node.receive(self.now_ms, sender, message)
        return self

    def fire(self, name: str, at_ms: int) -> Bench:
        self.now_ms = at_ms
        self.effects = self.node.fire(at_ms, name)
        return self

    def sent(self, kind: type[M]) -> M:
        [message] = [e.message for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]
        return message

    def session(self, broker: int) -> int | None:
        """When the broker's session ends, as the last input set it."""
        name = f"{SESSION_PREFIX}{broker}"
        ends = [effect.at_ms for effect in self.effects if isinstance(effect, SetTimer) and effect.name == name]
        return ends[-1] if ends else None

    def register(self, broker: int, incarnation: str = "one", previous: int = -1) -> BrokerRegistrationResponse:
        request = BrokerRegistrationRequest(
            correlation_id=4, broker_id=broker, incarnation_id=incarnation, previous_broker_epoch=previous
        )
        return self.receive(broker, request).sent(BrokerRegistrationResponse)

    def beat(self, broker: int, offset: int | None = None, **fields: object) -> BrokerHeartbeatResponse:
        image = self.node.state.image
        self.number += 1
        defaults = {"correlation_id": self.number, "broker_id": broker, "broker_epoch": image.broker_epoch(broker)}
        defaults["current_metadata_offset"] = image.next_offset if offset is None else offset
        request = BrokerHeartbeatRequest.model_validate(defaults | fields)
        return self.receive(broker, request).sent(BrokerHeartbeatResponse)

    def administer(self, request: AdminRequest) -> AdminResponse:
        return self.receive(CLIENT, request).sent(AdminResponse)

    def serve(self) -> Bench:
        """Everyone registers and is unfenced; the topic is created."""
        for broker in (0, 1, 2):
            self.register(broker)
            assert not self.beat(broker).is_fenced
        create = create_topic("t", ((0, 1, 2),), {"min.insync.replicas": 2})
        assert self.administer(create).failure()[0] is ErrorCode.NONE
        return self

    def change_until_snapshot(self) -> None:
        """The topic's config is altered to and fro until the node has taken a snapshot of the metadata."""
        for number in range(40):
            if self.node.replica.snapshot is not None:
                return
            self.administer(alter_config("t", {"min.insync.replicas": 1 + number % 2}))
        raise AssertionError("no snapshot after 40 changes")

    @property
    def partition(self) -> PartitionState:
        topic = self.node.state.image.topic_named("t")
        assert topic is not None
        return topic.partitions[0]

    def proposal(self, leader: int, *isr: int, broker_epoch: int | None = None) -> AlterPartitionRequest:
        image, state = self.node.state.image, self.partition
        members = tuple(BrokerState(broker_id=b, broker_epoch=image.broker_epoch(b) or 0) for b in isr)
        proposal = PartitionIsrProposal(
            topic_id=image.topic_ids["t"],
            partition_id=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr=members,
        )
        epoch = image.broker_epoch(leader) if broker_epoch is None else broker_epoch
        self.number += 1
        return AlterPartitionRequest(
            correlation_id=self.number, broker_id=leader, broker_epoch=epoch or 0, partitions=(proposal,)
        )

    def propose(self, leader: int, *isr: int, broker_epoch: int | None = None) -> AlterPartitionResponse:
        request = self.proposal(leader, *isr, broker_epoch=broker_epoch)
        return self.receive(leader, request).sent(AlterPartitionResponse)


@pytest.mark.covers("E21", "E31")
def test_a_broker_registers_is_fenced_and_is_unfenced_by_its_heartbeat() -> None:
    bench = Bench()
    assert (bench.register(0).broker_epoch, bench.register(1).broker_epoch) == (4, 5), (
        "behind the voter, the leader and the feature levels"
    )
    assert bench.session(0) is None
    assert bench.beat(0, offset=4).is_fenced, "it has not applied its registration"
    assert bench.beat(0, want_fence=True).is_fenced
    answer = bench.beat(0)
    assert (answer.is_fenced, answer.is_caught_up, answer.error) == (False, True, ErrorCode.NONE)
    assert bench.session(0) == SESSION_MS


def test_an_overtaken_heartbeat_does_not_unfence_a_broker_that_was_shut_down() -> None:
    bench = Bench().serve()
    epoch, end = bench.node.state.image.broker_epoch(2), bench.node.state.image.next_offset
    for broker in (0, 1):
        bench.beat(broker)
    gone = bench.beat(2, correlation_id=9, want_shut_down=True)
    assert (gone.should_shut_down, gone.is_fenced) == (True, True)
    late = BrokerHeartbeatRequest(correlation_id=8, broker_id=2, broker_epoch=epoch or 0, current_metadata_offset=end)
    assert bench.receive(2, late).sent(BrokerHeartbeatResponse).is_fenced
    assert bench.node.state.image.brokers[2].fenced
    bench.register(2, incarnation="two")
    assert not bench.beat(2, correlation_id=1).is_fenced, "the next incarnation counts from the beginning"


def test_a_duplicated_heartbeat_does_not_unfence_a_broker_whose_session_expired() -> None:
    bench = Bench().serve()
    image = bench.node.state.image
    epoch, end = image.broker_epoch(2), image.next_offset
    beat = BrokerHeartbeatRequest(correlation_id=99, broker_id=2, broker_epoch=epoch or 0, current_metadata_offset=end)
    assert not bench.receive(2, beat).sent(BrokerHeartbeatResponse).is_fenced
    bench.fire(f"{SESSION_PREFIX}2", SESSION_MS)
    assert bench.receive(2, beat).sent(BrokerHeartbeatResponse).is_fenced
    assert not bench.beat(2, correlation_id=100).is_fenced, "a new one does"


@pytest.mark.covers("B19", "B22", "M53")
def test_a_refused_proposal_is_not_accepted_when_it_is_duplicated() -> None:
    """Its leader has withdrawn it, and does not count with the broker that it adds."""
    bench = Bench().serve()
    bench.fire(f"{SESSION_PREFIX}2", SESSION_MS)
    assert bench.partition.isr == (0, 1)
    late, refused = bench.proposal(0, 0, 1, 2), bench.proposal(0, 0, 1, 2)
    [result] = bench.receive(0, refused).sent(AlterPartitionResponse).partitions
    assert result.error is ErrorCode.INELIGIBLE_REPLICA
    assert not bench.beat(2).is_fenced
    before = len(bench.node.records)
    for again in (late, refused):
        answer = bench.receive(0, again).sent(AlterPartitionResponse)
        assert (answer.correlation_id, answer.error) == (again.correlation_id, ErrorCode.INVALID_REQUEST)
        assert answer.partitions == ()
    assert (bench.partition.isr, len(bench.node.records)) == ((0, 1), before)
    [result] = bench.propose(0, 0, 1, 2).partitions
    assert (result.error, bench.partition.isr) == (ErrorCode.NONE, (0, 1, 2)), "a repetition has a number of its own"


def test_proposals_of_the_next_incarnation_are_numbered_from_the_beginning() -> None:
    bench = Bench().serve()
    bench.propose(0, 0, 1)
    bench.fire(f"{SESSION_PREFIX}0", SESSION_MS)
    bench.register(0, incarnation="two")
    assert not bench.beat(0).is_fenced
    [first] = (
        bench.receive(0, bench.proposal(0, 0).model_copy(update={"correlation_id": 1}))
        .sent(AlterPartitionResponse)
        .partitions
    )
    assert first.error is ErrorCode.INVALID_REQUEST, "it is looked at: it is not the leader's"


def test_the_same_incarnation_gets_the_same_epoch_and_another_has_to_wait_for_the_session() -> None:
    bench = Bench().serve()
    before = len(bench.node.records)
    assert bench.register(0).broker_epoch == bench.node.state.image.broker_epoch(0)
    assert bench.register(0, incarnation="two").error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert len(bench.node.records) == before
    bench.fire(f"{SESSION_PREFIX}0", SESSION_MS)
    accepted = bench.register(0, incarnation="two")
    assert (accepted.error, accepted.broker_epoch) == (ErrorCode.NONE, len(bench.node.records) - 1)


@pytest.mark.covers("B20", "G8", "M52")
def test_requests_of_an_earlier_incarnation_are_refused() -> None:
    bench = Bench().serve()
    epoch = bench.node.state.image.broker_epoch(0)
    bench.fire(f"{SESSION_PREFIX}0", SESSION_MS)
    bench.register(0, incarnation="two")
    before = len(bench.node.records)
    assert bench.beat(0, broker_epoch=epoch).error is ErrorCode.STALE_BROKER_EPOCH
    assert bench.propose(0, 0, broker_epoch=epoch).error is ErrorCode.STALE_BROKER_EPOCH
    assert bench.beat(7, broker_epoch=1).error is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert len(bench.node.records) == before


@pytest.mark.covers("E31", "E29")
def test_a_session_that_ends_fences_the_broker_and_moves_its_leaderships() -> None:
    bench = Bench().serve()
    bench.now_ms = 5_000
    bench.beat(0)
    assert bench.session(0) == 5_000 + SESSION_MS
    bench.fire(f"{SESSION_PREFIX}0", 5_000 + SESSION_MS)
    assert bench.node.state.image.brokers[0].fenced
    assert (bench.partition.leader, bench.partition.isr) == (1, (1, 2))
    assert not bench.beat(0).is_fenced, "the next heartbeat brings it back"


@pytest.mark.covers("N3")
def test_a_proposal_is_answered_with_the_committed_state() -> None:
    bench = Bench().serve()
    [result] = bench.propose(0, 0, 1).partitions
    assert (result.error, result.leader, result.isr) == (ErrorCode.NONE, 0, (0, 1))
    assert result.partition_epoch == bench.partition.partition_epoch == 1
    [unchanged] = bench.propose(0, 0, 1).partitions
    assert (unchanged.error, unchanged.isr, unchanged.partition_epoch) == (ErrorCode.NONE, (0, 1), 1)


def test_a_refused_proposal_writes_nothing() -> None:
    bench = Bench().serve()
    before = len(bench.node.records)
    [result] = bench.propose(1, 0, 1).partitions
    assert result.error is ErrorCode.INVALID_REQUEST
    assert len(bench.node.records) == before


@pytest.mark.covers("E19", "M6")
def test_elr_clearing_and_config_are_one_durable_batch() -> None:
    bench = Bench().serve()
    bench.propose(0, 0, 1)
    bench.propose(0, 0)
    assert bench.partition.elr == (1,)
    bench.administer(alter_config("t", {"min.insync.replicas": 1}))
    log = bench.storage.open_log(METADATA_LOG)
    last = log.read(log.end_offset - 1, 1)[-1]
    assert [type(record) for record in unpack_records(last.payload)] == [PartitionChangeRecord, ConfigRecord]
    assert log.flushed_offset == log.end_offset
    assert bench.partition.elr == ()


def test_a_refused_request_has_a_message_and_writes_nothing() -> None:
    bench = Bench().serve()
    before = len(bench.node.records)
    answer = bench.administer(create_topic("t", ((0,),)))
    error, message = answer.failure()
    assert (answer.correlation_id, error) == (0, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert "'t'" in message
    assert len(bench.node.records) == before


# -- controlled shutdown -----------------------------------------------------------------------------------------------


def test_a_leader_may_shut_down_when_the_others_have_applied_its_successor() -> None:
    bench = Bench().serve()
    for broker in (1, 2):
        bench.beat(broker)
    assert not bench.beat(0, want_shut_down=True).should_shut_down
    assert bench.node.state.image.brokers[0].in_controlled_shutdown
    assert (bench.partition.leader, bench.partition.isr) == (1, (1, 2))
    assert not bench.beat(0, want_shut_down=True).should_shut_down, "1 and 2 have not heard"
    bench.receive(1, metadata_fetch(bench.node, 1))
    assert not bench.beat(0, want_shut_down=True).should_shut_down, "2 has not heard"
    bench.beat(2)
    assert bench.beat(0, want_shut_down=True).should_shut_down
    assert bench.node.state.image.brokers[0].fenced


def test_a_broker_without_leaderships_may_shut_down_at_once() -> None:
    bench = Bench().serve()
    assert bench.beat(2, want_shut_down=True).should_shut_down
    assert (bench.node.state.image.brokers[2].fenced, bench.partition.isr) == (True, (0, 1))


@pytest.mark.covers("M14", "M15", "E21")
@pytest.mark.parametrize(("clean", "elr", "last_known_elr"), [(True, (1,), ()), (False, (), (1,))])
def test_an_elr_member_that_restarts_with_its_epoch_stays_in_the_elr(
    clean: bool, elr: tuple[int, ...], last_known_elr: tuple[int, ...]
) -> None:
    bench = Bench().serve()
    for broker in (2, 1):
        assert bench.beat(broker, want_shut_down=True).should_shut_down
    assert (bench.partition.isr, bench.partition.elr) == ((0,), (1,))
    leader_epoch, epoch = bench.partition.leader_epoch, bench.node.state.image.broker_epoch(1)
    assert epoch is not None
    bench.register(1, incarnation="two", previous=epoch if clean else -1)
    assert (bench.partition.elr, bench.partition.last_known_elr) == (elr, last_known_elr)
    assert bench.partition.leader_epoch == leader_epoch


# -- metadata log ------------------------------------------------------------------------------------------------------


def test_a_parked_metadata_fetch_is_answered_when_there_is_more() -> None:
    bench = Bench().serve()
    end = len(bench.node.records)
    bench.receive(1, metadata_fetch(bench.node, 1))
    assert bench.effects == []
    bench.propose(0, 0, 1)
    answer = bench.sent(QuorumFetchResponse)
    [batch] = answer.batches
    assert (batch.base_offset, answer.high_watermark, len(unpack_records(batch.payload))) == (end, end + 1, 1)
    bench.propose(0, 0)
    assert not [e for e in bench.effects if isinstance(e, Send) and isinstance(e.message, QuorumFetchResponse)]
    whole = bench.receive(2, metadata_fetch(bench.node, 2, offset=0)).sent(QuorumFetchResponse)
    assert [record for batch in whole.batches for record in unpack_records(batch.payload)] == list(bench.node.records)


@pytest.mark.covers("C9")
def test_every_batch_of_the_metadata_log_has_the_time_of_its_input() -> None:
    started_ms, created_ms = 1_700_000_000_000, 1_700_000_060_000
    bench = Bench(start_ms=started_ms)
    batches = bench.storage.open_log(METADATA_LOG).read(1, sys.maxsize)
    assert {batch.timestamp_ms for batch in batches} == {started_ms}, "the election and the first records"
    end = bench.node.replica.log.end_offset
    bench.now_ms = created_ms
    bench.serve()
    assert {batch.timestamp_ms for batch in bench.storage.open_log(METADATA_LOG).read(end, sys.maxsize)} == {created_ms}


def test_a_restarted_controller_replays_its_log() -> None:
    bench = Bench().serve()
    bench.propose(0, 0, 1)
    bench.propose(0, 0)
    bench.storage.apply_loss(Loss("unflushed"))
    again = Bench(bench.storage)
    *found, last = again.node.records
    assert found == list(bench.node.records)
    assert isinstance(last, LeaderChangeRecord), "the next epoch begins with it"
    assert again.partition == bench.partition
    assert dict(again.node.state.image.brokers) == dict(bench.node.state.image.brokers)
    assert [again.session(broker) for broker in (0, 1, 2)] == [SESSION_MS] * 3
    again.fire(f"{SESSION_PREFIX}0", SESSION_MS)
    assert (again.partition.leader, set(again.partition.elr)) == (1, {0})


@pytest.mark.covers("C9")
def test_a_controller_that_has_taken_snapshots_restarts_from_the_last_one() -> None:
    config = config_of(metadata_log_max_record_bytes_between_snapshots=1_500, metadata_max_retention_bytes=0)
    bench = Bench(config=config).serve()
    for number in range(20):
        bench.administer(alter_config("t", {"min.insync.replicas": 1 + number % 2}))
    snapshot, log = bench.node.replica.snapshot, bench.storage.open_log(METADATA_LOG)
    assert snapshot is not None
    assert 0 < log.start_offset <= snapshot.end_offset < log.end_offset
    bench.storage.apply_loss(Loss("unflushed"))
    again = Bench(bench.storage, config)
    assert again.node.first_record == snapshot.end_offset
    assert list(again.node.records)[:-1] == list(bench.node.records)[snapshot.end_offset :]
    assert again.node.state.image.to_records() == bench.node.state.image.to_records()
    assert again.node.state.image.next_offset == bench.node.state.image.next_offset + 1
    assert [again.session(broker) for broker in (0, 1, 2)] == [SESSION_MS] * 3


def test_metadata_batches_hold_records_only() -> None:
    records = topic_records()
    assert list(unpack_records(pack_records(records, 1))) == records
    with pytest.raises(ProtocolInvariantError, match="ShutdownCommand"):
        unpack_records(pack_records([ShutdownCommand()], 1))  # type: ignore[list-item]
    with pytest.raises(CodecError):
        unpack_records(pack_records(records, 1)[:-1] + b"\x00")


def test_metadata_requests_are_answered_and_a_shutdown_ends_the_node() -> None:
    bench = Bench().serve()
    [topic] = bench.receive(CLIENT, MetadataRequest(correlation_id=1, topic="t")).sent(MetadataResponse).topics
    assert topic.partitions[0].leader == 0
    assert [type(effect) for effect in bench.receive(CLIENT, ShutdownCommand()).effects] == [Exit]
    with pytest.raises(ProtocolInvariantError, match="no-such-timer"):
        bench.fire("no-such-timer", 1)
