"""Requests with an invalid field, and messages that a node does not serve: the error, and no change of state."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from experiments.engines import admin_requests
from experiments.support.metadata_fetch import metadata_fetch
from protocol.contract import Send, SetTimer
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.messages.admin import AdminRequest, AdminResponse, InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.base import ClientRequest, Message, Request, Response
from protocol.messages.commands import ProduceCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
)
from protocol.messages.data import (
    ConsumeRequest,
    ConsumeResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from protocol.messages.quorum import QuorumFetchResponse
from protocol.messages.records import PartitionChangeRecord, TopicRecord
from protocol.metadata.queries import READ_ONLY_REQUESTS
from tests.unit.protocol.messages.malformed_helpers import NONE, Controller, request
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, BrokerBench, batch, config_of, topic_records

PUBLISHED = tuple(AdminRequest.__subclasses__())

# -- what brokers send to the controller -------------------------------------------------------------------------------

REGISTRATIONS: dict[str, tuple[dict[str, object], ErrorCode]] = {
    "broker id below 0": ({"broker_id": -1}, ErrorCode.INVALID_REGISTRATION),
    "broker id of a controller": ({"broker_id": 1_000}, ErrorCode.INVALID_REGISTRATION),
    "broker id out of all ranges": ({"broker_id": 2**31 - 1}, ErrorCode.INVALID_REGISTRATION),
    "no incarnation": ({"incarnation_id": ""}, ErrorCode.INVALID_REGISTRATION),
    "no incarnation of a registered broker": ({"broker_id": 0, "incarnation_id": ""}, ErrorCode.INVALID_REGISTRATION),
    "a broker with a session": ({"broker_id": 0}, ErrorCode.DUPLICATE_BROKER_REGISTRATION),
    "the largest broker id": ({"broker_id": 999}, NONE),
    "an epoch that never was": ({"broker_id": 3, "previous_broker_epoch": 2**63 - 1}, NONE),
    "an epoch below -1": ({"broker_id": 3, "previous_broker_epoch": -(2**63)}, NONE),
    "the registered incarnation": (
        {"broker_id": 0, "incarnation_id": "incarnation-0", "previous_broker_epoch": 77},
        NONE,
    ),
}


@pytest.mark.parametrize(("fields", "error"), REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_registrations_with_one_changed_field(fields: dict[str, object], error: ErrorCode) -> None:
    controller, defaults = Controller(), {"correlation_id": 7, "broker_id": 5, "incarnation_id": "new"}
    before = controller.image.to_records()
    message = BrokerRegistrationRequest(**(defaults | fields))
    [answer] = controller.receive(5, message).sends(BrokerRegistrationResponse)
    assert (answer.correlation_id, answer.error, answer.incarnation_id) == (7, error, message.incarnation_id)
    assert (answer.broker_epoch >= 0) == (error is NONE)
    if error is not NONE:
        assert controller.image.to_records() == before


HEARTBEATS: dict[str, tuple[dict[str, object], ErrorCode]] = {
    "unknown broker": ({"broker_id": 7}, ErrorCode.BROKER_ID_NOT_REGISTERED),
    "broker id below 0": ({"broker_id": -1}, ErrorCode.BROKER_ID_NOT_REGISTERED),
    "older epoch": ({"broker_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
    "epoch of the future": ({"broker_epoch": 2**63 - 1}, ErrorCode.STALE_BROKER_EPOCH),
    "epoch below 0": ({"broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
    "nothing applied, and less": ({"current_metadata_offset": -1}, ErrorCode.INVALID_REQUEST),
    "all wrong": (
        {"broker_id": 7, "broker_epoch": -1, "current_metadata_offset": -1},
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    ),
}


@pytest.mark.parametrize(("fields", "error"), HEARTBEATS.values(), ids=HEARTBEATS)
def test_heartbeats_with_one_changed_field(fields: dict[str, object], error: ErrorCode) -> None:
    controller = Controller()
    before = controller.end
    assert controller.beat(0, want_fence=True, **fields).error is error
    assert controller.end == before
    assert not [effect for effect in controller.effects if isinstance(effect, SetTimer)], "no session is renewed"


def test_heartbeat_offsets_beyond_the_log_end_release_no_broker() -> None:
    controller = Controller()
    for broker in (1, 2):
        assert controller.beat(broker, current_metadata_offset=2**63 - 1).error is NONE
    assert not controller.beat(0, want_shut_down=True).should_shut_down
    assert not controller.beat(0, want_shut_down=True).should_shut_down, "1 and 2 have not heard of the new leaders"
    for broker in (1, 2):
        controller.beat(broker)
    assert controller.beat(0, want_shut_down=True).should_shut_down


FETCHES: dict[str, tuple[dict[str, object], ErrorCode, bool]] = {
    "behind the log": ({"fetch_offset": 2**63 - 1}, NONE, True),
    "an epoch that never was": ({"last_fetched_epoch": 2**31 - 1}, NONE, True),
    "an epoch before all": ({"last_fetched_epoch": -(2**31)}, NONE, True),
    "another cluster": ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID, False),
    "a leader of an epoch that is over": ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH, False),
    "a leader of no epoch": ({"current_leader_epoch": -(2**31)}, ErrorCode.FENCED_LEADER_EPOCH, False),
}


@pytest.mark.parametrize(("fields", "error", "diverges"), FETCHES.values(), ids=FETCHES)
def test_a_metadata_fetch_beyond_the_log_gets_no_records(
    fields: dict[str, object], error: ErrorCode, diverges: bool
) -> None:
    controller = Controller()
    fetch = replace(metadata_fetch(controller.node, 0), **fields)
    [effect] = controller.receive(0, fetch).effects
    assert isinstance(effect, Send)
    answer = effect.message
    assert isinstance(answer, QuorumFetchResponse)
    assert (answer.error, answer.batches) == (error, ())
    assert (answer.leader_id, answer.leader_epoch) == (CONTROLLER, controller.node.replica.epoch)
    assert (0 <= answer.diverging_end_offset <= controller.end) == diverges
    assert controller.receive(CLIENT, admin_requests.delete_topic("u")).sends(QuorumFetchResponse) == [], (
        "no response is pending"
    )


def test_an_unregistered_broker_gets_the_metadata_log_and_does_not_delay_commits() -> None:
    """It may have missed the record that unregistered it."""
    controller = Controller()
    [answer] = controller.receive(7, metadata_fetch(controller.node, 7, offset=0)).sends(QuorumFetchResponse)
    assert answer.batches[-1].next_offset == controller.end
    assert 7 not in controller.image.brokers
    for broker in (1, 2):
        controller.beat(broker)
    assert not controller.beat(0, want_shut_down=True).should_shut_down
    for broker in (1, 2):
        controller.beat(broker)
    assert controller.beat(0, want_shut_down=True).should_shut_down, "only brokers that lead are waited for"


def member(broker: int, epoch: int = -1) -> BrokerState:
    return BrokerState(broker_id=broker, broker_epoch=epoch)


ALTERATIONS: dict[str, tuple[dict[str, object], ErrorCode]] = {
    "no topic": ({"topic_id": ""}, ErrorCode.UNKNOWN_TOPIC_ID),
    "unknown topic id": ({"topic_id": "t"}, ErrorCode.UNKNOWN_TOPIC_ID),
    "unknown partition": ({"partition_id": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "partition below 0": ({"partition_id": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "leader epoch below 0": ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
    "leader epoch of the future": ({"leader_epoch": 2**31 - 1}, ErrorCode.NOT_CONTROLLER),
    "partition epoch below 0": ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
    "partition epoch of the future": ({"partition_epoch": 2**31 - 1}, ErrorCode.NOT_CONTROLLER),
    "an empty ISR": ({"new_isr": ()}, ErrorCode.INVALID_REQUEST),
    "a member twice": ({"new_isr": (member(0), member(1), member(1))}, ErrorCode.INVALID_REQUEST),
    "a member that does not exist": ({"new_isr": (member(0), member(7))}, ErrorCode.INVALID_REQUEST),
    "a member below 0": ({"new_isr": (member(0), member(-1))}, ErrorCode.INVALID_REQUEST),
    "a member without a replica": ({"new_isr": (member(0), member(3))}, ErrorCode.INVALID_REQUEST),
    "not the leader": ({"new_isr": (member(1), member(2))}, ErrorCode.INVALID_REQUEST),
    "a member of another incarnation": ({"new_isr": (member(0), member(1, 0))}, ErrorCode.INELIGIBLE_REPLICA),
    "a member's epoch below -1": ({"new_isr": (member(0), member(1, -2))}, ErrorCode.INELIGIBLE_REPLICA),
    "recovering again": ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
    "a recovery state that is none": ({"leader_recovery_state": 2}, ErrorCode.INVALID_REQUEST),
    "the recovery state of a record": ({"leader_recovery_state": -1}, ErrorCode.INVALID_REQUEST),
}


@pytest.mark.covers("B19", "B23", "C11")
@pytest.mark.parametrize(("fields", "error"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_isr_proposals_with_one_changed_field(fields: dict[str, object], error: ErrorCode) -> None:
    controller = Controller()
    before = controller.end
    assert controller.alter(controller.proposal(0, 0, 1), controller.proposal(2, **fields)) == [NONE, error]
    assert controller.end == before + 1, "the other partition of the request is altered"


@pytest.mark.parametrize("epoch", [-1, 0, 2**63 - 1])
@pytest.mark.parametrize("broker", [0, 7, -1])
def test_isr_proposals_with_a_stale_broker_epoch_are_refused(broker: int, epoch: int) -> None:
    controller = Controller()
    before = controller.end
    message = replace(controller.alteration(broker, controller.proposal(0, 0, 1)), broker_epoch=epoch)
    [answer] = controller.receive(0, message).sends(AlterPartitionResponse)
    assert (answer.error, answer.partitions) == (ErrorCode.STALE_BROKER_EPOCH, ())
    assert controller.end == before


def test_a_second_proposal_of_the_same_partition_epoch_is_refused() -> None:
    controller = Controller()
    shrink, other = controller.proposal(2, 0, 1), controller.proposal(2, 0, 2)
    assert controller.alter(shrink, other, shrink) == [NONE, *[ErrorCode.INVALID_UPDATE_VERSION] * 2]
    unchanged = controller.proposal(2, 0, 1)
    assert controller.alter(unchanged, controller.proposal(2, 0)) == [NONE, NONE]


@pytest.mark.covers("B15")
def test_the_partitions_of_a_request_are_one_batch_of_the_log() -> None:
    controller = Controller()
    before = controller.end
    assert controller.alter(controller.proposal(0, 0, 2), controller.proposal(2, 0, 1)) == [NONE, NONE]
    [committed] = [e for e in controller.effects if isinstance(e, Trace) and e.kind == "committed"]
    assert (committed.base_offset, committed.end_offset) == (before, before + 2)
    assert [type(record) for record in controller.node.records[before:]] == [PartitionChangeRecord] * 2


# -- what clients and followers send to a broker -----------------------------------------------------------------------

PRODUCES: dict[str, tuple[dict[str, object], ErrorCode]] = {
    "acks 7": ({"acks": 7}, ErrorCode.INVALID_REQUIRED_ACKS),
    "acks -2": ({"acks": -2}, ErrorCode.INVALID_REQUIRED_ACKS),
    "no records": ({"batch": batch(0)}, ErrorCode.INVALID_RECORD),
    "less than no records": ({"batch": batch(-1)}, ErrorCode.INVALID_RECORD),
    "unknown topic": ({"topic": "no", "acks": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "unknown partition": ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "partition below 0": ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "offset and epoch of its own": ({"batch": batch(1, base_offset=-7, leader_epoch=99)}, NONE),
}


@pytest.mark.parametrize(("fields", "error"), PRODUCES.values(), ids=PRODUCES)
def test_produce_requests_with_one_changed_field(fields: dict[str, object], error: ErrorCode) -> None:
    bench = BrokerBench().run(*topic_records())
    answer = bench.produce(**({"acks": 1} | fields)).sent(ProduceResponse)  # type: ignore[arg-type]
    assert (answer.error, answer.base_offset) == (error, 0 if error is NONE else -1)
    assert bench.replica.log.end_offset == (error is NONE)
    assert bench.replica.log.latest_epoch == (0 if error is NONE else -1), "the leader stamps what it appends"


CONSUMES: dict[str, tuple[dict[str, object], ErrorCode, int]] = {
    "offset below 0": ({"fetch_offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE, 0),
    "behind the log end": ({"fetch_offset": 2**63 - 1}, ErrorCode.OFFSET_OUT_OF_RANGE, 0),
    "size below 0": ({"max_bytes": -1}, ErrorCode.INVALID_FETCH_SIZE, 0),
    "size 0": ({"max_bytes": 0}, NONE, 1),
    "size beyond the broker's": ({"max_bytes": 2**31 - 1}, NONE, 2),
    "unknown topic": ({"topic": "no"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    "unknown partition": ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
}


@pytest.mark.parametrize(("fields", "error", "batches"), CONSUMES.values(), ids=CONSUMES)
def test_consume_requests_with_one_changed_field(fields: dict[str, object], error: ErrorCode, batches: int) -> None:
    bench = BrokerBench(config=config_of(replica_fetch_max_bytes=150)).run(*topic_records(replicas=(0,), isr=(0,)))
    for _ in range(3):
        bench.produce(batch=batch(payload=b"x" * 100))
    defaults = {"correlation_id": 7, "topic": "t", "partition": 0, "fetch_offset": 0}
    answer = bench.receive(CLIENT, ConsumeRequest(**(defaults | fields))).sent(ConsumeResponse)
    assert (answer.error, len(answer.batches)) == (error, batches)


FETCHES: dict[str, tuple[dict[str, object], ErrorCode]] = {
    "offset below 0": ({"fetch_offset": -1, "last_fetched_epoch": 0}, ErrorCode.OFFSET_OUT_OF_RANGE),
    "unknown topic": ({"topic_id": "U"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "partition below 0": ({"partition_id": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "epoch below 0": ({"current_leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
    "epoch of the future": ({"current_leader_epoch": 2**31 - 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
}


@pytest.mark.parametrize(("fields", "error"), FETCHES.values(), ids=FETCHES)
def test_follower_fetches_with_one_changed_field(fields: dict[str, object], error: ErrorCode) -> None:
    bench = BrokerBench().run(*topic_records()).produce(acks=1)
    defaults = {"topic_id": "T", "partition_id": 0, "current_leader_epoch": 0, "fetch_offset": 0}
    partition = FetchPartition(**(defaults | fields))
    fetch = FetchRequest(replica_id=1, replica_epoch=1, partitions=(partition,))
    [result] = bench.receive(1, fetch).sent(FetchResponse).partitions
    assert (result.error, result.batches, result.fetch_offset) == (error, (), partition.fetch_offset)
    assert bench.replica.leadership is not None
    assert bench.replica.leadership.followers[1].delayed_fetch is None


# -- what a node does not serve ----------------------------------------------------------------------------------------

NOT_SERVED = (BrokerRegistrationRequest, BrokerHeartbeatRequest, AlterPartitionRequest, Request, ClientRequest)


@pytest.mark.parametrize("kind", NOT_SERVED)
def test_a_broker_refuses_requests_that_it_does_not_serve(kind: type[Message]) -> None:
    bench = BrokerBench().run(*topic_records())
    [(to, answer)] = bench.receive(CLIENT, request(kind, Random(0), {}, correlation_id=7)).sends(Response)
    assert (to, answer.correlation_id, answer.error) == (CLIENT, 7, ErrorCode.UNSUPPORTED_VERSION)


def test_a_refused_registration_carries_the_incarnation_id() -> None:
    message = BrokerRegistrationRequest(correlation_id=7, broker_id=1, incarnation_id="new")
    answer = BrokerBench().run(*topic_records()).receive(1, message).sent(BrokerRegistrationResponse)
    assert (answer.error, answer.incarnation_id) == (ErrorCode.UNSUPPORTED_VERSION, "new")


@pytest.mark.parametrize("kind", [*(kind for kind in PUBLISHED if not kind.READ_ONLY), AdminRequest])
def test_a_broker_leaves_administration_to_the_controller(kind: type[Message]) -> None:
    bench = BrokerBench().run(*topic_records())
    answer = bench.receive(CLIENT, request(kind, Random(0), {}, correlation_id=7)).sent(AdminResponse)
    assert (answer.correlation_id, answer.error) == (7, ErrorCode.NOT_CONTROLLER)


def test_a_broker_refuses_producer_id_requests_with_their_response_type() -> None:
    message = InitProducerIdRequest(correlation_id=7)
    answer = BrokerBench().run(*topic_records()).receive(CLIENT, message).sent(InitProducerIdResponse)
    assert (answer.correlation_id, answer.error, answer.producer_id) == (7, ErrorCode.NOT_CONTROLLER, -1)


@pytest.mark.parametrize("kind", [ProduceRequest, ConsumeRequest, Request, ClientRequest, AdminRequest])
def test_a_controller_refuses_requests_that_it_does_not_serve(kind: type[Message]) -> None:
    controller = Controller()
    before = controller.end
    [answer] = controller.receive(CLIENT, request(kind, Random(0), {}, correlation_id=7)).sends(Response)
    assert (answer.correlation_id, answer.error) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert controller.end == before


NO_REQUESTS: list[Message] = [
    TopicRecord(name="x", topic_id="X"),
    batch(),
    ProduceCommand(command_id=1, topic="t", partition=0, acks=1, record_count=1, payload=b""),
    BrokerHeartbeatResponse(correlation_id=1),
    ProduceResponse(correlation_id=1),
    Message(),
]


@pytest.mark.parametrize("message", NO_REQUESTS, ids=lambda message: type(message).__name__)
def test_unexpected_responses_are_dropped_with_a_trace(message: Message) -> None:
    controller, broker = Controller(), BrokerBench().run(*topic_records())
    for effects in (controller.receive(1, message).effects, broker.receive(1, message).effects):
        [refused] = effects
        assert isinstance(refused, Trace)
        assert (refused.kind, refused.message, refused.sender) == ("refused", type(message).__name__, 1)


@pytest.mark.parametrize("kind", READ_ONLY_REQUESTS)
def test_brokers_and_controllers_answer_queries(kind: type[AdminRequest]) -> None:
    message = request(kind, Random(0), {"resource_name": ("t",)}, correlation_id=7, principal="User:alice")
    controller, broker = Controller(), BrokerBench().run(*topic_records())
    [answer] = controller.receive(CLIENT, message).sends(AdminResponse)
    assert type(broker.receive(CLIENT, message).sent(AdminResponse)) is type(answer) is not AdminResponse
