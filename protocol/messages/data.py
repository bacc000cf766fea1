"""The data path: produce, and fetch by replicas and consumers.

Replica fetches are not request and response pairs: a `FetchPartition` carries the follower's fetch state of one
partition, and the leader delays it until there are records or a newer high watermark. A `FetchRequest` carries any
number of them, a `FetchResponse` the results of any number of partitions.

The fetch states of one fetcher of a follower at one leader are a *fetch session* (KIP-227): the first request (number
0) states all of them, later ones those that changed; requests and responses are numbered. Every
`replica.fetch.wait.max.ms` the follower sends both counts in a `FetchRenewal`. It shows the leader that the follower is
up, has the same size for one partition and for thousands, and reveals messages lost in either direction, after which
the follower begins a new session. Kafka needs only one number, since a fetcher has one request in flight.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_OFFSET, Offset
from protocol.messages.base import ClientRequest, Int8, Int16, Int32, Int64, Message, Response
from protocol.messages.batch import NO_TIMESTAMP, RecordBatch

CONSUMER = -1
"""`replica_id` of a fetch by a consumer."""


class ProduceRequest(ClientRequest):
    """Appends one batch. `acks`: 0 no response, 1 after the leader's append, -1 (all) once it is committed (E5)."""

    topic: str
    partition: Int32
    acks: Int16
    batch: RecordBatch


class ProduceResponse(Response):
    """`base_offset` of the batch, -1 if it was not appended; for a duplicate, that of the first append."""

    base_offset: Int64 = NO_OFFSET


class FetchPartition(Message):
    """A follower's fetch state of one partition: it fetches from `fetch_offset` on, its log end. `last_fetched_epoch`
    is the leader epoch of the record before it, -1 on an empty log; `high_watermark` is the last one that it received.
    """

    topic_id: str
    partition_id: Int32
    current_leader_epoch: Int32
    fetch_offset: Int64
    last_fetched_epoch: Int32 = NO_EPOCH
    high_watermark: Int64 = 0


class FetchRequest(Message):
    """Fetch states of one fetcher of a follower. `replica_epoch` is its broker epoch (KIP-903). `number` 0 begins a
    session and states all fetch states. Sessions of one incarnation ascend from 1 on.
    """

    replica_id: Int32
    replica_epoch: Int64
    partitions: tuple[FetchPartition, ...]
    fetcher: Int8 = 0
    session: Int64 = 1
    number: Int64 = 0


class FetchRenewal(Message, renewal=True):
    """Renews a fetch session without a change: the follower has sent `requests` and received `answers` in it."""

    replica_id: Int32
    replica_epoch: Int64
    fetcher: Int8 = 0
    session: Int64 = 1
    requests: Int64 = 1
    answers: Int64 = 0


class EpochEndOffset(Message):
    """The diverging epoch of KIP-595: the last epoch that both logs may share, and its end in the leader's log."""

    leader_epoch: Int32
    end_offset: Int64


class FetchPartitionResult(Message):
    """The result of a fetch, with its position, by which the follower ignores one for an older fetch state: after a
    truncation it may reach an offset again with other records. `log_start_offset`: the leader's, or -1; with
    OFFSET_OUT_OF_RANGE the follower's log is emptied and starts there.
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
        """The result of `fetch`, of values that are valid already."""
        return FetchPartitionResult.unchecked(
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
        """Whether this is the result of `fetch`: same leader epoch, offset, and epoch of the record before it."""
        wanted = (fetch.current_leader_epoch, fetch.fetch_offset, fetch.last_fetched_epoch)
        return (self.leader_epoch, self.fetch_offset, self.last_fetched_epoch) == wanted


class FetchResponse(Message):
    """Results for one fetcher. `number` counts responses with partitions from 0 on; one without carries that of the
    next. `error`: the leader has no such session, or lacks requests of it.
    """

    partitions: tuple[FetchPartitionResult, ...]
    fetcher: Int8 = 0
    session: Int64 = 1
    number: Int64 = 0
    error: ErrorCode = ErrorCode.NONE

    @property
    def can_wait(self) -> bool:
        """Whether a host may delay the response: it carries high watermarks only, on which no client waits."""
        return self.error is ErrorCode.NONE and not any(
            result.batches or result.error is not ErrorCode.NONE or result.diverging_epoch is not None
            for result in self.partitions
        )


class ConsumeRequest(ClientRequest):
    """A consumer reads from `fetch_offset` up to the high watermark (E7), and waits for up to `max_wait_ms` if there is
    nothing. `last_fetched_epoch` is that of the record before `fetch_offset`, -1 if it has read none (KIP-320).
    """

    topic: str
    partition: Int32
    fetch_offset: Int64
    max_bytes: Int32 = 1_048_576
    max_wait_ms: Int32 = 0
    last_fetched_epoch: Int32 = NO_EPOCH


class ConsumeResponse(Response):
    """Batches from the one with `fetch_offset` on. `diverging_epoch`: from its end offset on, the log differs from what
    the consumer has read. OFFSET_OUT_OF_RANGE carries the log start offset and the high watermark.
    """

    high_watermark: Int64 = NO_OFFSET
    log_start_offset: Int64 = NO_OFFSET
    diverging_epoch: EpochEndOffset | None = None
    batches: tuple[RecordBatch, ...] = ()


EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3


class ListOffsetsRequest(ClientRequest):
    """Requests an offset of a partition: the log start offset (`timestamp` EARLIEST), the high watermark (LATEST), the
    committed batch with the newest timestamp (MAX_TIMESTAMP), or the first committed one that is at least as new.
    """

    topic: str
    partition: Int32
    timestamp: Int64


class ListOffsetsResponse(Response):
    """The offset, and the leader epoch of the responding leader. By timestamp it is the base offset of the batch, -1 if
    there is none, with the timestamp and the leader epoch of the batch.
    """

    offset: Int64 = NO_OFFSET
    leader_epoch: Int32 = NO_EPOCH
    timestamp_ms: Int64 = NO_TIMESTAMP


class OffsetForLeaderEpochRequest(ClientRequest):
    """Requests the end of a leader epoch in the leader's log (KIP-101, KIP-320)."""

    topic: str
    partition: Int32
    leader_epoch: Int32


class OffsetForLeaderEpochResponse(Response):
    """The largest epoch up to the requested one, and its end offset; both -1 if the log has none."""

    leader_epoch: Int32 = NO_EPOCH
    end_offset: Int64 = NO_OFFSET
