"""A controller with one partition, `t-0`, that is reassigned."""

from __future__ import annotations

from experiments.engines import admin_requests
from protocol.config import Generation
from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode
from protocol.messages.partitions import AlterPartitionReassignmentsRequest
from protocol.messages.records import MetadataRecord
from protocol.metadata.partition import PartitionState
from tests.unit.protocol.node_helpers import ControllerBench, config_of, registrations, topic_records

KIP_966 = Generation.KIP_966
CANCEL = admin_requests.reassign("t", 0, None)


def bench(*records: MetadataRecord, generation: Generation = KIP_966, **partition: object) -> ControllerBench:
    """Brokers 0..5 are active, 6 is fenced; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    base = [*registrations(range(7), fenced=(6,)), *topic_records(2, **partition)]
    return ControllerBench(*base, *records, config=config_of(generation))


def under_way(
    isr: tuple[int, ...], *records: MetadataRecord, leader: int = 0, generation: Generation = KIP_966, **more: object
) -> ControllerBench:
    """`t-0` moves from 0, 1, 2 to 0, 1, 3."""
    moving = {"replicas": (0, 1, 3, 2), "adding_replicas": (3,), "removing_replicas": (2,)} | more
    return bench(*records, generation=generation, isr=isr, leader=leader, **moving)


def reassign(*replicas: int, topic: str = "t", partition: int = 0) -> AlterPartitionReassignmentsRequest:
    return admin_requests.reassign(topic, partition, replicas)


def error_of(found: ControllerResult) -> ErrorCode:
    return found.response.failure()[0]


def done(controller: ControllerBench, request: AlterPartitionReassignmentsRequest) -> PartitionState:
    """The partition after a request that is carried out."""
    found = handle(controller.state, request)
    assert error_of(found) is ErrorCode.NONE, found.response.failure()
    controller.apply(found.records)
    return controller.partition()


def after_isr(controller: ControllerBench, *isr: int) -> PartitionState:
    """The partition after its leader has proposed an ISR."""
    record = controller.state.change(next(iter(dict(controller.state.image.partitions()))), target_isr=isr)
    controller.apply([record] if record is not None else [])
    return controller.partition()


def is_moving(state: PartitionState) -> bool:
    return bool(state.adding_replicas or state.removing_replicas)
