"""GetReplicaLogInfo on brokers: the log ends that the Unclean Recovery Manager compares (KIP-966; G29, G30, N22).

The response carries the broker epoch, and for each replica the leader epoch of its metadata and the end of its log.
Errors of single partitions are this project's own, since the KIP defines none: UNKNOWN_TOPIC_OR_PARTITION for a
partition that is not assigned to this broker, NOT_LEADER_OR_FOLLOWER for a replica that is not open yet (its metadata
has not been replayed), KAFKA_STORAGE_ERROR for one whose log end cannot be read. A request for too many partitions, or
for another broker, is refused as a whole with INVALID_REQUEST (G31).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.broker.context import BrokerContext
from protocol.errors import ErrorCode, StorageError
from protocol.ids import NO_EPOCH, NO_OFFSET, TopicIdPartition
from protocol.messages.recovery import (
    MAX_PARTITIONS_PER_REQUEST,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
)


def replica_log_info(context: BrokerContext, request: GetReplicaLogInfoRequest) -> GetReplicaLogInfoResponse:
    """The response: one entry per requested partition, in that order; all of the broker's where none is named."""
    count = sum(len(topic.partitions) for topic in request.topic_partitions or ())
    is_valid = request.broker_id == context.me and count <= MAX_PARTITIONS_PER_REQUEST
    error = ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST
    listed = [] if error is not ErrorCode.NONE else [_log_info(context, key) for key in _requested(context, request)]
    return GetReplicaLogInfoResponse(
        correlation_id=request.correlation_id,
        error=error,
        broker_epoch=context.broker_epoch,
        log_info_list=tuple(listed),
    )


def _requested(context: BrokerContext, request: GetReplicaLogInfoRequest) -> Iterable[TopicIdPartition]:
    if request.topic_partitions is None:
        return context.replicas
    return [TopicIdPartition(topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions]


def _log_info(context: BrokerContext, key: TopicIdPartition) -> ReplicaLogInfo:
    state, replica = context.image.partition(key), context.replicas.get(key)
    error, last_epoch, end_offset, epoch = ErrorCode.NONE, NO_EPOCH, NO_OFFSET, NO_EPOCH
    if state is None or context.me not in state.replicas:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif replica is None:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    else:
        try:
            last_epoch, end_offset, epoch = replica.log.latest_epoch, replica.log.end_offset, replica.leader_epoch
        except StorageError:
            error = ErrorCode.KAFKA_STORAGE_ERROR
    return ReplicaLogInfo(
        topic_id=key.topic_id,
        partition_id=key.partition,
        error=error,
        last_written_leader_epoch=last_epoch,
        current_leader_epoch=epoch,
        log_end_offset=end_offset,
    )
