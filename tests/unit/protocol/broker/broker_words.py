"""Metadata records for a broker, and its responses, in the words of transcripts."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ConsumeResponse, FetchPartitionResult
from protocol.messages.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemovePartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from protocol.messages.recovery import GetReplicaLogInfoResponse
from tests.unit.protocol.node_helpers import fencing, registrations
from tests.unit.protocol.partition_words import partition_fields
from tests.unit.protocol.transcripts import Command, listed


def metadata_record(command: Command) -> MetadataRecord:
    """A record in the words of transcripts: `change leader=1`, `partition 1 replicas=0,1`, `fenced 2`."""
    match command.name:
        case "change":
            fields = partition_fields(command)
            return PartitionChangeRecord(topic_id="T", partition_id=0, **fields)
        case "partition":
            index, fields = int(command.next()), {"replicas": (0, 1, 2), "isr": (0, 1, 2), "leader": 0}
            first = command.number("first_leader_epoch", 0)
            fields |= partition_fields(command)
            return PartitionRecord(topic_id="T", partition_id=index, first_leader_epoch=first, **fields)
        case "set":
            name, _, value = command.words()[0].partition("=")
            return ConfigRecord(topic_id="T", name=name, value=value)
        case "registered":
            return registrations()[int(command.next())]
        case "removed":
            return RemovePartitionRecord(topic_id="T", partition_id=int(command.next("0")))
        case "created":
            return TopicRecord(name="t", topic_id="T")
        case "deleted":
            return RemoveTopicRecord(topic_id="T")
        case "leaving":
            broker = int(command.next())
            return BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=broker, in_controlled_shutdown=True)
    broker = int(command.next())
    return fencing(broker, broker, {"fenced": True, "unfenced": False}[command.name])


def offsets_of(batches: tuple[RecordBatch, ...]) -> str:
    return listed(found.base_offset for found in batches)


def said_of_read(message: ConsumeResponse) -> str:
    """What a consumer gets: the offsets of its batches, or the error."""
    if message.error is not ErrorCode.NONE:
        return f"{message.error.name} log start {message.log_start_offset}"
    diverging = message.diverging_epoch
    return (
        offsets_of(message.batches)
        if diverging is None
        else f"diverging {diverging.leader_epoch}@{diverging.end_offset}"
    )


def said_of_log_info(message: GetReplicaLogInfoResponse) -> str:
    """The broker epoch, and of each partition the error, or epochs of log and metadata and the log end; of many, how
    many have no error.
    """
    infos = message.log_info_list
    if len(infos) > 10:
        return f"{len(infos)} partitions"
    parts = (
        f"t-{info.partition_id} "
        + (
            f"epochs {info.last_written_leader_epoch}/{info.current_leader_epoch} end {info.log_end_offset}"
            if info.error is ErrorCode.NONE
            else info.error.name
        )
        for info in infos
    )
    return f"broker epoch {message.broker_epoch}, {', '.join(parts) or 'no partition'}"


def said_of_result(result: FetchPartitionResult) -> str:
    """What a follower gets of a partition."""
    place = f"t-{result.partition_id}@{result.leader_epoch} from {result.fetch_offset}: "
    if result.error is not ErrorCode.NONE:
        return f"{place}{result.error.name} log start {result.log_start_offset}"
    if result.diverging_epoch is not None:
        return f"{place}diverging {result.diverging_epoch.leader_epoch}@{result.diverging_epoch.end_offset}"
    return f"{place}{offsets_of(result.batches)} hw {result.high_watermark}"
