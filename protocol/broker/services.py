"""What a broker answers to clients and to the Unclean Recovery Manager, and which requests it refuses before it
consults its replicas.

Requests of clients are refused without authorization, for unknown partitions, with batches that are too large or
damaged, or fields out of range (requirement G32; errors and their order as in Apache Kafka). Authorization is checked
first, so that an unauthorized client does not learn whether a topic exists; the checksum last, since it is the most
expensive check. A timestamp further in the future than `message.timestamp.after.max.ms` is refused (KIP-937), because
retention would keep its segment until then; -1 means no timestamp. The size of a batch is that of its payload.

GetReplicaLogInfo asks for the log ends that the Unclean Recovery Manager compares (KIP-966; G29, G30, N22): for each
replica the leader epoch of its metadata and the end of its log. Errors of single partitions are this project's own,
since the KIP defines none: UNKNOWN_TOPIC_OR_PARTITION for a partition that is not assigned to this broker,
NOT_LEADER_OR_FOLLOWER for a replica that is not open yet (its metadata has not been replayed), KAFKA_STORAGE_ERROR for
one whose log end cannot be read. A request for too many partitions, or for another broker, is refused as a whole with
INVALID_REQUEST (G31).
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.broker.context import BrokerContext
from protocol.broker.leader import PartitionLeader
from protocol.broker.reads import Reads
from protocol.config import MAX_MESSAGE_BYTES, MESSAGE_TIMESTAMP_AFTER_MAX_MS
from protocol.errors import ErrorCode, StorageError
from protocol.ids import NodeId, TimeMs, TopicIdPartition
from protocol.log.checksum import Checksum, is_intact
from protocol.messages.acls import AclOperation
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import ClientRequest
from protocol.messages.batch import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, RecordBatch
from protocol.messages.data import (
    MAX_TIMESTAMP,
    ConsumeRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from protocol.messages.recovery import (
    MAX_PARTITIONS_PER_REQUEST,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
)
from protocol.metadata.authorizer import may
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import answer, metadata_response


@dataclass(eq=False)
class BrokerServices:
    """Handlers `(now_ms, sender, request)` of one broker; `_checksum` as in `BaseBroker`."""

    _context: BrokerContext
    _leader: PartitionLeader
    _reads: Reads
    _checksum: Checksum | None

    def describe(self, now_ms: TimeMs, sender: NodeId, request: MetadataRequest) -> None:
        self._context.out.send(sender, metadata_response(self._context.image, request))

    def answer_query(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        self._context.out.send(sender, answer(self._context.image, self._context.controller_id, request))

    def send_log_info(self, now_ms: TimeMs, sender: NodeId, request: GetReplicaLogInfoRequest) -> None:
        self._context.out.send(sender, replica_log_info(self._context, request))

    def produce(self, now_ms: TimeMs, sender: NodeId, request: ProduceRequest) -> None:
        error = _produce_error(self._context.image, request, self._checksum, now_ms)
        if error is ErrorCode.NONE:
            self._leader.produce(now_ms, sender, request)
        elif request.acks != 0:
            self._context.out.send(sender, request.refusal(error))

    def consume(self, now_ms: TimeMs, sender: NodeId, request: ConsumeRequest) -> None:
        error = _partition_error(self._context.image, request, AclOperation.READ, request.topic, request.partition)
        if error is ErrorCode.NONE and request.fetch_offset < 0:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        elif error is ErrorCode.NONE and request.max_bytes < 0:  # 0 gets one batch
            error = ErrorCode.INVALID_FETCH_SIZE
        if error is ErrorCode.NONE:
            self._reads.consume(now_ms, sender, request)
        else:
            self._context.out.send(sender, request.refusal(error))

    def list_offsets(self, now_ms: TimeMs, sender: NodeId, request: ListOffsetsRequest) -> None:
        error = _partition_error(self._context.image, request, AclOperation.DESCRIBE, request.topic, request.partition)
        if error is ErrorCode.NONE and request.timestamp < MAX_TIMESTAMP:
            error = ErrorCode.INVALID_REQUEST
        if error is ErrorCode.NONE:
            self._reads.list_offsets(sender, request)
        else:
            self._context.out.send(sender, request.refusal(error))

    def end_of_epoch(self, now_ms: TimeMs, sender: NodeId, request: OffsetForLeaderEpochRequest) -> None:
        error = _partition_error(self._context.image, request, AclOperation.DESCRIBE, request.topic, request.partition)
        if error is ErrorCode.NONE:
            self._reads.end_of_epoch(sender, request)
        else:
            self._context.out.send(sender, request.refusal(error))


def _partition_error(
    image: MetadataImage, request: ClientRequest, operation: AclOperation, topic: str, partition: int
) -> ErrorCode:
    if not may(image, request.principal, operation, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = image.topic_named(topic)
    exists = found is not None and partition in found.partitions
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _produce_error(
    image: MetadataImage, request: ProduceRequest, checksum: Checksum | None, now_ms: TimeMs
) -> ErrorCode:
    error = _partition_error(image, request, AclOperation.WRITE, request.topic, request.partition)
    if error is not ErrorCode.NONE:
        return error
    if request.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    batch = request.batch
    if batch.record_count < 1 or not _has_consistent_producer(batch):
        return ErrorCode.INVALID_RECORD
    topic_id = image.topic_ids[request.topic]
    if len(batch.payload) > image.int_config(topic_id, MAX_MESSAGE_BYTES):
        return ErrorCode.MESSAGE_TOO_LARGE
    latest_ms = now_ms + image.int_config(topic_id, MESSAGE_TIMESTAMP_AFTER_MAX_MS)
    if not NO_TIMESTAMP <= batch.timestamp_ms <= latest_ms:
        return ErrorCode.INVALID_TIMESTAMP
    return ErrorCode.NONE if is_intact(batch, checksum) else ErrorCode.CORRUPT_MESSAGE


def _has_consistent_producer(batch: RecordBatch) -> bool:
    """Whether the batch has all of producer id, epoch and sequence, or none of them."""
    if batch.producer_id == NO_PRODUCER_ID:
        return batch.producer_epoch < 0 and batch.base_sequence == NO_SEQUENCE
    return batch.producer_id >= 0 and batch.producer_epoch >= 0 and batch.base_sequence >= 0


def replica_log_info(context: BrokerContext, request: GetReplicaLogInfoRequest) -> GetReplicaLogInfoResponse:
    """The response: one entry per requested partition, in that order; all of the broker's where none is named."""
    asked = request.topic_partitions
    keys = context.replicas if asked is None else [TopicIdPartition(t.topic_id, i) for t in asked for i in t.partitions]
    is_valid = request.broker_id == context.me and (asked is None or len(keys) <= MAX_PARTITIONS_PER_REQUEST)
    return GetReplicaLogInfoResponse(
        correlation_id=request.correlation_id,
        error=ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST,
        broker_epoch=context.broker_epoch,
        log_info_list=tuple(_log_info(context, key) for key in keys) if is_valid else (),
    )


def _log_info(context: BrokerContext, key: TopicIdPartition) -> ReplicaLogInfo:
    topic_id, partition = key
    state, replica = context.image.partition(key), context.replicas.get(key)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if state is not None and context.me in state.replicas:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replica is not None:
            try:
                return ReplicaLogInfo(
                    topic_id=topic_id,
                    partition_id=partition,
                    last_written_leader_epoch=replica.log.latest_epoch,
                    current_leader_epoch=replica.leader_epoch,
                    log_end_offset=replica.log.end_offset,
                )
            except StorageError:
                error = ErrorCode.KAFKA_STORAGE_ERROR
    return ReplicaLogInfo(topic_id=topic_id, partition_id=partition, error=error)
