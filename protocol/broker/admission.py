"""What a broker refuses before it looks at its replicas: clients without the right, partitions that do not exist, and
fields out of range (requirement G32; errors and their order as in Apache Kafka).

Rights come first, so that nobody learns by trying whether a topic exists.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.acls import AclOperation
from protocol.messages.base import ClientRequest
from protocol.messages.data import ConsumeRequest, ProduceRequest
from protocol.metadata.authorizer import may
from protocol.metadata.image import MetadataImage

REQUIRED_ACKS = (-1, 0, 1)


def produce_error(image: MetadataImage, request: ProduceRequest) -> ErrorCode:
    """NONE, or why no broker would append the batch."""
    error = _partition_error(image, request, AclOperation.WRITE, request.topic, request.partition)
    if error is not ErrorCode.NONE:
        return error
    if request.batch.record_count < 1:
        return ErrorCode.INVALID_RECORD
    return ErrorCode.NONE if request.acks in REQUIRED_ACKS else ErrorCode.INVALID_REQUIRED_ACKS


def consume_error(image: MetadataImage, request: ConsumeRequest) -> ErrorCode:
    """NONE, or why no broker would read for the consumer. `max_bytes` 0 is good for one batch, as any other is."""
    error = _partition_error(image, request, AclOperation.READ, request.topic, request.partition)
    if error is not ErrorCode.NONE:
        return error
    if request.fetch_offset < 0:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return ErrorCode.NONE if request.max_bytes >= 0 else ErrorCode.INVALID_FETCH_SIZE


def _partition_error(
    image: MetadataImage, request: ClientRequest, operation: AclOperation, topic: str, partition: int
) -> ErrorCode:
    if not may(image, request.principal, operation, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = image.topic_named(topic)
    exists = found is not None and partition in found.partitions
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
