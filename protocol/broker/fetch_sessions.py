"""The leader's half of fetch sessions (KIP-227): which fetch responses leave, in which order, within which limits.

Each fetcher of a follower has a session with this broker, with limits of its own, so that large partitions of one
fetcher do not delay those of another.

- Window: the records in flight (sent, and the follower has not fetched beyond them yet) and those of the next response
  are together at most `replica.fetch.response.max.bytes`. So no message is larger, and a follower that does not process
  responses gets no more of them. When nothing is in flight, one batch leaves however large it is.
- Share: a partition gets at most `replica.fetch.max.bytes` in one response, but at least one batch if the window has
  room for it.
- Order: partitions are served in the order in which they got records. A partition that has been served goes to the end
  of the queue. One that does not fit blocks those behind it.
- Minimum: less than `replica.fetch.min.bytes` in all waits for more, for at most `replica.fetch.wait.max.ms`. This wait
  does not apply to what a full window has delayed.
- Errors, diverging epochs, and high watermarks without records leave at once.

If retention deletes the records that a queued fetch asks for, the partition gets OFFSET_OUT_OF_RANGE with the log start
offset; if a batch is damaged, CORRUPT_MESSAGE. Other partitions of the response get their records.

Kafka bounds the single request that a fetcher has in flight; here several responses may be in flight, and the limit is
on their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.broker.context import BrokerContext
from protocol.config import (
    REPLICA_FETCH_MAX_BYTES,
    REPLICA_FETCH_MIN_BYTES,
    REPLICA_FETCH_RESPONSE_MAX_BYTES,
    REPLICA_FETCH_WAIT_MAX_MS,
)
from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, TimeMs, TopicIdPartition
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import RecordBatch
from protocol.messages.data import FetchPartition, FetchPartitionResult, FetchRenewal, FetchRequest, FetchResponse
from protocol.values import immutable

FETCH_WAIT_PREFIX = "fetch-wait/"

FetcherKey = tuple[BrokerId, int]
"""A follower and the number of one of its fetchers."""


@dataclass(slots=True)
class _Session:
    """`ready` queues fetches for which there are records, `in_flight` counts bytes per partition. `deadline_ms` ends
    the wait for `replica.fetch.min.bytes`. `requests` and `answers` count the messages of `session`, 0 for none.
    `leads`: a fetch was for a partition that this broker led.
    """

    ready: dict[TopicIdPartition, FetchPartition] = field(default_factory=dict)
    in_flight: dict[TopicIdPartition, int] = field(default_factory=dict)
    in_flight_bytes: int = 0
    deadline_ms: TimeMs | None = None
    session: int = 0
    requests: int = 0
    answers: int = 0
    leads: bool = False

    def begin(self, session: int) -> None:
        """Begins a session. Its first request states all fetches, so whatever was queued or in flight is void."""
        self.session, self.requests, self.answers, self.leads = session, 1, 0, False
        self.ready.clear()
        self.in_flight.clear()
        self.in_flight_bytes = 0

    def release(self, key: TopicIdPartition) -> None:
        self.in_flight_bytes -= self.in_flight.pop(key, 0)


@immutable
class _Share:
    """What one partition contributes to a response; `size_bytes` is 0 for errors."""

    key: TopicIdPartition
    result: FetchPartitionResult
    size_bytes: int = 0


class FetchSessions:
    """The sessions that one broker serves. `flush`, at the end of every input, sends one message per fetcher."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._share_bytes = context.config.int_value(REPLICA_FETCH_MAX_BYTES)
        self._window_bytes = context.config.int_value(REPLICA_FETCH_RESPONSE_MAX_BYTES)
        self._min_bytes = context.config.int_value(REPLICA_FETCH_MIN_BYTES)
        self._wait_ms = context.config.int_value(REPLICA_FETCH_WAIT_MAX_MS)
        self._sessions: dict[FetcherKey, _Session] = {}
        self._epochs: dict[BrokerId, Epoch] = {}
        self._answers: dict[FetcherKey, list[FetchPartitionResult]] = {}
        self._session_statuses: list[tuple[FetcherKey, FetchResponse]] = []
        self._waiting: dict[FetcherKey, None] = {}

    def accept_request(self, fetcher: FetcherKey, request: FetchRequest) -> bool:
        """Whether to serve a request: it is no duplicate, of this session, and none before it is missing (KIP-227)."""
        if not self._is_current_incarnation(fetcher, request.replica_epoch):
            return False
        state, session, number = self._session(fetcher), request.session, request.number
        if number == 0 and session > state.session:
            state.begin(session)
            return True
        error = _refusal_of_session(state, session, number)
        if error is not ErrorCode.NONE:
            self._queue_session_status(fetcher, session, 0, error)
        elif session == state.session and number == state.requests:  # none before it was lost, and it is no duplicate
            state.requests = number + 1
            return True
        return False

    def accept_renewal(self, fetcher: FetcherKey, renewal: FetchRenewal) -> bool:
        """Compares a renewal's message counts; reports losses. True: intact, with a partition that the broker leads."""
        if not self._is_current_incarnation(fetcher, renewal.replica_epoch):
            return False
        state = self._session(fetcher)
        error = _refusal_of_session(state, renewal.session, renewal.requests)
        if error is not ErrorCode.NONE:
            self._queue_session_status(fetcher, renewal.session, 0, error)
            return False
        if renewal.session < state.session:
            return False
        if renewal.answers < state.answers:
            self._queue_session_status(fetcher, state.session, state.answers, ErrorCode.NONE)
        return state.leads

    def session(self, fetcher: FetcherKey) -> tuple[int, int, int] | None:
        """The number of the fetcher's session, and how many requests and answers it has had; for observers."""
        state = self._sessions.get(fetcher)
        return None if state is None else (state.session, state.requests, state.answers)

    def epoch_of(self, follower: BrokerId) -> Epoch:
        """The newest broker epoch under which the follower has fetched, -1 before; for observers."""
        return self._epochs.get(follower, NO_EPOCH)

    def mark_led(self, fetcher: FetcherKey) -> None:
        """Records that a fetch of the fetcher's session is for a partition that this broker leads."""
        self._sessions[fetcher].leads = True

    def _session(self, fetcher: FetcherKey) -> _Session:
        state = self._sessions.get(fetcher)
        if state is None:
            state = self._sessions[fetcher] = _Session()
        return state

    def _is_current_incarnation(self, fetcher: FetcherKey, broker_epoch: Epoch) -> bool:
        """False for a broker epoch older than the newest one seen. A newer one resets all sessions of the follower."""
        follower = fetcher[0]
        known = self._epochs.get(follower, broker_epoch)
        if broker_epoch < known:
            return False
        self._epochs[follower] = broker_epoch
        if broker_epoch > known:
            for other, state in self._sessions.items():
                if other[0] == follower:
                    state.begin(0)
        return True

    def _queue_session_status(self, fetcher: FetcherKey, session: int, number: int, error: ErrorCode) -> None:
        """Queues a response without partitions: the error of a session, or the number of its next response."""
        status = FetchResponse.unchecked(partitions=(), fetcher=fetcher[1], session=session, number=number, error=error)
        self._session_statuses.append((fetcher, status))
        self._context.has_queued = True

    def withdraw(self, fetcher: FetcherKey, key: TopicIdPartition) -> FetchPartition | None:
        """Removes the partition from the fetcher's queue and window; returns the fetch if it was queued."""
        state = self._sessions.get(fetcher)
        if state is None:
            return None
        state.release(key)
        return state.ready.pop(key, None)

    def forget(self, follower: BrokerId) -> None:
        """Drops all sessions of a follower that has been silent for `replica.lag.time.max.ms`."""
        for fetcher in [fetcher for fetcher in self._sessions if fetcher[0] == follower]:
            if self._sessions.pop(fetcher).deadline_ms is not None:
                self._context.out.cancel_timer(_timer_of(fetcher))
            self._waiting.pop(fetcher, None)

    def answer(self, fetcher: FetcherKey, result: FetchPartitionResult) -> None:
        """Queues a result without records for the next `flush`."""
        self._answers.setdefault(fetcher, []).append(result)
        self._context.has_queued = True

    def enqueue(self, fetcher: FetcherKey, key: TopicIdPartition, fetch: FetchPartition) -> None:
        """Queues a fetch for which there are records, in the place of a queued one; none of them is in flight."""
        state = self._session(fetcher)
        state.release(key)
        state.ready[key] = fetch
        self._waiting[fetcher] = None
        self._context.has_queued = True

    def fire(self, now_ms: TimeMs, name: str) -> None:
        """The wait of a fetcher ("follower/fetcher") for `replica.fetch.min.bytes` is over."""
        follower, fetcher = name.split("/")
        state = self._sessions.get((int(follower), int(fetcher)))
        if state is not None:
            state.deadline_ms = now_ms

    def flush(self, now_ms: TimeMs) -> None:
        """Sends the results that were queued during one input, and the records that the limits allow."""
        answers, self._answers = self._answers, {}
        for fetcher in {**answers, **self._waiting}:
            results = answers.get(fetcher, [])
            if fetcher in self._waiting:
                results += self._serve(fetcher, self._sessions[fetcher], now_ms)
            if results:
                session = self._session(fetcher)
                message = FetchResponse.unchecked(
                    partitions=tuple(results), fetcher=fetcher[1], session=session.session, number=session.answers
                )
                session.answers += 1
                self._context.out.send(fetcher[0], message)
        statuses, self._session_statuses = self._session_statuses, []
        for fetcher, status in statuses:
            self._context.out.send(fetcher[0], status)
        if self._waiting:
            self._context.has_queued = True

    def _serve(self, fetcher: FetcherKey, state: _Session, now_ms: TimeMs) -> list[FetchPartitionResult]:
        shares = self._select(state)
        is_full = len(shares) < len(state.ready)
        sizes = [share.size_bytes for share in shares]
        size_bytes, has_error = sum(sizes), 0 in sizes
        may_wait = state.ready and not is_full and not has_error and size_bytes < self._min_bytes
        if may_wait and self._waits_for_more(fetcher, state, now_ms):
            return []
        for share in shares:
            del state.ready[share.key]
            if share.size_bytes:
                state.in_flight[share.key] = share.size_bytes
        state.in_flight_bytes += size_bytes
        if shares or not state.ready:  # fetches that remain queued do not wait for the minimum, later ones do
            if state.deadline_ms is not None:
                self._context.out.cancel_timer(_timer_of(fetcher))
            state.deadline_ms = now_ms if state.ready else None
            if not state.ready:
                del self._waiting[fetcher]
        return [share.result for share in shares]

    def _waits_for_more(self, fetcher: FetcherKey, state: _Session, now_ms: TimeMs) -> bool:
        """Whether the queued fetches wait for `replica.fetch.min.bytes`; begins the wait if it has not begun."""
        if state.deadline_ms is None:
            state.deadline_ms = now_ms + self._wait_ms
            self._context.out.set_timer(_timer_of(fetcher), state.deadline_ms)
        return now_ms < state.deadline_ms

    def _select(self, state: _Session) -> list[_Share]:
        """The shares of the next response: as many of the queued partitions, in order, as the window has room for."""
        shares: list[_Share] = []
        room = self._window_bytes - state.in_flight_bytes
        is_first = state.in_flight_bytes == 0
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
        """The partition's share of a response with `room` bytes left; None where its next batch does not fit."""
        replica, fetch_offset = self._context.replicas[key], fetch.fetch_offset
        log = replica.log
        if fetch_offset < log.start_offset:
            return _Share(key, refusal_of(fetch, ErrorCode.OFFSET_OUT_OF_RANGE, log))
        try:
            stored = log.storage.read(fetch_offset, min(self._share_bytes, max(room, 1)))
        except CorruptLogError as error:
            self._context.report_damage(replica, error)
            return _Share(key, refusal_of(fetch, ErrorCode.CORRUPT_MESSAGE))
        batches, size_bytes = share_of(stored, self._share_bytes, room, is_first)
        return _Share(key, result_of(fetch, log, batches), size_bytes) if batches else None


