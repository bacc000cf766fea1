"""What a client is told about a topic: partitions, leaders, leader epochs, as the asked node's image has them."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.admin import MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from protocol.metadata.image import MetadataImage


def describe_topic(image: MetadataImage, request: MetadataRequest) -> MetadataResponse:
    """The answer to a metadata request; UNKNOWN_TOPIC_OR_PARTITION where the image has no such topic."""
    topic = image.topic_named(request.topic)
    if topic is None:
        return MetadataResponse(correlation_id=request.correlation_id, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partitions = tuple(
        PartitionMetadata(partition=index, leader=state.leader, leader_epoch=state.leader_epoch)
        for index, state in topic.partitions.items()
    )
    description = TopicMetadata(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
    return MetadataResponse(correlation_id=request.correlation_id, topics=(description,))
