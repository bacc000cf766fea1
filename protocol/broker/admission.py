"""Which requests of clients a broker refuses before it consults its replicas: without authorization, for unknown
partitions, with batches that are too large or damaged, or fields out of range (requirement G32; errors and their order
as in Apache Kafka).

Authorization is checked first, so that an unauthorized client does not learn whether a topic exists; the checksum last,
since it is the most expensive check. A timestamp further in the future than `message.timestamp.after.max.ms` is refused
(KIP-937), because retention would keep its segment until then; -1 means no timestamp. The size of a batch is that of
its payload.
"""

from __future__ import annotations

from protocol.config import MAX_MESSAGE_BYTES, MESSAGE_TIMESTAMP_AFTER_MAX_MS
from protocol.errors import ErrorCode
from protocol.ids import TimeMs
from protocol.log.checksum import Checksum, is_intact
from protocol.messages.acls import AclOperation
from protocol.messages.base import ClientRequest
from protocol.messages.batch import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, RecordBatch
from protocol.messages.data import EARLIEST, LATEST, ConsumeRequest, ListOffsetsRequest, ProduceRequest
from protocol.metadata.authorizer import may
from protocol.metadata.image import MetadataImage

REQUIRED_ACKS = (-1, 0, 1)


def produce_error(
    image: MetadataImage, request: ProduceRequest, checksum: Checksum | None, now_ms: TimeMs
) -> ErrorCode:
    """The error with which every broker refuses the batch, or NONE. `checksum` is the CRC-32C; None skips it."""
    error = _partition_error(image, request, AclOperation.WRITE, request.topic, request.partition)
    if error is not ErrorCode.NONE:
        return error
    if request.acks not in REQUIRED_ACKS:
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


def consume_error(image: MetadataImage, request: ConsumeRequest) -> ErrorCode:
    """The error with which every broker refuses the read, or NONE. A `max_bytes` of 0 still gets one batch."""
    error = _partition_error(image, request, AclOperation.READ, request.topic, request.partition)
    if error is not ErrorCode.NONE:
        return error
    if request.fetch_offset < 0:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return ErrorCode.NONE if request.max_bytes >= 0 else ErrorCode.INVALID_FETCH_SIZE


def list_offsets_error(image: MetadataImage, request: ListOffsetsRequest) -> ErrorCode:
    """The error with which every broker refuses the request, or NONE."""
    error = _partition_error(image, request, AclOperation.DESCRIBE, request.topic, request.partition)
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if request.timestamp in (EARLIEST, LATEST) else ErrorCode.INVALID_REQUEST


def _partition_error(
    image: MetadataImage, request: ClientRequest, operation: AclOperation, topic: str, partition: int
) -> ErrorCode:
    if not may(image, request.principal, operation, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = image.topic_named(topic)
    exists = found is not None and partition in found.partitions
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
