"""ElectLeaders: elections that a user requests (G27, G28, G33, J1-J4, F22-F24).

PREFERRED applies only where a replica other than the first leads; every other type only to leaderless partitions. A
DESIGNATION names the leader of each partition; the records that this replica lacks are lost. The two LONGEST_LOG types
query the replicas for the ends of their logs through the recovery manager, and their response waits for the result
(`recovery_requests.py`). Where unclean recovery is disabled they are refused.

Checks, in this order. Of the whole request: the principal (CLUSTER_ACTION), the number of topics, a designation for all
partitions. Of each partition: whether it is named twice, whether it exists, its `desired_leaders`, whether an election
is needed, and whether a replica can be elected. A refused partition does not affect the others.

Departures from Kafka's code, which requires ALTER instead of CLUSTER_ACTION, has neither limit nor designations, and
carries out an election for each mention of a partition: the first three follow KIP-966; a partition that is named twice
is answered with INVALID_REQUEST, as a topic that is named twice is.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult, named_twice, partition_named
from protocol.controller.partition_change import Election
from protocol.controller.recovery_decisions import query_for
from protocol.controller.recovery_requests import NO_REPLICAS_TO_QUERY, Awaited
from protocol.errors import ErrorCode, Refused
from protocol.features import UNCLEAN_RECOVERY_ENABLED
from protocol.ids import NO_LEADER, BrokerId, TopicIdPartition, TopicPartition
from protocol.messages.acls import AclOperation
from protocol.messages.partitions import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    TopicPartitions,
)
from protocol.messages.records import MetadataRecord, PartitionChangeRecord
from protocol.messages.recovery import RecoveryMode
from protocol.messages.topics import MAX_TOPICS_PER_REQUEST
from protocol.metadata.authorizer import require_access
from protocol.metadata.partition import PartitionState

_LONGEST_LOG = {
    ElectionType.LONGEST_LOG_BALANCED: RecoveryMode.BALANCED,
    ElectionType.LONGEST_LOG_PROACTIVE: RecoveryMode.PROACTIVE,
}


def elect_leaders(state: ControllerState, request: ElectLeadersRequest) -> ControllerResult:
    """Elects for the named partitions; where none is named for all, with results of those that need it only."""
    require_access(state.image, request, AclOperation.CLUSTER_ACTION)
    requested = _requested_elections(state, request)
    twice = named_twice(partition for partition, _ in requested)
    records: list[MetadataRecord] = []
    results: list[PartitionResult] = []
    places: dict[TopicIdPartition, int] = {}
    for partition, desired in requested:
        error, message = ErrorCode.NONE, ""
        try:
            if partition in twice:
                raise Refused(ErrorCode.INVALID_REQUEST, f"partition {partition} is named twice")
            elected = _elect(state, request.election_type, partition, desired)
            if isinstance(elected, PartitionChangeRecord):
                records.append(elected)
            else:
                places[elected] = len(results)
        except Refused as refused:
            error, message = refused.error, refused.message
        if error is ErrorCode.ELECTION_NOT_NEEDED and request.topic_partitions is None:
            continue
        topic, index = partition
        results.append(PartitionResult(topic=topic, partition_index=index, error=error, message=message))
    response = ElectLeadersResponse(correlation_id=request.correlation_id, partitions=tuple(results))
    awaited = Awaited(_LONGEST_LOG[request.election_type], request.timeout_ms, places) if places else None
    return ControllerResult(response, records, awaited)


def preferred_leaders(state: ControllerState, limit: int) -> list[PartitionChangeRecord]:
    """Elects the preferred leaders that may lead, of at most `limit` partitions that other replicas lead, in order."""
    records: list[PartitionChangeRecord] = []
    for key, partition in state.image.partitions():
        if len(records) == limit:
            break
        record = None
        if partition.leader not in (NO_LEADER, partition.replicas[0]):
            record = state.change(key, Election.PREFERRED)
        if record is not None:
            records.append(record)
    return records


def _requested_elections(
    state: ControllerState, request: ElectLeadersRequest
) -> Sequence[tuple[TopicPartition, BrokerId | None]]:
    """Partitions and their desired leaders: -1 is any replica, None an invalid list of desired leaders."""
    designation = request.election_type is ElectionType.DESIGNATION
    if request.topic_partitions is None:
        if designation:
            raise Refused(ErrorCode.INVALID_REQUEST, "a designation names its partitions")
        return [
            (TopicPartition(topic.name, index), NO_LEADER)
            for topic in state.image.topics.values()
            for index in sorted(topic.partitions)
        ]
    if (found := len(request.topic_partitions)) > MAX_TOPICS_PER_REQUEST:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{found} topics in one request; allowed: {MAX_TOPICS_PER_REQUEST}")
    return [
        (TopicPartition(topic.topic, index), desired)
        for topic in request.topic_partitions
        for index, desired in zip(topic.partitions, _desired_leaders(topic, designation), strict=True)
    ]


def _desired_leaders(topic: TopicPartitions, designation: bool) -> Sequence[BrokerId | None]:
    """The desired leader of each of the topic's partitions; None for each where the list has another length."""
    if not designation and not topic.desired_leaders:
        return [NO_LEADER] * len(topic.partitions)
    if designation and len(topic.desired_leaders) == len(topic.partitions):
        return topic.desired_leaders
    return [None] * len(topic.partitions)


def _elect(
    state: ControllerState, kind: ElectionType, name: TopicPartition, desired: BrokerId | None
) -> PartitionChangeRecord | TopicIdPartition:
    """The record that elects a leader, or the partition where its election needs a recovery; raises Refused."""
    key, partition = partition_named(state, *name)
    if desired is None:
        reason = "desired leaders go with a designation, and there is one for each partition"
        raise Refused(ErrorCode.INVALID_REQUEST, reason)
    if kind is ElectionType.DESIGNATION and desired not in partition.replicas:
        reason = f"broker {desired} is none of the replicas {list(partition.replicas)}"
        raise Refused(ErrorCode.INVALID_REQUEST, reason)
    preferred = kind is ElectionType.PREFERRED
    wanted = partition.replicas[0] if preferred else partition.leader
    if partition.leader == wanted != NO_LEADER:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads")
    if kind in _LONGEST_LOG:
        _require_recoverable(state, partition, kind)
        return key
    record = state.change(key, Election.PREFERRED if preferred else Election.UNCLEAN, designated_leader=desired)
    if record is None or desired not in (NO_LEADER, record.leader):
        error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        raise Refused(error, f"no replica of {name} that may lead is active")
    return record


def _require_recoverable(state: ControllerState, partition: PartitionState, kind: ElectionType) -> None:
    if not state.image.features.unclean_recovery:
        reason = f"{kind.name} needs unclean recovery, and {UNCLEAN_RECOVERY_ENABLED} is 0"
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, reason)
    if query_for(state.image, partition, _LONGEST_LOG[kind]) is None:
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, NO_REPLICAS_TO_QUERY[_LONGEST_LOG[kind]])
