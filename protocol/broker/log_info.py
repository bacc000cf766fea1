"""GetReplicaLogInfo on brokers: where the logs end that the recovery manager asks for (G29, G30, N22).

The answer says three things that the asker judges it by: the epoch of the life that answers, for each replica the
leader epoch that its metadata knows, and the end of its log. A replica that is hosted here but not opened yet is one
whose metadata is not there yet. Errors of single partitions are the project's own, since the KIP has none:
UNKNOWN_TOPIC_OR_PARTITION for what is not placed here, NOT_LEADER_OR_FOLLOWER for a replica that is not opened,
KAFKA_STORAGE_ERROR for one whose log cannot say where it ends. A request that names too many partitions or another
broker is refused whole with INVALID_REQUEST (G31).
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
    """The answer of a broker, which is complete: one entry for each partition that was asked for, in that order."""
    error = _error(context, request)
    listed = [] if error is not ErrorCode.NONE else [_of(context, key) for key in _asked(context, request)]
    return GetReplicaLogInfoResponse(
        correlation_id=request.correlation_id,
        error=error,
        broker_epoch=context.broker_epoch,
        log_info_list=tuple(listed),
    )


def _error(context: BrokerContext, request: GetReplicaLogInfoRequest) -> ErrorCode:
    """NONE, or why the request is refused whole."""
    count = sum(len(topic.partitions) for topic in request.topic_partitions or ())
    if request.broker_id != context.me or count > MAX_PARTITIONS_PER_REQUEST:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _asked(context: BrokerContext, request: GetReplicaLogInfoRequest) -> Iterable[TopicIdPartition]:
    if request.topic_partitions is None:
        return context.replicas
    return [TopicIdPartition(topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions]


def _of(context: BrokerContext, key: TopicIdPartition) -> ReplicaLogInfo:
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
