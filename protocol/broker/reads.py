"""The leader's side towards consumers: reads below the high watermark, and waiting for it to move.

A consumer that stands at or above the high watermark, but not behind the log end, finds nothing and no error (A31,
M31); if it says so it waits, parked here, until the high watermark moves, the leader resigns or its time is up. What
lies at or above the high watermark is never shown (E7). An offset below the log start or behind the log end is out of
range. A consumer that says which epoch it has read last is told where the log parts from what it has read (KIP-320).
A batch that is found damaged is not shown: the read fails with CORRUPT_MESSAGE, and others go on.

At most `MAX_PARKED` consumers wait per partition; whoever comes later is answered at once, as if its time were up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.broker.context import BrokerContext, Replica
from protocol.config import REPLICA_FETCH_MAX_BYTES
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import NodeId, TimeMs, TopicIdPartition
from protocol.log.replica_log import ReplicaLog
from protocol.messages.base import Response
from protocol.messages.batch import RecordBatch
from protocol.messages.data import (
    EARLIEST,
    ConsumeRequest,
    ConsumeResponse,
    EpochEndOffset,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from protocol.messages.trusted import trusted

_RESPONSE: Final = trusted(ConsumeResponse)
READ_TIMER = "read-wait"
MAX_PARKED = 1_000


@dataclass(frozen=True, slots=True)
class _Parked:
    """A consumer that waits."""

    client: NodeId
    request: ConsumeRequest
    deadline_ms: TimeMs


class Reads:
    """See the module docstring."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._max_bytes = context.config.int_value(REPLICA_FETCH_MAX_BYTES)
        self._parked: dict[TopicIdPartition, list[_Parked]] = {}
        self._armed_ms: TimeMs | None = None

    def consume(self, client: NodeId, request: ConsumeRequest, now_ms: TimeMs) -> None:
        """Answers a consumer's read, or parks it. The request has been admitted (`admission.py`). An answer is never
        larger than a replica's fetch may be, but for a single batch.
        """
        replica = self._context.replica_named(request.topic, request.partition)
        if replica is None or replica.leadership is None:
            self._send(client, _no_leader(request))
        elif not self._park(replica, client, request, now_ms):
            self._answer(replica, client, request)

    def list_offsets(self, client: NodeId, request: ListOffsetsRequest) -> None:
        """Answers where a partition begins or ends. The request has been admitted."""
        replica = self._context.replica_named(request.topic, request.partition)
        if replica is None or replica.leadership is None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._send(client, ListOffsetsResponse(correlation_id=request.correlation_id, error=error))
            return
        log = replica.log
        offset = log.start_offset if request.timestamp == EARLIEST else log.high_watermark
        self._send(
            client,
            ListOffsetsResponse(
                correlation_id=request.correlation_id, offset=offset, leader_epoch=replica.leadership.leader_epoch
            ),
        )

    def high_watermark_moved(self, replica: Replica) -> None:
        """Answers those for whom there is something to see."""
        parked = self._parked.get(replica.key)
        if parked is None:
            return
        still = [item for item in parked if item.request.fetch_offset >= replica.log.high_watermark]
        if len(still) < len(parked):
            self._keep(replica.key, still)
            for item in parked:
                if item.request.fetch_offset < replica.log.high_watermark:
                    self._answer(replica, item.client, item.request)

    def resign(self, replica: Replica) -> None:
        """The replica leads no more: those who wait are told so."""
        for item in self._parked.pop(replica.key, ()):
            self._send(item.client, _no_leader(item.request))

    def fire(self, now_ms: TimeMs) -> None:
        """Answers those whose time is up, with nothing but the high watermark."""
        self._armed_ms = None
        for key, parked in list(self._parked.items()):
            still = [item for item in parked if item.deadline_ms > now_ms]
            self._keep(key, still)
            for item in parked:
                if item.deadline_ms <= now_ms:
                    self._answer(self._context.replicas[key], item.client, item.request)
        waiting = [item.deadline_ms for parked in self._parked.values() for item in parked]
        if waiting:
            self._arm(min(waiting))

    def _park(self, replica: Replica, client: NodeId, request: ConsumeRequest, now_ms: TimeMs) -> bool:
        """Whether the consumer waits: it wants to, it may, and there is nothing to tell it."""
        log = replica.log
        if request.max_wait_ms <= 0 or not log.high_watermark <= request.fetch_offset <= log.end_offset:
            return False
        if _diverging(log, request) is not None:
            return False
        parked = self._parked.setdefault(replica.key, [])
        if len(parked) >= MAX_PARKED:
            return False
        parked.append(_Parked(client, request, now_ms + request.max_wait_ms))
        self._arm(now_ms + request.max_wait_ms)
        return True

    def _keep(self, key: TopicIdPartition, parked: list[_Parked]) -> None:
        if parked:
            self._parked[key] = parked
        else:
            del self._parked[key]

    def _arm(self, at_ms: TimeMs) -> None:
        if self._armed_ms is None or at_ms < self._armed_ms:
            self._armed_ms = at_ms
            self._context.out.set_timer(READ_TIMER, at_ms)

    def _answer(self, replica: Replica, client: NodeId, request: ConsumeRequest) -> None:
        try:
            response = read(replica.log, request, self._max_bytes)
        except CorruptLogError as error:
            self._context.damage_found(replica, error)
            response = ConsumeResponse(correlation_id=request.correlation_id, error=ErrorCode.CORRUPT_MESSAGE)
        self._send(client, response)

    def _send(self, client: NodeId, response: Response) -> None:
        self._context.out.send(client, response)


def read(log: ReplicaLog, request: ConsumeRequest, max_bytes: int) -> ConsumeResponse:
    """The answer to a consumer's read of a log: batches, nothing yet, out of range, or where the two part. StorageError
    where the disk does not give them.
    """
    number, limit, start = request.correlation_id, log.high_watermark, log.start_offset
    fetch_offset = request.fetch_offset
    if not start <= fetch_offset <= log.end_offset:
        error = ErrorCode.OFFSET_OUT_OF_RANGE
        return ConsumeResponse(correlation_id=number, error=error, high_watermark=limit, log_start_offset=start)
    diverging = _diverging(log, request)
    batches: tuple[RecordBatch, ...] = ()
    if diverging is None and fetch_offset < limit:
        stored = log.storage.read(fetch_offset, min(request.max_bytes, max_bytes))
        batches = tuple([batch for batch in stored if batch.base_offset + batch.record_count <= limit])
    return _RESPONSE(
        correlation_id=number,
        high_watermark=limit,
        log_start_offset=start,
        diverging_epoch=diverging,
        batches=batches,
    )


def _diverging(log: ReplicaLog, request: ConsumeRequest) -> EpochEndOffset | None:
    """Where the log parts from what the consumer has read, as far as it says what that was."""
    if request.last_fetched_epoch < 0:
        return None
    return log.divergence(request.fetch_offset, request.last_fetched_epoch)


def _no_leader(request: ConsumeRequest) -> ConsumeResponse:
    return ConsumeResponse(correlation_id=request.correlation_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
