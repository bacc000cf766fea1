"""AlterPartitionReassignments: start, replace and cancel reassignments (E32-E35, M44, M75, M76, J18).

A reassignment first extends the assignment: the target replicas, then the replicas to remove. `adding_replicas` are
those that the partition did not have before, `removing_replicas` those that it will not have afterwards;
`partition_change.py` decides when the reassignment is complete. A cancellation returns to the assignment without
`adding_replicas`. It requires as many original replicas in the ISR as their min ISR, unless the topic allows unclean
elections or is recovered proactively (E33, E35); then one replica that can lead is enough.

A request may forbid a change of the replication factor (KIP-860). It compares with the number of replicas that the
partition has after the reassignment under way, if there is one. A cancellation is never refused for it.

The generations differ when a reassignment replaces another one. `kip-966` keeps the meaning of the two fields: a broker
that was being added stays in `adding_replicas`, and is in both fields if the newer target does not contain it. A return
to the original replicas therefore waits for their min ISR, as any reassignment does; where no broker was being added it
is a cancellation. The other generations follow Kafka's code: a field for which the newer reassignment has no brokers
keeps its value, and one in-sync original replica is enough to return.

Departures from Kafka's code: a partition that is named twice in a request is refused; an unclean cancellation is an
unclean election, with its recovery state, or leaves the partition to an unclean recovery, whereas Kafka's code puts the
first original replica into the ISR whether it is alive or not (`dead-original-in-isr` in `protocol/kafka_rules.py`).
"""

from __future__ import annotations

from protocol.config import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE, UNCLEAN_RECOVERY_STRATEGY
from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult, named_twice, partition_named
from protocol.controller.partition_change import Election
from protocol.controller.partitions import replicas_error
from protocol.errors import ErrorCode, Refused
from protocol.ids import BrokerId, TopicIdPartition
from protocol.kafka_rules import DEAD_ORIGINAL_IN_ISR, RETURNING_REPLICA_ELIGIBLE
from protocol.messages.acls import AclOperation
from protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartition,
)
from protocol.messages.records import MetadataRecord, PartitionChangeRecord
from protocol.metadata.authorizer import require_access
from protocol.metadata.partition import PartitionState


def alter_partition_reassignments(
    state: ControllerState, request: AlterPartitionReassignmentsRequest
) -> ControllerResult:
    """Starts or cancels the reassignment of each partition independently. Needs ALTER on the cluster."""
    require_access(state.image, request, AclOperation.ALTER)
    requested = [(topic.name, wanted) for topic in request.topics for wanted in topic.partitions]
    twice = named_twice([(topic, wanted.partition_index) for topic, wanted in requested])
    records: list[MetadataRecord] = []
    results = []
    for topic, wanted in requested:
        index, error, message = wanted.partition_index, ErrorCode.NONE, ""
        try:
            if (topic, index) in twice:
                raise Refused(ErrorCode.INVALID_REQUEST, f"partition {topic}-{index} is named twice")
            record = _alter(state, topic, wanted, request.allow_replication_factor_change)
            if record is not None:
                records.append(record)
        except Refused as refused:
            error, message = refused.error, refused.message
        results.append(PartitionResult(topic=topic, partition_index=index, error=error, message=message))
    response = AlterPartitionReassignmentsResponse(
        correlation_id=request.correlation_id,
        partitions=tuple(results),
        allow_replication_factor_change=request.allow_replication_factor_change,
    )
    return ControllerResult(response, records)


def require_same_factor(
    wanted: tuple[BrokerId, ...],
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...] = (),
    removing: tuple[BrokerId, ...] = (),
) -> None:
    """Raises Refused with INVALID_REPLICATION_FACTOR where `wanted` are more or fewer than a partition's replicas after
    the reassignment under way (KIP-860).
    """
    factor = len({*replicas, *adding}.difference(removing))
    if len(wanted) != factor:
        reason = f"The replication factor is changed from {factor} to {len(wanted)}"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, reason)


