"""What a leader owes the fetchers of its followers: answers that are ready, within limits of bytes and in turn.

A follower spreads the partitions that it follows over `num.replica.fetchers` fetchers. What it wishes for through one
of them, and what it is answered, is a *stream*: the counterpart of a fetch session (KIP-227). Each stream has limits
of its own, so that bulky partitions of one fetcher do not hold up those of another.

- Window: records that were sent and not asked beyond yet, and those of the next answer, are together at most
  `replica.fetch.response.max.bytes`. No message exceeds it, and a follower that takes nothing in is sent nothing more.
  When nothing is under way, one batch leaves however large it is.
- Share: a partition gets at most `replica.fetch.max.bytes` in one answer, but one batch at least if the window has
  room for it.
- Turn: partitions are served in the order in which they had news. One that has been served comes again behind the
  others; one that does not fit is waited for, not passed over.
- Patience: fewer than `replica.fetch.min.bytes` in all wait for more, at most `replica.fetch.wait.max.ms`. What a full
  window has held back has waited enough.
- Errors, points to truncate to, and high watermarks without records wait for nothing.

Retention may overtake a wish that waits, and a batch may be found damaged: such a partition is told
OFFSET_OUT_OF_RANGE, with the log start offset, or CORRUPT_MESSAGE, and the others get their records.

Bytes are those of batches as logs count them, `BATCH_OVERHEAD_BYTES` included. Kafka bounds the one request that a
fetcher has in flight; here several answers may be under way, and the bound is on their sum. The limits are those of the
cluster's config, which all brokers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.broker.context import BrokerContext
from protocol.config import (
    REPLICA_FETCH_MAX_BYTES,
    REPLICA_FETCH_MIN_BYTES,
    REPLICA_FETCH_RESPONSE_MAX_BYTES,
    REPLICA_FETCH_WAIT_MAX_MS,
)
from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import NO_OFFSET, BrokerId, Epoch, TimeMs, TopicIdPartition
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import RecordBatch
from protocol.messages.data import (
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
)
from protocol.messages.trusted import trusted

FETCH_WAIT_PREFIX = "fetch-wait/"

_RESPONSE: Final = trusted(FetchResponse)
StreamKey = tuple[BrokerId, int]
"""A follower and the number of one of its fetchers."""


@dataclass(slots=True)
class _Stream:
    """`ready` holds, in turn, the wishes for which there are records; `under_way` the bytes sent and not asked beyond.
    `deadline_ms` is when what is ready leaves however little it is, None before the wait has begun. `requests` were
    taken and `answers` given in the follower's `session`, 0 while it has none; `leads` says that a wish of this session
    was for a partition that this broker led.
    """

    ready: dict[TopicIdPartition, FetchPartition] = field(default_factory=dict)
    under_way: dict[TopicIdPartition, int] = field(default_factory=dict)
    under_way_bytes: int = 0
    deadline_ms: TimeMs | None = None
    session: int = 0
    requests: int = 0
    answers: int = 0
    leads: bool = False

    def begin(self, session: int) -> None:
        """A session states all that is open: nothing else is under way, or wished for."""
        self.session, self.requests, self.answers, self.leads = session, 1, 0, False
        self.ready.clear()
        self.release_all()

    def release(self, key: TopicIdPartition) -> None:
        self.under_way_bytes -= self.under_way.pop(key, 0)

    def release_all(self) -> None:
        self.under_way.clear()
        self.under_way_bytes = 0


@dataclass(frozen=True, slots=True)
class _Share:
    """What one partition contributes to an answer."""

    key: TopicIdPartition
    result: FetchPartitionResult
    size_bytes: int = 0


class FetchStreams:
    """All streams of one leading broker; `flush` sends what they have, one message per stream."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._share_bytes = context.config.int_value(REPLICA_FETCH_MAX_BYTES)
        self._window_bytes = context.config.int_value(REPLICA_FETCH_RESPONSE_MAX_BYTES)
        self._min_bytes = context.config.int_value(REPLICA_FETCH_MIN_BYTES)
        self._wait_ms = context.config.int_value(REPLICA_FETCH_WAIT_MAX_MS)
        self._streams: dict[StreamKey, _Stream] = {}
        self._epochs: dict[BrokerId, Epoch] = {}
        self._answers: dict[StreamKey, list[FetchPartitionResult]] = {}
        self._notes: list[tuple[StreamKey, FetchResponse]] = []
        self._waiting: dict[StreamKey, None] = {}

    # -- what followers say --------------------------------------------------------------------------------------------

    def greet(self, stream: StreamKey, request: FetchRequest) -> bool:
        """A request of a stream has come; False if it is not to be looked at: it is of a former life or session of the
        follower, or has come twice, or something before it was lost, which the follower is told.
        """
        if not self._is_of_this_life(stream, request.replica_epoch):
            return False
        state, session, number = self._stream(stream), request.session, request.number
        if number == 0 and session > state.session:
            state.begin(session)
            return True
        error = _refusal_of_session(state, session, number)
        if error is not ErrorCode.NONE:
            self._note(stream, session, 0, error)
        elif _is_next_request(state, session, number):
            state.requests = number + 1
            return True
        return False

    def renew(self, stream: StreamKey, renewal: FetchRenewal) -> bool:
        """A renewal of a stream has come; whether it is one of wishes that this broker has from the follower, for
        partitions that it leads. What was lost the follower is told.
        """
        if not self._is_of_this_life(stream, renewal.replica_epoch):
            return False
        state = self._stream(stream)
        error = _refusal_of_session(state, renewal.session, renewal.requests)
        if error is not ErrorCode.NONE:
            self._note(stream, renewal.session, 0, error)
            return False
        if renewal.session < state.session:
            return False
        if renewal.answers < state.answers:
            self._note(stream, state.session, state.answers, ErrorCode.NONE)
        return state.leads

    def leads(self, stream: StreamKey) -> None:
        """A wish of the stream's session is for a partition that this broker leads."""
        self._streams[stream].leads = True

    def _stream(self, stream: StreamKey) -> _Stream:
        """Begun where there is none."""
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _Stream()
        return state

    def _is_of_this_life(self, stream: StreamKey, broker_epoch: Epoch) -> bool:
        """What was under way to a former life of the follower is not to the present one."""
        follower = stream[0]
        known = self._epochs.get(follower, broker_epoch)
        if broker_epoch < known:
            return False
        self._epochs[follower] = broker_epoch
        if broker_epoch > known:
            for other, state in self._streams.items():
                if other[0] == follower:
                    state.begin(0)
        return True

    def _note(self, stream: StreamKey, session: int, number: int, error: ErrorCode) -> None:
        note = _RESPONSE(partitions=(), fetcher=stream[1], session=session, number=number, error=error)
        self._notes.append((stream, note))

    def withdraw(self, stream: StreamKey, key: TopicIdPartition) -> FetchPartition | None:
        """The follower gets no records of this partition from here (any more); its wish, if that was ready."""
        state = self._streams.get(stream)
        if state is None:
            return None
        state.release(key)
        return state.ready.pop(key, None)

    def forget(self, follower: BrokerId) -> None:
        """The follower is silent: what it wished for, or was sent, is no concern until it speaks again."""
        for stream in [stream for stream in self._streams if stream[0] == follower]:
            if self._streams.pop(stream).deadline_ms is not None:
                self._context.out.cancel_timer(_timer_of(stream))
            self._waiting.pop(stream, None)

    # -- what the leader has -------------------------------------------------------------------------------------------

    def answer(self, stream: StreamKey, result: FetchPartitionResult) -> None:
        """Has a result without records sent with the next `flush`."""
        self._answers.setdefault(stream, []).append(result)

    def ready(self, stream: StreamKey, key: TopicIdPartition, fetch: FetchPartition) -> None:
        """There are records for the wish: what the follower was sent before has arrived, or is lost. A wish that is
        ready already is replaced and keeps its turn.
        """
        state = self._stream(stream)
        state.release(key)
        state.ready[key] = fetch
        self._waiting[stream] = None

    def fire(self, name: str, now_ms: TimeMs) -> None:
        """A stream has waited long enough for more records."""
        follower, fetcher = name.removeprefix(FETCH_WAIT_PREFIX).split("/")
        state = self._streams.get((int(follower), int(fetcher)))
        if state is not None:
            state.deadline_ms = now_ms

    def flush(self, now_ms: TimeMs) -> None:
        """Sends the results collected during one input, and what of the records may leave."""
        if not self._answers and not self._waiting and not self._notes:
            return
        answers, self._answers = self._answers, {}
        for stream in {**answers, **self._waiting}:
            results = answers.get(stream, [])
            if stream in self._waiting:
                results += self._serve(stream, self._streams[stream], now_ms)
            if results:
                self._send(stream, results)
        notes, self._notes = self._notes, []
        for stream, note in notes:
            self._context.out.send(stream[0], note)

    def _send(self, stream: StreamKey, results: list[FetchPartitionResult]) -> None:
        state = self._stream(stream)
        message = _RESPONSE(partitions=tuple(results), fetcher=stream[1], session=state.session, number=state.answers)
        state.answers += 1
        self._context.out.send(stream[0], message)

    def _serve(self, stream: StreamKey, state: _Stream, now_ms: TimeMs) -> list[FetchPartitionResult]:
        shares = self._select(state)
        is_full = len(shares) < len(state.ready)
        sizes = [share.size_bytes for share in shares]
        size_bytes, is_good = sum(sizes), 0 not in sizes
        if not is_full and is_good and size_bytes < self._min_bytes and self._has_patience(stream, state, now_ms):
            return []
        for share in shares:
            del state.ready[share.key]
            if share.size_bytes:
                state.under_way[share.key] = share.size_bytes
        state.under_way_bytes += size_bytes
        if shares or not state.ready:
            self._settle(stream, state, now_ms)
        return [share.result for share in shares]

    def _has_patience(self, stream: StreamKey, state: _Stream, now_ms: TimeMs) -> bool:
        """Whether what is ready may wait for more; begins the wait."""
        if not state.ready:
            return False
        if state.deadline_ms is None:
            state.deadline_ms = now_ms + self._wait_ms
            self._context.out.set_timer(_timer_of(stream), state.deadline_ms)
        return now_ms < state.deadline_ms

    def _settle(self, stream: StreamKey, state: _Stream, now_ms: TimeMs) -> None:
        """Something has left: what stays behind leaves as soon as it may, what comes later waits anew."""
        if state.deadline_ms is not None:
            self._context.out.cancel_timer(_timer_of(stream))
        state.deadline_ms = now_ms if state.ready else None
        if not state.ready:
            del self._waiting[stream]

    def _select(self, state: _Stream) -> list[_Share]:
        """What the next answer may hold: as many of the ready partitions, in turn, as the window has room for."""
        shares: list[_Share] = []
        room = self._window_bytes - state.under_way_bytes
        is_first = state.under_way_bytes == 0
        for key, fetch in state.ready.items():
            if room <= 0 and not is_first:
                break
            share = self._share(key, fetch, room, is_first)
            if share is None:
                break
            shares.append(share)
            room -= share.size_bytes
            is_first = is_first and not share.size_bytes
        return shares

    def _share(self, key: TopicIdPartition, fetch: FetchPartition, room: int, is_first: bool) -> _Share | None:
        """What the partition puts into an answer with that much room left, None where it has to wait for more room."""
        replica, fetch_offset = self._context.replicas[key], fetch.fetch_offset
        log = replica.log
        if fetch_offset < log.start_offset:
            return _Share(key, refusal_of(fetch, ErrorCode.OFFSET_OUT_OF_RANGE, log))
        try:
            stored = log.storage.read(fetch_offset, min(self._share_bytes, max(room, 1)))
        except CorruptLogError as error:
            self._context.damage_found(replica, error)
            return _Share(key, refusal_of(fetch, ErrorCode.CORRUPT_MESSAGE))
        batches, size_bytes = share_of(stored, self._share_bytes, room, is_first)
        return _Share(key, result_of(fetch, log, batches), size_bytes) if batches else None


