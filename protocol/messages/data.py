"""The data path: produce, and fetch by replicas and consumers.

Replica fetches are standing wishes rather than request and response pairs: each `FetchPartition` says where a
follower's log ends and stays parked at the leader until there is something to say; one message carries any number of
wishes or answers, of any partitions.

What a follower's fetcher wishes for from one leader is a *session* (KIP-227): its first request (number 0) states all
open wishes, the others what changed; requests and answers are numbered. Every `replica.fetch.wait.max.ms` the follower
says how far it has counted (`FetchRenewal`), which keeps the leader assured that it lives, costs the same for one
partition and for thousands, and shows what was lost in either direction; whereupon the follower begins a new session.
Kafka counts with one epoch per session, since it has one request under way.
"""

from __future__ import annotations

from typing import ClassVar, Final

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_OFFSET, Offset
from protocol.messages.base import ClientRequest, Int8, Int16, Int32, Int64, Message, Response
from protocol.messages.batch import RecordBatch
from protocol.messages.trusted import trusted

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
    """`base_offset` of the batch, -1 if it was not appended; that of the first time, if the batch is a duplicate."""

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
    """Wishes of a follower (`replica_id` and its broker epoch) to the leader of these partitions, by one of its
    fetchers. `number` 0 begins the session, and states all open wishes. Sessions of one life have ascending numbers,
    from 1 on.
    """

    replica_id: Int32
    replica_epoch: Int64
    partitions: tuple[FetchPartition, ...]
    fetcher: Int8 = 0
    session: Int64 = 1
    number: Int64 = 0


class FetchRenewal(Message):
    """A follower's open wishes stand as they are. `requests` have been sent in this session, `answers` have come."""

    RENEWAL: ClassVar[bool] = True

    replica_id: Int32
    replica_epoch: Int64
    fetcher: Int8 = 0
    session: Int64 = 1
    requests: Int64 = 1
    answers: Int64 = 0


class EpochEndOffset(Message):
    """The last epoch that leader and follower may share, and where it ends in the leader's log (KIP-595 diverging
    epoch).
    """

    leader_epoch: Int32
    end_offset: Int64


class FetchPartitionResult(Message):
    """The answer to a wish. `fetch_offset`, `leader_epoch` and `last_fetched_epoch` repeat it, so that an answer to an
    older wish is known as such: within a leader epoch a follower may reach an offset again with other records before
    it. `log_start_offset` is the leader's, -1 where it has none to tell; with OFFSET_OUT_OF_RANGE it is where the
    follower's log is to begin.
    """

    topic_id: str
    partition_id: Int32
    fetch_offset: Int64
    leader_epoch: Int32
    last_fetched_epoch: Int32 = NO_EPOCH
    error: ErrorCode = ErrorCode.NONE
    high_watermark: Int64 = NO_OFFSET
    diverging_epoch: EpochEndOffset | None = None
    batches: tuple[RecordBatch, ...] = ()
    log_start_offset: Int64 = NO_OFFSET

    @staticmethod
    def to(
        fetch: FetchPartition,
        error: ErrorCode = ErrorCode.NONE,
        high_watermark: Offset = NO_OFFSET,
        diverging_epoch: EpochEndOffset | None = None,
        batches: tuple[RecordBatch, ...] = (),
        log_start_offset: Offset = NO_OFFSET,
    ) -> FetchPartitionResult:
        """The answer to that wish, of values that are believed (`trusted.py`)."""
        return _RESULT(
            topic_id=fetch.topic_id,
            partition_id=fetch.partition_id,
            fetch_offset=fetch.fetch_offset,
            leader_epoch=fetch.current_leader_epoch,
            last_fetched_epoch=fetch.last_fetched_epoch,
            error=error,
            high_watermark=high_watermark,
            diverging_epoch=diverging_epoch,
            batches=batches,
            log_start_offset=log_start_offset,
        )

    def answers(self, fetch: FetchPartition) -> bool:
        """Whether it is the answer to what is wished for at present: from the same place of a log with the same records
        before it, in the same leader epoch.
        """
        return (self.leader_epoch, self.fetch_offset, self.last_fetched_epoch) == (
            fetch.current_leader_epoch,
            fetch.fetch_offset,
            fetch.last_fetched_epoch,
        )


_RESULT: Final = trusted(FetchPartitionResult)


class FetchResponse(Message):
    """Answers to one fetcher of a follower. `number` counts the answers of the session from 0 on; one without
    partitions does not count, it says which number is next. With an `error` there is no such session (any more).
    """

    partitions: tuple[FetchPartitionResult, ...]
    fetcher: Int8 = 0
    session: Int64 = 1
    number: Int64 = 0
    error: ErrorCode = ErrorCode.NONE

    @property
    def can_wait(self) -> bool:
        """True of high watermarks alone: the follower tells no client of them."""
        return self.error is ErrorCode.NONE and not any(
            result.batches or result.error is not ErrorCode.NONE or result.diverging_epoch is not None
            for result in self.partitions
        )


class ConsumeRequest(ClientRequest):
    """A consumer reads a partition from `fetch_offset`; it is shown nothing at or above the high watermark (E7). Where
    there is nothing to see it waits at the leader for up to `max_wait_ms`. `last_fetched_epoch` is the epoch of the
    record before `fetch_offset`, -1 where the consumer has read none (KIP-320).
    """

    topic: str
    partition: Int32
    fetch_offset: Int64
    max_bytes: Int32 = 1_048_576
    max_wait_ms: Int32 = 0
    last_fetched_epoch: Int32 = NO_EPOCH


class ConsumeResponse(Response):
    """Batches from the one that holds `fetch_offset` on, all below the high watermark. With `diverging_epoch` what the
    consumer has read is not what the log holds, from the end of that epoch on. An offset that is out of range comes
    with the range.
    """

    high_watermark: Int64 = NO_OFFSET
    log_start_offset: Int64 = NO_OFFSET
    diverging_epoch: EpochEndOffset | None = None
    batches: tuple[RecordBatch, ...] = ()


EARLIEST = -2
LATEST = -1


class ListOffsetsRequest(ClientRequest):
    """A consumer asks where a partition begins (`timestamp` EARLIEST: the log start offset) or where it ends for
    consumers (LATEST: the high watermark).
    """

    topic: str
    partition: Int32
    timestamp: Int64


class ListOffsetsResponse(Response):
    offset: Int64 = NO_OFFSET
    leader_epoch: Int32 = NO_EPOCH
