"""Producer ids: each is allocated once, across restarts of the controller and snapshots."""

from __future__ import annotations

from random import Random

import pytest

from experiments.engines.sim.disk import SimStorage, formatted_disk
from protocol.contract import Effect, Send
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.messages.acls import (
    AclEntry,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    CreateAclsRequest,
    PatternType,
)
from protocol.messages.admin import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import ProducerIdsRecord
from protocol.metadata.image import MetadataImage
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, ControllerBench, config_of


def controller(storage: SimStorage) -> ControllerNode:
    node = ControllerNode(CONTROLLER, [CONTROLLER], config_of(), storage, Random(1))
    node.start(0)
    return node


def ask(node: ControllerNode, number: int) -> InitProducerIdResponse:
    effects: list[Effect] = node.receive(0, CLIENT, InitProducerIdRequest(correlation_id=number))
    [answer] = [effect.message for effect in effects if isinstance(effect, Send)]
    assert isinstance(answer, InitProducerIdResponse)
    assert answer.correlation_id == number
    return answer


def test_every_producer_gets_another_id_across_restarts() -> None:
    storage = formatted_disk()
    given: list[int] = []
    for _ in range(3):
        node = controller(storage)
        answers = [ask(node, number) for number in range(2)]
        assert {(answer.error, answer.producer_epoch) for answer in answers} == {(ErrorCode.NONE, 0)}
        given += [answer.producer_id for answer in answers]
    assert given == [0, 1, 2, 3, 4, 5]


def test_a_replayed_image_continues_with_the_next_id() -> None:
    bench = ControllerBench(ProducerIdsRecord(next_producer_id=41))
    records = bench.state.image.to_records()
    assert len(records) == bench.state.image.size
    again = MetadataImage(config_of())
    again.load(records, 1)
    assert again.next_producer_id == 41


def test_allocated_ids_are_not_allocated_again() -> None:
    bench = ControllerBench(ProducerIdsRecord(next_producer_id=41))
    with pytest.raises(ProtocolInvariantError):
        bench.apply((ProducerIdsRecord(next_producer_id=40),))


ALICE, BOB = "User:alice", "User:bob"
SECURED = config_of(**{"authorizer_class_name": "standard", "super_users": "User:root"})


def allowed(operation: AclOperation, permission: AclPermissionType = AclPermissionType.ALLOW) -> AclEntry:
    return AclEntry(
        resource_type=AclResourceType.TOPIC,
        resource_name="t",
        pattern_type=PatternType.LITERAL,
        principal=ALICE,
        operation=operation,
        permission_type=permission,
    )


@pytest.mark.parametrize(
    ("principal", "entry", "error"),
    [
        (ALICE, allowed(AclOperation.WRITE), ErrorCode.NONE),
        (ALICE, allowed(AclOperation.ALL), ErrorCode.NONE),
        (ALICE, allowed(AclOperation.READ), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ALICE, allowed(AclOperation.WRITE, AclPermissionType.DENY), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (BOB, allowed(AclOperation.WRITE), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ("User:root", allowed(AclOperation.READ), ErrorCode.NONE),
    ],
)
def test_a_principal_that_may_write_to_some_topic_may_have_an_id(
    principal: str, entry: AclEntry, error: ErrorCode
) -> None:
    node = ControllerNode(CONTROLLER, [CONTROLLER], SECURED, formatted_disk(), Random(1))
    node.start(0)
    node.receive(0, CLIENT, CreateAclsRequest(correlation_id=0, principal="User:root", creations=(entry,)))
    before = len(node.records)
    effects = node.receive(0, CLIENT, InitProducerIdRequest(correlation_id=1, principal=principal))
    [answer] = [effect.message for effect in effects if isinstance(effect, Send)]
    assert isinstance(answer, InitProducerIdResponse)
    assert answer.error is error
    assert len(node.records) - before == (error is ErrorCode.NONE)
