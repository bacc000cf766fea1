"""Elections that a user asks for (G27, G28, G33, J1-J4, F22-F24).

PREFERRED acts only where another than the first replica leads; every other type only where nobody leads. A DESIGNATION
names the leader, partition by partition; it costs the records that this replica lacks. The two LONGEST_LOG types ask
the replicas for their logs, which is the work of the recovery manager: their answer waits for it
(`awaited_elections.py`). Where unclean recovery is disabled they are refused.

What is wrong with a request is judged in this order: as a whole, the principal (CLUSTER_ACTION), the number of topics,
a designation for all partitions; for each partition, whether it is named twice, whether it exists, what
`desired_leaders` says, whether an election is needed, and at last whether there is anybody to elect. A partition that
is refused does not keep the others from being elected for.

Departures from Kafka's code: it asks for ALTER instead of CLUSTER_ACTION, has neither limit nor designations, and
carries out an election for each mention of a partition; the first three are KIP-966's word, and a partition that is
named twice has INVALID_REQUEST for an answer, as topics have that are named twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from protocol.config import UNCLEAN_RECOVERY_ENABLED
from protocol.controller.awaited_elections import NOBODY_TO_ASK, Awaited
from protocol.controller.context import ControllerState
from protocol.controller.partition_change import Election
from protocol.controller.planning import Plan, named_twice, partition_named
from protocol.controller.recovery_decisions import query_for
from protocol.errors import ErrorCode, Refused
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
from protocol.metadata.authorizer import require_cluster
from protocol.metadata.partition import PartitionState

_LONGEST_LOG = {
    ElectionType.LONGEST_LOG_BALANCED: RecoveryMode.BALANCED,
    ElectionType.LONGEST_LOG_PROACTIVE: RecoveryMode.PROACTIVE,
}


class _Wish(NamedTuple):
    """A partition that shall have a leader: `desired_leader` -1 is any, None is a leader that is wrongly stated."""

    partition: TopicPartition
    desired_leader: BrokerId | None


def elect_leaders(state: ControllerState, request: ElectLeadersRequest) -> Plan:
    """Elects for every partition that is named, or for all; of all, those that need no election are not told of."""
    require_cluster(state.image, request, AclOperation.CLUSTER_ACTION)
    wishes = _wishes(state, request)
    twice = named_twice([wish.partition for wish in wishes])
    records: list[MetadataRecord] = []
    results: list[PartitionResult] = []
    places: dict[TopicIdPartition, int] = {}
    for wish in wishes:
        error, message = ErrorCode.NONE, ""
        try:
            if wish.partition in twice:
                raise Refused(ErrorCode.INVALID_REQUEST, f"partition {wish.partition} is named twice")
            elected = _elect(state, request.election_type, wish)
            if isinstance(elected, PartitionChangeRecord):
                records.append(elected)
            else:
                places[elected] = len(results)
        except Refused as refused:
            error, message = refused.error, refused.message
        if error is ErrorCode.ELECTION_NOT_NEEDED and request.topic_partitions is None:
            continue
        topic, index = wish.partition
        results.append(PartitionResult(topic=topic, partition_index=index, error=error, message=message))
    response = ElectLeadersResponse(correlation_id=request.correlation_id, partitions=tuple(results))
    awaited = Awaited(_LONGEST_LOG[request.election_type], request.timeout_ms, places) if places else None
    return Plan(response, records, awaited)


def _wishes(state: ControllerState, request: ElectLeadersRequest) -> Sequence[_Wish]:
    designation = request.election_type is ElectionType.DESIGNATION
    if request.topic_partitions is None:
        if designation:
            raise Refused(ErrorCode.INVALID_REQUEST, "a designation names its partitions")
        return [
            _Wish(TopicPartition(topic.name, index), NO_LEADER)
            for topic in state.image.topics.values()
            for index in sorted(topic.partitions)
        ]
    if len(request.topic_partitions) > MAX_TOPICS_PER_REQUEST:
        found = len(request.topic_partitions)
        raise Refused(ErrorCode.INVALID_REQUEST, f"{found} topics in one request; allowed: {MAX_TOPICS_PER_REQUEST}")
    return [
        _Wish(TopicPartition(topic.topic, index), desired)
        for topic in request.topic_partitions
        for index, desired in zip(topic.partitions, _desired_leaders(topic, designation), strict=True)
    ]


def _desired_leaders(topic: TopicPartitions, designation: bool) -> Sequence[BrokerId | None]:
    """The desired leader of each of the topic's partitions; None for each of them if there are too few or too many."""
    if not designation and not topic.desired_leaders:
        return list(repeat(NO_LEADER, len(topic.partitions)))
    if designation and len(topic.desired_leaders) == len(topic.partitions):
        return topic.desired_leaders
    return list(repeat(None, len(topic.partitions)))


def _elect(state: ControllerState, kind: ElectionType, wish: _Wish) -> PartitionChangeRecord | TopicIdPartition:
    """The record that elects, or the partition, if its election takes a recovery."""
    key, partition = partition_named(state, *wish.partition)
    if wish.desired_leader is None:
        reason = "desired leaders go with a designation, and there is one for each partition"
        raise Refused(ErrorCode.INVALID_REQUEST, reason)
    if kind is ElectionType.DESIGNATION and wish.desired_leader not in partition.replicas:
        reason = f"broker {wish.desired_leader} is none of the replicas {list(partition.replicas)}"
        raise Refused(ErrorCode.INVALID_REQUEST, reason)
    _require_need(kind, partition)
    if kind in _LONGEST_LOG:
        _require_recoverable(state, partition, kind)
        return key
    preferred = kind is ElectionType.PREFERRED
    election = Election.PREFERRED if preferred else Election.UNCLEAN
    record = state.change(key, election, designated_leader=wish.desired_leader)
    designated_another = record is not None and wish.desired_leader not in (NO_LEADER, record.leader)
    if record is None or designated_another:
        error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        raise Refused(error, f"no replica of {wish.partition} that may lead is active")
    return record


def _require_recoverable(state: ControllerState, partition: PartitionState, kind: ElectionType) -> None:
    if not state.image.features.unclean_recovery:
        reason = f"{kind.name} needs unclean recovery, and {UNCLEAN_RECOVERY_ENABLED} is 0"
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, reason)
    if query_for(state.image, partition, _LONGEST_LOG[kind]) is None:
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, NOBODY_TO_ASK[_LONGEST_LOG[kind]])


def _require_need(kind: ElectionType, partition: PartitionState) -> None:
    leads = partition.replicas[0] if kind is ElectionType.PREFERRED else partition.leader
    if partition.leader == leads != NO_LEADER:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads")
