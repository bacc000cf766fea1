"""Conformance of the controller as a whole: recorded sequences of events, replayed on a `ControllerNode`.

A trace is one JSON line: events on one controller with one topic `foo` of one partition, each with its result (an
error's name, or a heartbeat's reply) and the partition's state afterwards (`controller.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from experiments.conformance.controller import (
    AlterPartition,
    BrokerEvent,
    HeartbeatReply,
    RegisterBroker,
    ReplayedController,
)
from experiments.conformance.shapes import Brokers, Difference, PartitionShape, Replicas, compare, state_fields
from experiments.engines.admin_requests import create_topic, elect_leader, reassign
from experiments.support.fields import StrictModel
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.kafka_release import KafkaRelease
from protocol.messages.admin import AdminRequest
from protocol.messages.partitions import ElectionType

TOPIC = "foo"


class CreateTopic(StrictModel):
    type: Literal["create_topic"]
    name: Literal["foo"]
    replicas: Replicas
    min_insync_replicas: Annotated[int, Field(ge=1)]


class ElectLeaders(StrictModel):
    type: Literal["elect_leaders"]
    election_type: Literal["PREFERRED", "UNCLEAN"]


class Reassign(StrictModel):
    """`replicas` None cancels."""

    type: Literal["alter_partition_reassignments"]
    replicas: Brokers | None


Event = Annotated[
    RegisterBroker | BrokerEvent | CreateTopic | AlterPartition | ElectLeaders | Reassign, Field(discriminator="type")
]


class Step(StrictModel):
    event: Event
    result: str | HeartbeatReply
    partition: PartitionShape | None


class ControllerTraceRow(StrictModel):
    """`fault`: the exception with which Kafka's controller ended the sequence, if it did; not compared."""

    elr_enabled: bool
    effective_min_insync_replicas: Annotated[int, Field(ge=1)]
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    fault: str | None = None


def differences(
    row: ControllerTraceRow, kafka_release: KafkaRelease, kafka_rules: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    """The differences of the first step whose answer, for this release and under these of Kafka's rules, differs from
    the recorded one."""
    controller = ReplayedController(row.elr_enabled, kafka_release, kafka_rules)
    for index, step in enumerate(row.steps):
        result = _apply(controller, step.event)
        controller.settle()
        recorded = step.result.model_dump() if isinstance(step.result, HeartbeatReply) else step.result
        unlike = [] if result == recorded else [Difference(f"steps[{index}].result", recorded, result)]
        unlike += compare(f"steps[{index}].partition", step.partition, _partition(controller))
        min_isr = row.effective_min_insync_replicas
        if isinstance(step.event, CreateTopic) and _min_isr(controller) != min_isr:
            unlike.append(Difference("effective_min_insync_replicas", min_isr, _min_isr(controller)))
        if unlike:
            return tuple(unlike)
    return ()


def _apply(controller: ReplayedController, event: Event) -> object:
    request: AdminRequest
    match event:
        case RegisterBroker() | BrokerEvent():
            return controller.broker_event(event)
        case AlterPartition():
            return controller.alter_partition(TOPIC, 0, event)
        case CreateTopic():
            request = create_topic(TOPIC, (event.replicas,), {MIN_INSYNC_REPLICAS: event.min_insync_replicas})
        case ElectLeaders():
            request = elect_leader(TOPIC, 0, ElectionType[event.election_type])
        case Reassign():
            request = reassign(TOPIC, 0, event.replicas)
    error, _ = controller.ask(request).failure()
    return error.name


def _partition(controller: ReplayedController) -> dict[str, object] | None:
    topic = controller.image.topic_named(TOPIC)
    return None if topic is None else state_fields(topic.partitions[0])


def _min_isr(controller: ReplayedController) -> int | None:
    """The min ISR that is effective for the partition, whatever the generation."""
    topic = controller.image.topic_named(TOPIC)
    if topic is None:
        return None
    configured = controller.image.int_config(topic.topic_id, MIN_INSYNC_REPLICAS)
    return min(configured, len(topic.partitions[0].replicas))
