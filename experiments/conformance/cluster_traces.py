"""Conformance of a cluster's controller: recorded sequences of events on several topics and on the cluster's settings.

A trace is one JSON line. A step has an event, its result (an error's name, a heartbeat's reply, or errors by partition)
and the states of all partitions that it changed, None for one that is gone; every other partition has to be as it was.
Changes of the ELR's feature level are changes of `metadata.version` here, which brings the ELR (`controller.py`).
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
from experiments.conformance.shapes import (
    Broker,
    Brokers,
    Difference,
    PartitionShape,
    Replicas,
    compare_fields,
    state_fields,
)
from experiments.engines.admin_requests import (
    add_partitions,
    alter_config,
    create_topic,
    delete_topic,
    reassign,
    unregister_broker,
    update_feature,
)
from experiments.support.fields import StrictModel
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.features import METADATA_VERSION, METADATA_VERSION_ELR
from protocol.ids import TopicPartition
from protocol.kafka_release import KafkaRelease
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import UpgradeType
from protocol.messages.partitions import ElectionType, ElectLeadersRequest, ElectLeadersResponse, TopicPartitions

Index = Annotated[int, Field(ge=0)]
Assignments = Annotated[tuple[Replicas, ...], Field(min_length=1)]


class CreateTopic(StrictModel):
    type: Literal["create_topic"]
    name: str
    assignments: Assignments
    min_insync_replicas: Annotated[int, Field(ge=1)] | None


class DeleteTopic(StrictModel):
    type: Literal["delete_topic"]
    name: str


class CreatePartitions(StrictModel):
    type: Literal["create_partitions"]
    name: str
    present: Annotated[int, Field(ge=1)]
    assignments: Assignments


class AlterConfig(StrictModel):
    """`topic` None: cluster-wide. `value` None removes an override."""

    type: Literal["alter_config"]
    topic: str | None
    name: Literal["min.insync.replicas", "unclean.leader.election.enable"]
    value: str | None


class UpdateFeature(StrictModel):
    type: Literal["update_feature"]
    feature: Literal["eligible.leader.replicas.version"]
    level: Annotated[int, Field(ge=0, le=1)]
    upgrade_type: Literal["UPGRADE", "SAFE_DOWNGRADE"]


class UnregisterBroker(StrictModel):
    type: Literal["unregister_broker"]
    broker_id: Broker


class AlterTopicPartition(AlterPartition):
    topic: str
    partition: Index


class ElectLeaders(StrictModel):
    """`partitions` None: all."""

    type: Literal["elect_leaders"]
    election_type: Literal["PREFERRED", "UNCLEAN"]
    partitions: tuple[tuple[str, Index], ...] | None


class Reassign(StrictModel):
    """`replicas` None cancels."""

    type: Literal["alter_partition_reassignments"]
    topic: str
    partition: Index
    replicas: Brokers | None


Event = Annotated[
    RegisterBroker
    | BrokerEvent
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfig
    | UpdateFeature
    | UnregisterBroker
    | AlterTopicPartition
    | ElectLeaders
    | Reassign,
    Field(discriminator="type"),
]


class ClusterStep(StrictModel):
    event: Event
    result: str | HeartbeatReply | dict[str, str]
    partitions: dict[str, PartitionShape | None]


class ClusterTraceRow(StrictModel):
    """`fault`: the exception with which Kafka's controller ended the sequence, if it did; not compared."""

    elr_enabled: bool
    steps: Annotated[tuple[ClusterStep, ...], Field(min_length=1)]
    fault: str | None = None


def differences(
    row: ClusterTraceRow, kafka_release: KafkaRelease, kafka_rules: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    """The differences of the first step whose answer, for this release and under these of Kafka's rules, differs from
    the recorded one."""
    controller = ReplayedController(row.elr_enabled, kafka_release, kafka_rules)
    expected: dict[str, dict[str, object]] = {}
    for index, step in enumerate(row.steps):
        result = _apply(controller, step.event)
        controller.settle()
        recorded = step.result.model_dump() if isinstance(step.result, HeartbeatReply) else step.result
        unlike = [] if result == recorded else [Difference(f"steps[{index}].result", recorded, result)]
        expected |= {name: state.model_dump() for name, state in step.partitions.items() if state is not None}
        for name in (name for name, state in step.partitions.items() if state is None):
            expected.pop(name, None)
        found = _partitions(controller)
        for name in sorted(expected.keys() | found.keys()):
            where = f"steps[{index}].partitions.{name}"
            unlike += compare_fields(where, expected.get(name), found.get(name))
        if unlike:
            return tuple(unlike)
    return ()


def _partitions(controller: ReplayedController) -> dict[str, dict[str, object]]:
    return {
        str(TopicPartition(topic.name, index)): state_fields(state)
        for topic in controller.image.topics.values()
        for index, state in topic.partitions.items()
    }


def _apply(controller: ReplayedController, event: Event) -> object:
    match event:
        case RegisterBroker() | BrokerEvent():
            return controller.broker_event(event)
        case AlterTopicPartition():
            return controller.alter_partition(event.topic, event.partition, event)
        case ElectLeaders():
            return _elect(controller, event)
    error, _ = controller.ask(_request(event)).failure()
    return error.name


def _request(event: Event) -> AdminRequest:
    match event:
        case CreateTopic():
            own = None if event.min_insync_replicas is None else {MIN_INSYNC_REPLICAS: event.min_insync_replicas}
            return create_topic(event.name, event.assignments, own)
        case DeleteTopic():
            return delete_topic(event.name)
        case CreatePartitions():
            return add_partitions(event.name, event.present, event.assignments)
        case AlterConfig():
            return alter_config(event.topic, {event.name: event.value})
        case UpdateFeature():
            level = METADATA_VERSION_ELR if event.level else METADATA_VERSION_ELR - 1
            return update_feature(METADATA_VERSION, level, UpgradeType[event.upgrade_type])
        case UnregisterBroker():
            return unregister_broker(event.broker_id)
        case Reassign():
            return reassign(event.topic, event.partition, event.replicas)
    raise TypeError(event)


def _elect(controller: ReplayedController, event: ElectLeaders) -> dict[str, str]:
    named = event.partitions
    request = ElectLeadersRequest(
        correlation_id=0,
        election_type=ElectionType[event.election_type],
        topic_partitions=None
        if named is None
        else tuple(TopicPartitions(topic=topic, partitions=(index,)) for topic, index in named),
    )
    response = controller.ask(request)
    assert isinstance(response, ElectLeadersResponse)
    return {f"{each.topic}-{each.partition_index}": each.error.name for each in response.partitions}
