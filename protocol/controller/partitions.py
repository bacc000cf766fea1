"""CreatePartitions and RemovePartitions, and the records of new partitions (A19, A21, J19).

The ISR of a new partition is its active replicas in the order of the assignment, and the first of them leads (A19). All
partitions of a topic have as many replicas as partition 0.

Departures from Kafka's code: while partition 0 is being reassigned, its final number of replicas counts. Removing
partitions comes from the V3 design (A9, A21): only the last partitions of a topic are removed, so that indexes have no
gaps, and never all of them; a partition that is added again begins in a leader epoch above all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult, admitted, named_twice, require_once, topic_named
from protocol.controller.placement import place, usable_brokers
from protocol.errors import ErrorCode, Refused
from protocol.ids import BrokerId, Epoch
from protocol.kafka_rules import FIRST_PARTITION_COUNTS
from protocol.messages.acls import AclOperation
from protocol.messages.admin import AdminRequest
from protocol.messages.records import MetadataRecord, PartitionRecord, RemovePartitionRecord
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    RemovePartitionsRequest,
    RemovePartitionsResponse,
    RemovePartitionsTopic,
    TopicResult,
)
from protocol.metadata.authorizer import require_access

MAX_PARTITIONS_PER_REQUEST = 10_000
"""How many partitions one request may concern, since its records are one batch (Kafka's limit, of
CreatePartitions from 4.4.0 on)."""

Wanted = TypeVar("Wanted", CreatePartitionsTopic, RemovePartitionsTopic)


def require_batch(count: int) -> None:
    """Raises Refused with POLICY_VIOLATION above MAX_PARTITIONS_PER_REQUEST partitions, or topics to delete."""
    if count > MAX_PARTITIONS_PER_REQUEST:
        reason = f"the request concerns {count} partitions; allowed: at most {MAX_PARTITIONS_PER_REQUEST}"
        raise Refused(ErrorCode.POLICY_VIOLATION, reason)


def partition_records(
    state: ControllerState,
    topic_id: str,
    first_index: int,
    first_leader_epoch: Epoch,
    layout: Sequence[tuple[BrokerId, ...]],
    replication_factor: int | None = None,
) -> list[PartitionRecord]:
    """Records of new partitions, numbered from `first_index`. Raises Refused with INVALID_REPLICA_ASSIGNMENT, also for
    a number of replicas other than `replication_factor` (None: that of the first partition).
    """
    records = []
    factor = len(layout[0]) if replication_factor is None else replication_factor
    for index, replicas in enumerate(layout, first_index):
        if invalid := _assignment_error(state, replicas, factor):
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas of partition {index}: {invalid}")
        isr = tuple(filter(state.image.is_active, replicas))
        records.append(
            PartitionRecord.unchecked(
                topic_id=topic_id,
                partition_id=index,
                replicas=replicas,
                isr=isr,
                leader=isr[0],
                leader_epoch=first_leader_epoch,
                first_leader_epoch=first_leader_epoch,
            )
        )
    return records


def replicas_error(state: ControllerState, replicas: tuple[BrokerId, ...]) -> str:
    """Why no partition may have these replicas; empty if one may."""
    if not replicas:
        return "there are none"
    if unknown := [broker for broker in replicas if broker not in state.image.brokers]:
        return f"brokers {unknown} are not registered"
    if len(set(replicas)) != len(replicas):
        return f"a broker is named twice in {list(replicas)}"
    return ""


def _assignment_error(state: ControllerState, replicas: tuple[BrokerId, ...], replication_factor: int) -> str:
    if invalid := replicas_error(state, replicas):
        return invalid
    if len(replicas) != replication_factor:
        return f"there are {len(replicas)}, of other partitions {replication_factor}"
    if not any(map(state.image.is_active, replicas)):
        return "all of them are fenced or shutting down"
    return ""


def create_partitions(state: ControllerState, request: CreatePartitionsRequest) -> ControllerResult:
    """Adds partitions to topics, placed by the controller or as assigned. Needs ALTER on each topic."""

    def added(wanted: CreatePartitionsTopic) -> int:
        topic = state.image.topic_named(wanted.name)
        return 0 if topic is None else max(wanted.count - len(topic.partitions), 0)

    checked = _admitted(state, request, request.topics)
    require_batch(sum(added(wanted) for wanted, refused in checked if refused is None))
    records, results = _each_topic(checked, lambda wanted: _add(state, wanted))
    response = CreatePartitionsResponse(correlation_id=request.correlation_id, topics=results)
    return ControllerResult(response, records).validated(request.validate_only)


def _admitted(
    state: ControllerState, request: AdminRequest, topics: Sequence[Wanted]
) -> list[tuple[Wanted, Refused | None]]:
    repeated = named_twice(wanted.name for wanted in topics)

    def admit(wanted: Wanted) -> None:
        require_once(wanted.name, repeated)
        require_access(state.image, request, AclOperation.ALTER, wanted.name)

    return admitted(topics, admit)


def _each_topic(
    checked: Sequence[tuple[Wanted, Refused | None]], make: Callable[[Wanted], Sequence[MetadataRecord]]
) -> tuple[list[MetadataRecord], tuple[TopicResult, ...]]:
    records: list[MetadataRecord] = []
    results = []
    for wanted, refused in checked:
        try:
            if refused is not None:
                raise refused
            records += make(wanted)
            results.append(TopicResult(name=wanted.name))
        except Refused as reason:
            results.append(TopicResult(name=wanted.name, error=reason.error, message=reason.message))
    return records, tuple(results)


def _add(state: ControllerState, wanted: CreatePartitionsTopic) -> Sequence[MetadataRecord]:
    topic = topic_named(state, wanted.name)
    present, layout = len(topic.partitions), wanted.assignments
    added = wanted.count - present
    if added <= 0:
        reason = f"the topic has {present} partitions; {wanted.count} would not be more"
        raise Refused(ErrorCode.INVALID_PARTITIONS, reason)
    if layout is not None and len(layout) != added:
        reason = f"there are {len(layout)} assignments for {added} more partitions"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    factor = len(topic.partitions[0].replicas)
    if FIRST_PARTITION_COUNTS not in state.config.kafka_rules:
        factor -= len(topic.partitions[0].removing_replicas)
    if layout is None:
        layout = tuple(place(usable_brokers(state.image), added, factor, state.rng))
    return partition_records(state, topic.topic_id, present, topic.first_leader_epoch, layout, factor)


def remove_partitions(state: ControllerState, request: RemovePartitionsRequest) -> ControllerResult:
    """Removes the last partitions of topics and the records in them. Needs ALTER on each topic."""
    checked = _admitted(state, request, request.topics)
    require_batch(sum(len(wanted.partitions) for wanted, refused in checked if refused is None))
    records, results = _each_topic(checked, lambda wanted: _remove(state, wanted))
    return ControllerResult(RemovePartitionsResponse(correlation_id=request.correlation_id, topics=results), records)


def _remove(state: ControllerState, wanted: RemovePartitionsTopic) -> Sequence[MetadataRecord]:
    topic = topic_named(state, wanted.name)
    present = len(topic.partitions)
    last = range(present - len(wanted.partitions), present)
    if not last or last.start < 1 or sorted(wanted.partitions) != list(last):
        reason = f"of {present} partitions only the last ones are removed, each named once, and never all"
        raise Refused(ErrorCode.INVALID_PARTITIONS, reason)
    return [RemovePartitionRecord(topic_id=topic.topic_id, partition_id=index) for index in reversed(last)]
