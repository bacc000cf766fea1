"""What a leader serves to consumers: reads below the high watermark, and waits for it to move.

- Consumers get no record at or above the high watermark (E7). A read from an offset between high watermark and log end
  gets an empty response without error (A31, M31). With `max_wait_ms` it waits, delayed here, until the high watermark
  moves, the leader resigns, or the time is over.
- An offset below the log start or above the log end gets OFFSET_OUT_OF_RANGE.
- A consumer that sends the epoch of the last record that it has read gets the diverging epoch, if the log holds other
  records below the offset (KIP-320).
- A read that meets a damaged batch gets CORRUPT_MESSAGE, one beyond `MAX_DELAYED_READS` of a partition does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protocol.broker.context import BrokerContext, Replica
from protocol.config import REPLICA_FETCH_MAX_BYTES
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import NO_OFFSET, NodeId, Offset, TimeMs, TopicIdPartition
from protocol.log.replica_log import ReplicaLog
from protocol.messages.base import Response
from protocol.messages.batch import NO_TIMESTAMP, RecordBatch
from protocol.messages.data import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    ConsumeRequest,
    ConsumeResponse,
    EpochEndOffset,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

READ_TIMER = "read-wait"
MAX_DELAYED_READS = 1_000
FIND_BYTES = 1_048_576
"""How much a search for a timestamp reads at a time."""


@dataclass(frozen=True, slots=True)
class _DelayedRead:
    client: NodeId
    request: ConsumeRequest
    deadline_ms: TimeMs


class Reads:
    """Serves consumers' reads and ListOffsets for a broker's leaderships. StorageError where the disk fails."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._max_bytes = context.config.int_value(REPLICA_FETCH_MAX_BYTES)
        self._delayed: dict[TopicIdPartition, list[_DelayedRead]] = {}
        self._timer_ms: TimeMs | None = None

    def consume(self, now_ms: TimeMs, client: NodeId, request: ConsumeRequest) -> None:
        """Answers a valid read (`services.py`) with at most `replica.fetch.max.bytes` or one batch, or delays it."""
        replica = self._context.replica_named(request.topic, request.partition)
        if replica is None or replica.leadership is None:
            self._context.out.send(client, request.refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif not self._delay(replica, client, request, now_ms):
            self._answer(replica, client, request)

    def list_offsets(self, client: NodeId, request: ListOffsetsRequest) -> None:
        """Answers a valid request with the log start offset or the high watermark."""
        replica, number = self._context.replica_named(request.topic, request.partition), request.correlation_id
        if replica is None or replica.leadership is None:
            self._context.out.send(client, request.refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        if request.timestamp in (EARLIEST, LATEST):
            offset = replica.log.start_offset if request.timestamp == EARLIEST else replica.log.high_watermark
            epoch = replica.leadership.leader_epoch
            response: Response = ListOffsetsResponse(correlation_id=number, offset=offset, leader_epoch=epoch)
        else:
            try:
                response = find_timestamp(replica.log, request)
            except CorruptLogError as error:
                self._context.report_damage(replica, error)
                response = request.refusal(ErrorCode.CORRUPT_MESSAGE)
        self._context.out.send(client, response)

    def end_of_epoch(self, client: NodeId, request: OffsetForLeaderEpochRequest) -> None:
        """Answers a valid request with the end of an epoch in the leader's log."""
        replica, number = self._context.replica_named(request.topic, request.partition), request.correlation_id
        if replica is None or replica.leadership is None:
            self._context.out.send(client, request.refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        epoch, end_offset = replica.log.end_offset_for(request.leader_epoch)
        if epoch < 0:
            end_offset = NO_OFFSET
        response = OffsetForLeaderEpochResponse(correlation_id=number, leader_epoch=epoch, end_offset=end_offset)
        self._context.out.send(client, response)

    def high_watermark_moved(self, replica: Replica) -> None:
        """Answers the delayed reads below the new high watermark."""
        if replica.key in self._delayed:
            self._complete(replica, lambda item: item.request.fetch_offset < replica.log.high_watermark)

    def resign(self, replica: Replica) -> None:
        """The replica stops leading: answers the delayed reads with NOT_LEADER_OR_FOLLOWER."""
        for item in self._delayed.pop(replica.key, ()):
            self._context.out.send(item.client, item.request.refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def withdraw(self, client: NodeId, number: int, request: ConsumeRequest) -> None:
        """Forgets a delayed read, whose correlation id is `number`."""
        replica = self._context.replica_named(request.topic, request.partition)
        if replica is None or replica.key not in self._delayed:
            return
        delayed = self._delayed[replica.key]
        left = [item for item in delayed if (item.client, item.request.correlation_id) != (client, number)]
        if left:
            self._delayed[replica.key] = left
        else:
            del self._delayed[replica.key]

    def fire(self, now_ms: TimeMs, _: str) -> None:
        """Answers the delayed reads whose `max_wait_ms` is over, without records."""
        self._timer_ms = None
        for key in list(self._delayed):
            self._complete(self._context.replicas[key], lambda item: item.deadline_ms <= now_ms)
        waiting = [item.deadline_ms for delayed in self._delayed.values() for item in delayed]
        if waiting:
            self._set_timer(min(waiting))

    def _delay(self, replica: Replica, client: NodeId, request: ConsumeRequest, now_ms: TimeMs) -> bool:
        """Delays the read if it has a `max_wait_ms`, there is nothing to answer yet, and there is room for it."""
        log = replica.log
        has_news = not log.high_watermark <= request.fetch_offset <= log.end_offset
        if request.max_wait_ms <= 0 or has_news or _diverging(log, request) is not None:
            return False
        delayed = self._delayed.setdefault(replica.key, [])
        if len(delayed) >= MAX_DELAYED_READS:
            return False
        delayed.append(_DelayedRead(client, request, now_ms + request.max_wait_ms))
        self._set_timer(now_ms + request.max_wait_ms)
        return True

    def _complete(self, replica: Replica, is_due: Callable[[_DelayedRead], bool]) -> None:
        delayed = self._delayed[replica.key]
        waiting = [item for item in delayed if not is_due(item)]
        if waiting:
            self._delayed[replica.key] = waiting
        else:
            del self._delayed[replica.key]
        for item in filter(is_due, delayed):
            self._answer(replica, item.client, item.request)

    def _set_timer(self, at_ms: TimeMs) -> None:
        if self._timer_ms is None or at_ms < self._timer_ms:
            self._timer_ms = at_ms
            self._context.out.set_timer(READ_TIMER, at_ms)

    def _answer(self, replica: Replica, client: NodeId, request: ConsumeRequest) -> None:
        try:
            response: Response = read(replica.log, request, self._max_bytes)
        except CorruptLogError as error:
            self._context.report_damage(replica, error)
            response = request.refusal(ErrorCode.CORRUPT_MESSAGE)
        self._context.out.send(client, response)


def read(log: ReplicaLog, request: ConsumeRequest, max_bytes: int) -> ConsumeResponse:
    """The response to a read: batches below the high watermark, none, OFFSET_OUT_OF_RANGE, or the diverging epoch."""
    number, limit, start = request.correlation_id, log.high_watermark, log.start_offset
    if not start <= request.fetch_offset <= log.end_offset:
        error = ErrorCode.OFFSET_OUT_OF_RANGE
        return ConsumeResponse(correlation_id=number, error=error, high_watermark=limit, log_start_offset=start)
    diverging = _diverging(log, request)
    batches: tuple[RecordBatch, ...] = ()
    if diverging is None and request.fetch_offset < limit:
        stored = log.storage.read(request.fetch_offset, min(request.max_bytes, max_bytes))
        batches = tuple([batch for batch in stored if batch.base_offset + batch.record_count <= limit])
    return ConsumeResponse.unchecked(
        correlation_id=number, high_watermark=limit, log_start_offset=start, diverging_epoch=diverging, batches=batches
    )


def find_timestamp(log: ReplicaLog, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """The first committed batch whose timestamp is `request.timestamp` or newer, or the newest of all
    (MAX_TIMESTAMP). Segments that are too old are not read. Raises CorruptLogError for a damaged batch.
    """
    newest, is_newest = request.timestamp, request.timestamp == MAX_TIMESTAMP
    found: RecordBatch | None = None
    segments = log.storage.segments()
    for segment in sorted(segments, key=lambda segment: -segment.newest_ms) if is_newest else segments:
        if segment.newest_ms < newest or (found is not None and segment.newest_ms <= found.timestamp_ms):
            continue
        for batch in _batches(log, segment.base_offset, min(segment.end_offset, log.high_watermark)):
            if is_newest and batch.timestamp_ms > (NO_TIMESTAMP if found is None else found.timestamp_ms):
                found = batch
            elif not is_newest and batch.timestamp_ms >= newest:
                found = batch
                break
        if found is not None and not is_newest:
            break
    number = request.correlation_id
    if found is None:
        return ListOffsetsResponse(correlation_id=number)
    return ListOffsetsResponse(
        correlation_id=number,
        offset=found.base_offset,
        leader_epoch=found.leader_epoch,
        timestamp_ms=found.timestamp_ms,
    )


def _batches(log: ReplicaLog, begin: Offset, end: Offset) -> Iterator[RecordBatch]:
    """The batches from `begin` on that end at or below `end`."""
    while begin < end:
        for batch in log.storage.read(begin, FIND_BYTES):
            if batch.next_offset > end:
                return
            begin = batch.next_offset
            yield batch


def _diverging(log: ReplicaLog, request: ConsumeRequest) -> EpochEndOffset | None:
    """The epoch and offset from which on the log differs from what the consumer has read, if any (KIP-320)."""
    epoch = request.last_fetched_epoch
    return None if epoch < 0 else log.divergence(request.fetch_offset, epoch)