def _alter(
    state: ControllerState, topic: str, wanted: ReassignablePartition, may_change_factor: bool
) -> PartitionChangeRecord | None:
    key, partition = partition_named(state, topic, wanted.partition_index)
    if wanted.replicas is None:
        if not partition.adding_replicas and not partition.removing_replicas:
            raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is under way")
        original = tuple(broker for broker in partition.replicas if broker not in partition.adding_replicas)
        return _return_to(state, key, partition, original)
    if invalid := replicas_error(state, wanted.replicas):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas of partition {topic}-{key.partition}: {invalid}")
    if not may_change_factor:
        require_same_factor(wanted.replicas, partition.replicas, partition.adding_replicas, partition.removing_replicas)
    removes_only = bool(partition.removing_replicas) and not partition.adding_replicas
    is_return = removes_only and set(wanted.replicas) == set(partition.replicas)
    if is_return and state.image.features.track_last_known_leader:
        return _return_to(state, key, partition, wanted.replicas)
    targets = _move(state, partition, wanted.replicas)
    record = state.change(key, Election.ONLINE, **targets)
    if record is not None and record.leader >= 0 and record.leader not in partition.replicas:
        # Only where a stale ELR has brokers that left the assignment (`kip-966-elr`); Kafka's code fails here as well.
        reason = f"broker {record.leader} would lead without holding a replica"
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, reason)
    # Members of the ELR that left the assignment are not eligible when they return (E20, E34): their logs are deleted
    # or out of date.
    returning = tuple(sorted({*wanted.replicas} & {*partition.elr} - {*partition.replicas}))
    if returning and RETURNING_REPLICA_ELIGIBLE not in state.config.kafka_rules:
        return state.change(key, Election.ONLINE, unclean_shutdown_replicas=returning, **targets)
    return record


def _move(state: ControllerState, partition: PartitionState, wanted: tuple[BrokerId, ...]) -> dict[str, object]:
    """The target fields of `ChangeRequest` for a reassignment to the replicas `wanted`."""
    removing = tuple(sorted(set(partition.replicas) - set(wanted)))
    grown = (*wanted, *removing)
    if state.image.features.track_last_known_leader:
        original = {*partition.replicas}.difference(partition.adding_replicas)
        adding = tuple(sorted({*grown} - original))
        return {"target_replicas": grown, "target_adding": adding, "target_removing": removing}
    adding = tuple(sorted(set(wanted) - set(partition.replicas)))
    return {"target_replicas": grown, "target_adding": adding or None, "target_removing": removing or None}


def _return_to(
    state: ControllerState, key: TopicIdPartition, partition: PartitionState, replicas: tuple[BrokerId, ...]
) -> PartitionChangeRecord | None:
    """Ends a reassignment with the original `replicas`, in this order."""
    image, topic_id = state.image, key.topic_id
    isr = tuple(broker for broker in partition.isr if broker in replicas)
    needed = 1
    if image.features.track_last_known_leader:
        needed = image.min_isr(topic_id, MIN_INSYNC_REPLICAS, len(replicas))
    may_lose_records = bool(image.config(topic_id, UNCLEAN_LEADER_ELECTION_ENABLE))
    if image.features.unclean_recovery:
        may_lose_records = image.config(topic_id, UNCLEAN_RECOVERY_STRATEGY) == "proactive"
    if not isr and may_lose_records and DEAD_ORIGINAL_IN_ISR in state.config.kafka_rules:
        isr = replicas[:1]
    if len(isr) < needed and not (may_lose_records and any(map(image.is_active, replicas))):
        reason = f"of the original replicas {list(replicas)}, {len(isr)} are in sync; needed: {needed}"
        if may_lose_records:
            reason = f"none of the original replicas {list(replicas)} is active"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    return state.change(
        key,
        is_acceptable_leader=lambda broker: broker in replicas and image.is_active(broker),
        target_replicas=replicas,
        target_adding=(),
        target_removing=(),
        target_isr=isr,
    )