def _refusal_of_session(state: _Session, session: int, requests: int) -> ErrorCode:
    """The error for a follower that has sent `requests` requests in a session: FETCH_SESSION_ID_NOT_FOUND where this
    leader has no such session, INVALID_FETCH_SESSION_EPOCH where requests are missing, else NONE.
    """
    if session > state.session:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    is_behind = session == state.session and requests > state.requests
    return ErrorCode.INVALID_FETCH_SESSION_EPOCH if is_behind else ErrorCode.NONE


def bytes_of(batch: RecordBatch) -> int:
    """The size of a batch, in bytes, as all limits count it."""
    return len(batch.payload) + BATCH_OVERHEAD_BYTES


def share_of(
    batches: Sequence[RecordBatch], share_bytes: int, room_bytes: int, is_first: bool
) -> tuple[tuple[RecordBatch, ...], int]:
    """The first batches that one partition contributes to a response with `room_bytes` left, and their size: at most
    `share_bytes`, but the first batch may exceed `share_bytes`, and any limit if it `is_first` in the window.
    """
    taken, size_bytes = 0, 0
    for batch in batches:
        with_it = size_bytes + bytes_of(batch)
        fits = with_it <= room_bytes and (with_it <= share_bytes or not taken)
        if not fits and (taken or not is_first):
            break
        taken, size_bytes = taken + 1, with_it
    return tuple(batches[:taken]), size_bytes


def result_of(fetch: FetchPartition, log: ReplicaLog, batches: tuple[RecordBatch, ...] = ()) -> FetchPartitionResult:
    """The result of a fetch without error: the leader's offsets now, and `batches`."""
    return FetchPartitionResult.to(
        fetch, high_watermark=log.high_watermark, batches=batches, log_start_offset=log.start_offset
    )


def refusal_of(fetch: FetchPartition, error: ErrorCode, log: ReplicaLog | None = None) -> FetchPartitionResult:
    """The result of a fetch with `error`; with OFFSET_OUT_OF_RANGE it carries the log start offset of `log`."""
    start_offset = log.start_offset if log is not None and error is ErrorCode.OFFSET_OUT_OF_RANGE else NO_OFFSET
    return FetchPartitionResult.to(fetch, error=error, log_start_offset=start_offset)


def _timer_of(fetcher: FetcherKey) -> str:
    return f"{FETCH_WAIT_PREFIX}{fetcher[0]}/{fetcher[1]}"