def _is_next_request(state: _Stream, session: int, number: int) -> bool:
    """Whether the request is the next one of the stream's session: none before it was lost, and it comes but once."""
    return session == state.session and number == state.requests


def _refusal_of_session(state: _Stream, session: int, requests: int) -> ErrorCode:
    """What to tell a follower that has sent so many requests in a session: that this leader has no such session, or
    that it lacks some of them. NONE where it is told nothing: all is well, or it is a message of the past.
    """
    if session > state.session:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    is_behind = session == state.session and requests > state.requests
    return ErrorCode.INVALID_FETCH_SESSION_EPOCH if is_behind else ErrorCode.NONE


def bytes_of(batch: RecordBatch) -> int:
    """What the batch counts for in all limits."""
    return len(batch.payload) + BATCH_OVERHEAD_BYTES


def share_of(
    batches: Sequence[RecordBatch], share_bytes: int, room_bytes: int, is_first: bool
) -> tuple[tuple[RecordBatch, ...], int]:
    """The batches, from the first on, that one partition puts into an answer with `room_bytes` left, and their size:
    no more than `share_bytes`, but the first batch if there is room for it, or if it `is_first` in the window.
    """
    taken, size_bytes = 0, 0
    for batch in batches:
        with_it = size_bytes + bytes_of(batch)
        fits = with_it <= room_bytes and (with_it <= share_bytes or not taken)
        if not fits and not (is_first and not taken):
            break
        taken, size_bytes = taken + 1, with_it
    return tuple(batches[:taken]), size_bytes


def result_of(fetch: FetchPartition, log: ReplicaLog, batches: tuple[RecordBatch, ...] = ()) -> FetchPartitionResult:
    """A good answer: what the leader knows now, and records."""
    return FetchPartitionResult.to(
        fetch, high_watermark=log.high_watermark, batches=batches, log_start_offset=log.start_offset
    )


def refusal_of(fetch: FetchPartition, error: ErrorCode, log: ReplicaLog | None = None) -> FetchPartitionResult:
    """An error; the log start offset goes with it where there is a log and it matters."""
    start_offset = log.start_offset if log is not None and error is ErrorCode.OFFSET_OUT_OF_RANGE else NO_OFFSET
    return FetchPartitionResult.to(fetch, error=error, log_start_offset=start_offset)


def _timer_of(stream: StreamKey) -> str:
    return f"{FETCH_WAIT_PREFIX}{stream[0]}/{stream[1]}"
