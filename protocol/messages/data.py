"""The data path: produce, and fetch by replicas and consumers.

Replica fetches are standing wishes rather than request and response pairs: each `FetchPartition` says where a
follower's log ends and stays parked at the leader until there is something to say; one message carries any number of
wishes or answers, of any partitions. The follower repeats its open wishes every `replica.fetch.wait.max.ms`, which is
what Kafka's empty long-poll answers amount to, and what makes loss of either direction harmless.
"""

from __future__ import annotations

from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_OFFSET
from protocol.messages.base import ClientRequest, Int16, Int32, Int64, Message, Response
from protocol.messages.batch import RecordBatch

CONSUMER = -1
"""`replica_id` of a fetch that comes from a consumer."""


class ProduceRequest(ClientRequest):
    """Appends one batch to a partition. `acks`: 0 no answer, 1 answered on the leader's append, -1 (all) answered
    when replicated (E5).
    """

    topic: str
    partition: Int32
    acks: Int16
    batch: RecordBatch


class ProduceResponse(Response):
    """`base_offset` of the batch, -1 if it was not appended."""

    base_offset: Int64 = NO_OFFSET


class FetchPartition(Message):
    """One partition's wish: everything from `fetch_offset` on. `last_fetched_epoch` is the epoch of the record before
    it, -1 on an empty log.
    """

    topic_id: str
    partition_id: Int32
    current_leader_epoch: Int32
    fetch_offset: Int64
    last_fetched_epoch: Int32 = NO_EPOCH
    high_watermark: Int64 = 0


class FetchRequest(Message):
    """Wishes of a follower (`replica_id` and its broker epoch) to the leader of these partitions."""

    replica_id: Int32
    replica_epoch: Int64
    partitions: tuple[FetchPartition, ...]


class FetchRenewal(FetchRequest):
    """A follower's open wishes once more, unchanged."""

    RENEWAL: ClassVar[bool] = True


class EpochEndOffset(Message):
    """The last epoch that leader and follower may share, and where it ends in the leader's log (KIP-595 diverging
    epoch).
    """

    leader_epoch: Int32
    end_offset: Int64


class FetchPartitionResult(Message):
    """The answer to a wish. `fetch_offset` and `leader_epoch` repeat it, so that an answer to an older wish is known
    as such.
    """

    topic_id: str
    partition_id: Int32
    fetch_offset: Int64
    leader_epoch: Int32
    error: ErrorCode = ErrorCode.NONE
    high_watermark: Int64 = NO_OFFSET
    diverging_epoch: EpochEndOffset | None = None
    batches: tuple[RecordBatch, ...] = ()


class FetchResponse(Message):
    partitions: tuple[FetchPartitionResult, ...]


class ConsumeRequest(ClientRequest):
    """A consumer reads a partition from `fetch_offset`; it is shown nothing at or above the high watermark (E7)."""

    topic: str
    partition: Int32
    fetch_offset: Int64
    max_bytes: Int32 = 1_048_576


class ConsumeResponse(Response):
    high_watermark: Int64 = NO_OFFSET
    batches: tuple[RecordBatch, ...] = ()
