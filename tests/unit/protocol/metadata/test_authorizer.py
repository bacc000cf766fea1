"""The authorizer: rights by entry, and its enforcement for clients, brokers and nodes that claim to be others."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines import admin_requests
from experiments.engines.sim.disk import formatted_disk
from experiments.support.metadata_fetch import metadata_fetch
from protocol.client.context import GATHER_PREFIX
from protocol.contract import Effect, Exit, Send
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.ids import DRIVER
from protocol.messages.acls import (
    AclEntry,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    CreateAclsRequest,
    PatternType,
)
from protocol.messages.admin import (
    AdminResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from protocol.messages.base import Message, field_values
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    Command,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    ShutdownCommand,
)
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
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
from protocol.messages.quorum import FetchSnapshotRequest, FetchSnapshotResponse, QuorumFetchResponse
from protocol.messages.records import AccessControlEntryRecord, MetadataRecord
from protocol.metadata.authorizer import may, node_principal
from protocol.metadata.image import MetadataImage
from protocol.nodes.client import ClientNode
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, BrokerBench, config_of, topic_records

ALICE, BOB, EVERYONE = "User:alice", "User:bob", "User:*"
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
Op = AclOperation
SECURE: dict[str, Any] = {"authorizer_class_name": "standard"}


def entry(
    operation: AclOperation,
    name: str = "t",
    permission: AclPermissionType = ALLOW,
    principal: str = ALICE,
    pattern: PatternType = LITERAL,
) -> AclEntry:
    """An entry for a topic; for the cluster where `name` is its name."""
    is_cluster = name == "kafka-cluster"
    return AclEntry(
        resource_type=AclResourceType.CLUSTER if is_cluster else AclResourceType.TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        operation=operation,
        permission_type=permission,
    )


def cluster(operation: AclOperation, principal: str = ALICE) -> AclEntry:
    return entry(operation, "kafka-cluster", principal=principal)


def image_of(*entries: AclEntry, **values: Any) -> MetadataImage:
    image = MetadataImage(config_of(**(SECURE | values)))
    for item in entries:
        image.replay(AccessControlEntryRecord(entry=item))
    return image


# -- the decision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", Op)
def test_without_an_authorizer_every_operation_is_allowed(operation: AclOperation) -> None:
    image = image_of(entry(Op.ALL, "*", DENY, EVERYONE), authorizer_class_name="")
    assert may(image, "", operation)
    assert may(image, ALICE, operation, "t")


def test_super_users_are_allowed_every_operation_despite_denials() -> None:
    image = image_of(entry(Op.ALL, "*", DENY, EVERYONE), super_users=" User:root ; User:alice;")
    assert may(image, ALICE, Op.READ, "t")
    assert may(image, "User:root", Op.ALTER)
    assert not may(image, BOB, Op.READ, "t")


@pytest.mark.parametrize("super_users", ["", ";", "User:alice;"])
@pytest.mark.parametrize("principal", ["", " ", "User:", "User:*", "Node:broker-0"])
def test_an_invalid_principal_has_no_rights(super_users: str, principal: str) -> None:
    image = image_of(super_users=super_users)
    assert not may(image, principal, Op.ALTER)
    assert not may(image, principal, Op.READ, "t")


ENTRIES = st.builds(
    entry,
    operation=st.sampled_from(Op),
    name=st.sampled_from(["t", "te", "test", "u", "*"]),
    permission=st.sampled_from(AclPermissionType),
    principal=st.sampled_from([ALICE, BOB, EVERYONE]),
    pattern=st.sampled_from(PatternType),
)


@given(entries=st.lists(ENTRIES, max_size=6, unique=True), more=ENTRIES, operation=st.sampled_from(Op), data=st.data())
def test_an_allow_entry_only_adds_rights_and_a_deny_entry_only_removes_them(
    entries: list[AclEntry], more: AclEntry, operation: AclOperation, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["t", "te", "test", "u"]))
    before, after = (may(image_of(*items), ALICE, operation, name) for items in (entries, [*entries, more]))
    assert before <= after if more.permission_type is ALLOW else after <= before
    shuffled = data.draw(st.permutations(entries))
    assert may(image_of(*shuffled), ALICE, operation, name) is before, "order does not matter"


# -- the controller ----------------------------------------------------------------------------------------------------


class Controller:
    """A controller node with the authorizer on; broker 0 is registered and unfenced."""

    def __init__(self, **values: Any) -> None:
        config = config_of(**(SECURE | {"super_users": "User:root"} | values))
        self.node = ControllerNode(CONTROLLER, [CONTROLLER], config, formatted_disk(), Random(1))
        self.node.start(0)
        self.register(0)
        beat = {"broker_epoch": self.node.state.image.broker_epoch(0), "current_metadata_offset": self.end}
        self.receive(0, BrokerHeartbeatRequest(**({"correlation_id": 1, "broker_id": 0} | beat)))

    @property
    def end(self) -> int:
        return len(self.node.records)

    def receive(self, sender: int, message: Message) -> list[Effect]:
        return self.node.receive(0, sender, message)

    def register(self, broker: int, sender: int | None = None) -> list[Effect]:
        request = BrokerRegistrationRequest(correlation_id=9, broker_id=broker, incarnation_id=f"incarnation-{broker}")
        return self.receive(broker if sender is None else sender, request)

    def give(self, *entries: AclEntry) -> None:
        request = CreateAclsRequest(correlation_id=9, principal="User:root", creations=entries)
        assert answered(self.receive(CLIENT, request), AdminResponse).failure()[0] is ErrorCode.NONE


def answered(effects: list[Effect], kind: type[Any]) -> Any:
    [message] = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]
    return message


OF_BROKERS = {
    "registration": (
        BrokerRegistrationRequest(correlation_id=9, broker_id=5, incarnation_id="x"),
        BrokerRegistrationResponse,
    ),
    "heartbeat": (
        BrokerHeartbeatRequest(
            correlation_id=9, broker_id=0, broker_epoch=4, current_metadata_offset=9, want_fence=True
        ),
        BrokerHeartbeatResponse,
    ),
    "AlterPartition": (
        AlterPartitionRequest(correlation_id=9, broker_id=0, broker_epoch=4, partitions=()),
        AlterPartitionResponse,
    ),
}


@pytest.mark.covers("B9", "G8", "G32", "M86")
@pytest.mark.parametrize(("request_", "response"), OF_BROKERS.values(), ids=OF_BROKERS)
def test_a_client_needs_cluster_action_for_requests_of_brokers(request_: Message, response: type[Any]) -> None:
    controller = Controller()
    assert controller.node.state.image.broker_epoch(0) == 4
    before = controller.end
    refused = answered(controller.receive(CLIENT, request_), response)
    assert (refused.correlation_id, refused.error) == (9, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert controller.end == before
    controller.give(cluster(Op.CLUSTER_ACTION, node_principal(CLIENT)))
    assert answered(controller.receive(CLIENT, request_), response).error is ErrorCode.NONE


def test_a_client_may_not_fetch_the_metadata_log() -> None:
    controller = Controller()
    whole = metadata_fetch(controller.node, 0, offset=0)
    own = ("fetch_offset", "last_fetched_epoch", "high_watermark")
    common = {name: value for name, value in field_values(whole).items() if name not in own}
    snapshot = FetchSnapshotRequest(**common, snapshot_epoch=0, snapshot_end_offset=1, position=0)
    for fetch in (whole, snapshot):
        refused, answer = controller.receive(CLIENT, fetch)
        assert isinstance(refused, Trace)
        assert (refused.kind, refused.error) == ("refused", "CLUSTER_AUTHORIZATION_FAILED")
        kind, error = fetch.response_type(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert answer == Send(CLIENT, kind(correlation_id=fetch.correlation_id, error=error))
    assert answered(controller.receive(0, whole), QuorumFetchResponse).batches
    assert answered(controller.receive(0, snapshot), FetchSnapshotResponse).error is ErrorCode.SNAPSHOT_NOT_FOUND
    controller.give(cluster(Op.CLUSTER_ACTION, node_principal(CLIENT)))
    assert answered(controller.receive(CLIENT, whole), QuorumFetchResponse).batches


def test_only_the_cluster_and_the_experiment_shut_a_node_down() -> None:
    assert not any(isinstance(effect, Exit) for effect in Controller().receive(CLIENT, ShutdownCommand()))
    assert any(isinstance(effect, Exit) for effect in Controller().receive(DRIVER, ShutdownCommand()))


@pytest.mark.covers("G32")
@pytest.mark.parametrize("principal", ["Node:broker-0", "Node:controller-1000", "User:client-3000", "broker-0", ""])
def test_a_principal_named_like_a_broker_has_no_rights_of_a_broker(principal: str) -> None:
    controller = Controller()
    before = controller.end
    request = replace(admin_requests.unregister_broker(0), principal=principal)
    refused = answered(controller.receive(CLIENT, request), AdminResponse)
    assert refused.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert controller.end == before


def test_without_an_authorizer_requests_of_clients_are_not_refused() -> None:
    controller = Controller(authorizer_class_name="")
    found = answered(controller.register(5, sender=CLIENT), BrokerRegistrationResponse)
    assert found.error is ErrorCode.NONE


# -- the broker --------------------------------------------------------------------------------------------------------


def broker(*entries: AclEntry) -> BrokerBench:
    """Broker 0 with the authorizer on, leading `t-0`."""
    records: list[MetadataRecord] = [AccessControlEntryRecord(entry=item) for item in entries]
    return BrokerBench(config=config_of(**SECURE)).run(*topic_records(), *records)


def produce(bench: BrokerBench, topic: str = "t", acks: int = 1) -> BrokerBench:
    return bench.produce(acks=acks, topic=topic, principal=ALICE)


def consume(bench: BrokerBench, topic: str = "t") -> ErrorCode:
    request = ConsumeRequest(correlation_id=7, topic=topic, partition=0, fetch_offset=0, principal=ALICE)
    return bench.receive(CLIENT, request).sent(ConsumeResponse).error


def metadata(bench: BrokerBench, topic: str = "t") -> MetadataResponse:
    request = MetadataRequest(correlation_id=7, topic=topic, principal=ALICE)
    return bench.receive(CLIENT, request).sent(MetadataResponse)


RIGHTS = {
    "none": ((), (False, False, False)),
    "describe": ((entry(Op.DESCRIBE),), (False, False, True)),
    "read": ((entry(Op.READ),), (False, True, True)),
    "write": ((entry(Op.WRITE),), (True, False, True)),
    "all": ((entry(Op.ALL),), (True, True, True)),
}


@pytest.mark.covers("G32")
@pytest.mark.parametrize(("entries", "rights"), RIGHTS.values(), ids=RIGHTS)
def test_the_data_path_needs_write_read_and_describe(entries: tuple[AclEntry, ...], rights: tuple[bool, ...]) -> None:
    bench = broker(*entries)
    errors = (produce(bench).sent(ProduceResponse).error, consume(bench), metadata(bench).error)
    expected = (ErrorCode.NONE if right else ErrorCode.TOPIC_AUTHORIZATION_FAILED for right in rights)
    assert errors == tuple(expected)
    assert bench.replica.log.end_offset == int(rights[0])
    assert bool(metadata(bench).topics) == rights[2]


def test_a_principal_without_rights_does_not_learn_whether_a_topic_exists() -> None:
    bench = broker()
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for topic in ("t", "no"):
        assert produce(bench, topic).sent(ProduceResponse).error is refused
        assert consume(bench, topic) is refused
        assert metadata(bench, topic).error is refused


def test_a_produce_without_acks_is_dropped_without_the_right() -> None:
    bench = produce(broker(), acks=0)
    assert bench.sends(ProduceResponse) == []
    assert bench.replica.log.end_offset == 0


@pytest.mark.covers("G32")
def test_a_client_fetches_as_a_replica_only_with_cluster_action() -> None:
    partition = FetchPartition(topic_id="T", partition_id=0, current_leader_epoch=0, fetch_offset=0)
    fetch = FetchRequest(replica_id=1, replica_epoch=1, partitions=(partition,))
    [result] = broker().receive(CLIENT, fetch).sent(FetchResponse).partitions
    assert (result.partition_id, result.error) == (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    trusted = broker(cluster(Op.CLUSTER_ACTION, node_principal(CLIENT))).receive(CLIENT, fetch)
    [result] = trusted.sent(FetchResponse).partitions
    assert result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is no replica"


FORGED: list[Message] = [
    BrokerRegistrationResponse(correlation_id=1, incarnation_id="forged", broker_epoch=77),
    BrokerHeartbeatResponse(correlation_id=1, is_fenced=True),
    AlterPartitionResponse(correlation_id=1, error=ErrorCode.NOT_CONTROLLER),
    QuorumFetchResponse(correlation_id=1, leader_id=CLIENT, leader_epoch=99),
    FetchSnapshotResponse(correlation_id=1, leader_id=CLIENT, leader_epoch=99),
]


@pytest.mark.parametrize("authorizer", ["", "standard"])
@pytest.mark.parametrize("sender", [CLIENT, 1], ids=["client", "broker"])
@pytest.mark.parametrize("message", FORGED, ids=lambda message: type(message).__name__)
def test_a_broker_takes_the_controllers_answers_from_controllers_only(
    message: Message, sender: int, authorizer: str
) -> None:
    bench = BrokerBench(config=config_of(authorizer_class_name=authorizer)).run(*topic_records())
    state, epoch = bench.node.state, bench.node.replica.epoch
    [refused] = bench.receive(sender, message).effects
    assert isinstance(refused, Trace)
    assert (refused.kind, refused.sender) == ("refused", sender)
    assert (bench.node.state, bench.node.context.controller_id) == (state, CONTROLLER)
    assert (bench.node.replica.epoch, bench.node.replica.leader) == (epoch, CONTROLLER)


# -- the client --------------------------------------------------------------------------------------------------------


class Client:
    """A client node with one command under way; `sent` is what it sent last."""

    def __init__(self, command: Command, principal: str | None = None) -> None:
        self.node = ClientNode(CLIENT, [0, 1], [CONTROLLER], config_of(), principal)
        self.sent: list[tuple[int, Any]] = []
        self.take(self.node.receive(0, DRIVER, command))
        for to, sent in self.sent:
            if isinstance(sent, InitProducerIdRequest):
                answer = InitProducerIdResponse(correlation_id=sent.correlation_id, producer_id=5, producer_epoch=0)
                self.node.receive(0, to, answer)

    def take(self, effects: list[Effect]) -> Client:
        self.sent = [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]
        return self

    def answer(self, sender: int, message: Message) -> Client:
        return self.take(self.node.receive(0, sender, message))


PRODUCE = ProduceCommand(command_id=1, topic="t", partition=0, acks=-1, record_count=1, payload=b"x")
CONSUME = ConsumeCommand(command_id=1, topic="t", partition=0)
ADMIN = AdminCommand(command_id=1, request=admin_requests.delete_topic("t"))
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def led(correlation_id: int) -> MetadataResponse:
    return MetadataResponse(
        correlation_id=correlation_id,
        topics=(TopicMetadata(name="t", topic_id="T", partitions=(PartitionMetadata(partition=0, leader=1),)),),
    )


@pytest.mark.parametrize(("principal", "expected"), [(None, "User:client-3000"), (ALICE, ALICE)])
def test_a_client_puts_its_principal_on_every_request(principal: str | None, expected: str) -> None:
    for command, kind in ((PRODUCE, ProduceRequest), (CONSUME, ConsumeRequest)):
        client = Client(command, principal)
        assert {(to, message.principal) for to, message in client.sent} == {(n, expected) for n in (0, 1, CONTROLLER)}
        for node in (0, 1, CONTROLLER):
            client.answer(node, led(1))
        [(leader, request)] = client.sent
        assert (leader, type(request), request.principal) == (1, kind, expected)
    [(_, request)] = Client(ADMIN, principal).sent
    assert request.principal == expected


def test_a_request_that_has_a_principal_keeps_it() -> None:
    request = replace(admin_requests.delete_topic("t"), principal=BOB)
    [(_, sent)] = Client(AdminCommand(command_id=1, request=request), ALICE).sent
    assert sent.principal == BOB


@pytest.mark.parametrize("command", [PRODUCE, CONSUME], ids=["produce", "consume"])
def test_a_client_without_describe_on_the_topic_fails_at_once(command: Command) -> None:
    client = Client(command)
    for node in (0, 1, CONTROLLER):
        client.answer(node, MetadataResponse(correlation_id=1, error=DENIED))
    [(driver, outcome)] = client.sent
    assert isinstance(outcome, ProduceOutcome | ConsumeOutcome)
    assert (driver, outcome.error) == (DRIVER, DENIED)
    assert not getattr(outcome, "unknown", False)


def test_a_client_tries_other_nodes_where_one_lacks_the_acl() -> None:
    client = Client(PRODUCE).answer(0, MetadataResponse(correlation_id=1, error=DENIED)).answer(1, led(1))
    client.take(client.node.fire(50, f"{GATHER_PREFIX}t"))
    assert [(to, type(message)) for to, message in client.sent] == [(1, ProduceRequest)]


@pytest.mark.parametrize(
    ("command", "response"), [(PRODUCE, ProduceResponse), (CONSUME, ConsumeResponse)], ids=["produce", "consume"]
)
def test_a_client_that_the_leader_does_not_authorize_fails_at_once(command: Command, response: type[Any]) -> None:
    client = Client(command)
    for node in (0, 1, CONTROLLER):
        client.answer(node, led(1))
    [(_, request)] = client.sent
    [(driver, outcome)] = client.answer(1, response(correlation_id=request.correlation_id, error=DENIED)).sent
    assert (driver, outcome.error) == (DRIVER, DENIED)


def test_a_response_of_another_type_is_refused_and_the_right_one_still_counts() -> None:
    client = Client(ADMIN)
    [(_, request)] = client.sent
    number = request.correlation_id
    assert client.answer(CONTROLLER, ProduceResponse(correlation_id=number)).sent == []
    assert client.answer(CONTROLLER, MetadataResponse(correlation_id=number)).sent == []
    [(_, outcome)] = client.answer(CONTROLLER, AdminResponse(correlation_id=number)).sent
    assert isinstance(outcome, AdminOutcome)
    assert outcome.error is ErrorCode.NONE
