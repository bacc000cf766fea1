"""The batches of a producer for one partition with one `acks`, in order, from sealing to exactly one result each.

The rules are those of Apache Kafka's Sender and TransactionManager for idempotent producers (KIP-98, KIP-360). At most
`max.in.flight.requests.per.connection` batches are in the *window*: sent and unanswered, or finished after one that is
unanswered. So no more batches follow an unanswered one than the leader's producer state holds
(`protocol/log/producer_state.py`).

An idempotent sender (acks=all) assigns each batch a sequence number when it enters the window; repetitions keep it, and
their order. A batch is repeated after a retriable error and a back-off, when the leader epoch has changed, and after
`request.timeout.ms`.

A response that reports a gap in the sequence means, for all but the first batch of the window, that a predecessor is
still missing: the batch waits for its repetition. For the first batch it means that the leader's log has lost the
predecessors (an unclean election, or a failed batch): the sender continues with the next producer epoch at sequence 0,
with all batches of the window, none of which is in that log. A sender never returns to an older leader epoch of the
same topic, whose log might lack records of a newer one.

The sequence number of a failed batch must not be reused, whether or not the batch was appended. The rest of the window
is sent with its own numbers; then the sender continues with the next epoch.

Other senders have no sequence numbers, and a repeated batch may be stored twice or out of order. So they wait for a
response without a timeout, unless the leader epoch changes. With acks=0 there is no response and a batch is finished
when it is sent.

A gathered batch that is too large for the topic (MESSAGE_TOO_LARGE) is split in halves until it fits or has one record;
the halves take its place and its sequence numbers.

Every batch ends acknowledged, definitely failed (no attempt can have been appended) or unknown, at the latest
`delivery.timeout.ms` after `enqueue`.

Departures from Kafka: each partition has an epoch of its own under the producer id; a duplicate whose offset the leader
does not know any more (DUPLICATE_SEQUENCE_NUMBER) is unknown, not acknowledged; the batch of a ProduceCommand is never
split.

The producer id of a client is requested once, with the first batch that needs it, and used for all partitions; another
one only for a partition that has used up all epochs. The presumed active controller is asked first; after
NOT_CONTROLLER, or no response for `RETRY_MS`, the next one. Repeated requests waste producer ids, but do no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from protocol.client.context import DEADLINE_PREFIX, WATCH_MS, WATCH_PREFIX, ClientContext, LeaderFinder, TopicLeaders
from protocol.config import DELIVERY_TIMEOUT_MS, MAX_IN_FLIGHT_REQUESTS, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import NO_EPOCH, NO_LEADER, NO_OFFSET, Epoch, Offset, TimeMs, TopicPartition
from protocol.log.checksum import checksum_of
from protocol.log.producer_state import MAX_PRODUCER_EPOCH, sequence_after
from protocol.messages.admin import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.base import changed
from protocol.messages.batch import NO_PRODUCER_ID, NO_SEQUENCE, RecordBatch
from protocol.messages.data import ProduceRequest, ProduceResponse

IDENTITY_TIMER = "producer-id"
RETRY_MS = 1_000
"""How long a client waits for a controller's response before it asks the next one, which may be the same."""

Listener = Callable[[TimeMs, int, ErrorCode], None]
"""Takes the time, the producer id, and the error if there is no id."""


class ProducerIdentity:
    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._producer_id = NO_PRODUCER_ID
        self._listeners: dict[str, Listener] = {}
        self._correlation_id = 0
        self._rotation = context.controllers_in_turn

    def request_id(self, now_ms: TimeMs, name: str, listener: Listener, exhausted: int = NO_PRODUCER_ID) -> None:
        """Calls the listener `name` with the client's producer id, which is not `exhausted`, as soon as it is known."""
        if self._producer_id not in (NO_PRODUCER_ID, exhausted):
            listener(now_ms, self._producer_id, ErrorCode.NONE)
            return
        self._producer_id = NO_PRODUCER_ID
        is_requested = bool(self._listeners)
        self._listeners[name] = listener
        if not is_requested:
            self._rotation = self._context.controllers_in_turn
            self._send(now_ms)

    def cancel(self, name: str) -> None:
        if self._listeners.pop(name, None) is not None and not self._listeners:
            self._stop_requests()

    def _stop_requests(self) -> None:
        self._context.forget(self._correlation_id)
        self._context.cancel_timer(IDENTITY_TIMER)

    def _send(self, now_ms: TimeMs) -> None:
        context = self._context
        context.forget(self._correlation_id)
        self._correlation_id = context.expect(InitProducerIdResponse, self._receive)
        self._rotation = (*self._rotation[1:], self._rotation[0])
        request = InitProducerIdRequest(correlation_id=self._correlation_id, principal=context.principal)
        context.out.send(self._rotation[-1], request)
        context.set_timer(IDENTITY_TIMER, now_ms + RETRY_MS, self._send)

    def _receive(self, now_ms: TimeMs, response: InitProducerIdResponse) -> None:
        self._stop_requests()
        if response.error is not ErrorCode.NOT_CONTROLLER:
            self._context.controller = self._rotation[-1]
        if response.error in RETRIABLE:
            backoff_ms = self._context.config.int_value(RETRY_BACKOFF_MS)
            self._context.set_timer(IDENTITY_TIMER, now_ms + backoff_ms, self._send)
            return
        self._producer_id = response.producer_id
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener(now_ms, response.producer_id, response.error)


ACKS_ALL = -1
NEVER = -(2**63)
"""A time before all others."""
_GAP_ERRORS = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch: acknowledged with `error` NONE; otherwise `unknown` if it may be in the log."""

    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    unknown: bool = False


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A batch and the state of its delivery. `finished` takes the result; errors in `final_errors` are not retried.
    `request_id` is the attempt whose response is outstanding, -1 if none, sent at `sent_ms` to the leader of
    `sent_epoch`; `open_attempts` may have been appended. `waits`: a predecessor has to be repeated first. `split`
    returns two batches with the halves of its records; None if the batch cannot be split.
    """

    content: RecordBatch
    finished: Callable[[TimeMs, BatchResult], None]
    deadline_ms: TimeMs = 0
    final_errors: Collection[ErrorCode] = ()
    split: Callable[[], list[ProducerBatch]] | None = None
    sequence: int = NO_SEQUENCE
    request_id: int = -1
    sent_ms: TimeMs = NEVER
    sent_epoch: Epoch = NO_EPOCH
    waits: bool = False
    done: bool = False
    last_error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT
    open_attempts: set[int] = field(default_factory=set)


class PartitionSender:
    """Delivers the batches of one partition and one `acks`. `identity` is None for a sender without idempotence."""

    def __init__(
        self,
        context: ClientContext,
        finder: LeaderFinder,
        identity: ProducerIdentity | None,
        partition: TopicPartition,
        acks: int,
    ) -> None:
        config = context.config
        self._context = context
        self._finder = finder
        self._identity = identity
        self._partition = partition
        self._acks = acks
        self._name = f"{partition.topic}/{partition.partition}/{acks}"
        self._max_in_flight = config.int_value(MAX_IN_FLIGHT_REQUESTS)
        self._delivery_ms = config.int_value(DELIVERY_TIMEOUT_MS)
        self._request_ms = config.int_value(REQUEST_TIMEOUT_MS)
        self._backoff_ms = config.int_value(RETRY_BACKOFF_MS)
        self._waiting: deque[ProducerBatch] = deque()
        self._window: deque[ProducerBatch] = deque()
        self._leader = NO_LEADER
        self._leader_epoch: Epoch = NO_EPOCH
        self._topic_id = ""
        self._is_backing_off = False
        self._is_searching = False
        self._last_ack_ms: TimeMs = NEVER
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = 0
        self._next_sequence = 0
        self._exhausted_id = NO_PRODUCER_ID
        self._needs_new_epoch = False

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._window)

    def enqueue(self, now_ms: TimeMs, batch: ProducerBatch, *, new_search: bool = False) -> None:
        """Adds a batch. An idle sender looks up the leader first after a silence, or with `new_search`."""
        batch.deadline_ms = now_ms + self._delivery_ms
        if self.is_idle:
            self._context.set_timer(f"{DEADLINE_PREFIX}{self._name}", batch.deadline_ms, self._expire)
            if new_search or now_ms - self._last_ack_ms >= WATCH_MS:
                self._leader = NO_LEADER
        self._waiting.append(batch)
        self._send_ready(now_ms)

    # -- what a batch needs to leave -----------------------------------------------------------------------------------

    def _send_ready(self, now_ms: TimeMs) -> None:
        """Sends the batches that are ready, and requests what is missing to send more: the leader, the producer id."""
        while self._window and self._window[0].done:
            self._window.popleft()
        if self.is_idle:
            self._cancel_timers()
            return
        if self._needs_new_epoch and not self._window:
            self._bump_epoch()
        if self._is_backing_off:
            return
        if self._leader == NO_LEADER:
            self._search_leader(now_ms)
        if self._identity is not None and self._producer_id == NO_PRODUCER_ID:
            self._identity.request_id(now_ms, self._name, self._receive_producer_id, self._exhausted_id)
        elif self._leader != NO_LEADER:
            self._send_batches(now_ms)

    def _cancel_timers(self) -> None:
        self._is_searching = self._is_backing_off = False
        self._context.cancel_timer(f"{WATCH_PREFIX}{self._name}")
        self._context.cancel_timer(f"{DEADLINE_PREFIX}{self._name}")
        self._finder.cancel(self._partition.topic, self._name)
        if self._identity is not None:
            self._identity.cancel(self._name)

    def _search_leader(self, now_ms: TimeMs) -> None:
        if not self._is_searching:
            self._is_searching = True
            self._finder.search(now_ms, self._partition.topic, self._name, self._receive_leader)
            self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + WATCH_MS, self._check_progress)

    def _check_progress(self, now_ms: TimeMs) -> None:
        """After a back-off or a silence: gives up attempts that have timed out, and looks up the leader again."""
        self._is_searching = self._is_backing_off = False
        if self._identity is not None:
            for batch in self._window:
                if batch.request_id >= 0 and now_ms - batch.sent_ms >= self._request_ms:
                    self._stop_waiting(batch)
        if self._leader == NO_LEADER or now_ms - self._last_ack_ms >= WATCH_MS:
            self._search_leader(now_ms)
        else:
            self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + WATCH_MS, self._check_progress)
            self._send_ready(now_ms)

    def _receive_leader(self, now_ms: TimeMs, leaders: TopicLeaders) -> None:
        found = leaders.partitions.get(self._partition.partition)
        if found is None:
            self._leader = NO_LEADER
            if leaders.error is not ErrorCode.NONE:
                self._fail_all(now_ms, leaders.error)
            if leaders.is_answered:
                for batch in (*self._window, *self._waiting):
                    batch.last_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return
        topic_id, partition = found
        if topic_id != self._topic_id:
            self._topic_id, self._leader_epoch = topic_id, NO_EPOCH
            for batch in self._window:
                batch.sent_epoch = NO_EPOCH
        if partition.leader_epoch >= self._leader_epoch:
            self._leader, self._leader_epoch = partition.leader, partition.leader_epoch
            if self._leader != NO_LEADER:
                self._send_ready(now_ms)

    def _receive_producer_id(self, now_ms: TimeMs, producer_id: int, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._fail_all(now_ms, error)
            return
        self._producer_id, self._producer_epoch = producer_id, 0
        self._send_ready(now_ms)

    def _bump_epoch(self) -> None:
        """Continues at sequence 0 of the next producer epoch, or of a new producer id after the last epoch."""
        self._needs_new_epoch = False
        self._next_sequence = 0
        if self._producer_epoch < MAX_PRODUCER_EPOCH:
            self._producer_epoch += 1
        else:
            self._exhausted_id, self._producer_id = self._producer_id, NO_PRODUCER_ID
        for batch in self._window:
            self._stop_waiting(batch)
            batch.sequence, batch.waits = NO_SEQUENCE, False

    # -- sending and answers -------------------------------------------------------------------------------------------

    def _send_batches(self, now_ms: TimeMs) -> None:
        """Repeats the batches of the window that need it, in order, then sends new ones."""
        is_first, repeated = True, False
        for batch in [batch for batch in self._window if not batch.done]:
            answer_is_due = batch.request_id >= 0 and batch.sent_epoch >= self._leader_epoch
            if not answer_is_due and (is_first or repeated or not batch.waits):
                self._send(now_ms, batch)
                repeated = True
            is_first = False
        while self._waiting and len(self._window) < self._max_in_flight and not self._needs_new_epoch:
            batch = self._waiting.popleft()
            if self._acks == 0:
                self._send(now_ms, batch)
                self._end(now_ms, batch, BatchResult(ErrorCode.NONE))
            else:
                self._window.append(batch)
                self._send(now_ms, batch)
        watch = f"{WATCH_PREFIX}{self._name}"
        if self.is_idle:
            self._cancel_timers()
        elif watch not in self._context.timers:
            self._context.set_timer(watch, now_ms + WATCH_MS, self._check_progress)

    def _send(self, now_ms: TimeMs, batch: ProducerBatch) -> None:
        self._stop_waiting(batch)
        if batch.sequence == NO_SEQUENCE and (self._identity is not None or not batch.open_attempts):
            if self._identity is not None:
                batch.sequence = self._next_sequence
                self._next_sequence = sequence_after(self._next_sequence, batch.content.record_count)
            self._stamp(batch)
        number = self._context.expect(ProduceResponse, lambda at_ms, answer: self._receive(at_ms, batch, answer))
        batch.request_id, batch.sent_ms, batch.sent_epoch, batch.waits = number, now_ms, self._leader_epoch, False
        batch.open_attempts.add(number)
        request = ProduceRequest.unchecked(
            correlation_id=number,
            principal=self._context.principal,
            topic=self._partition.topic,
            partition=self._partition.partition,
            acks=self._acks,
            batch=batch.content,
        )
        self._context.out.send(self._leader, request)

    def _stamp(self, batch: ProducerBatch) -> None:
        if batch.sequence != NO_SEQUENCE:
            number, epoch = self._producer_id, self._producer_epoch
            batch.content = changed(
                batch.content, producer_id=number, producer_epoch=epoch, base_sequence=batch.sequence
            )
        if self._context.checksum is not None:
            batch.content = changed(batch.content, crc=checksum_of(batch.content, self._context.checksum))

    def _stop_waiting(self, batch: ProducerBatch) -> None:
        """Ignores the response to the last attempt; the attempt stays one that may have been appended."""
        if batch.request_id >= 0:
            self._context.forget(batch.request_id)
            batch.request_id = -1

    def _receive(self, now_ms: TimeMs, batch: ProducerBatch, response: ProduceResponse) -> None:
        self._stop_waiting(batch)
        error = response.error
        if error is ErrorCode.NONE:
            self._last_ack_ms = now_ms
            self._end(now_ms, batch, BatchResult(error, response.base_offset))
            self._send_ready(now_ms)
            return
        batch.last_error = error
        if response.base_offset == NO_OFFSET and error is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            batch.open_attempts.discard(response.correlation_id)
        if error in _GAP_ERRORS and self._identity is not None:
            batch.waits = batch is not next(item for item in self._window if not item.done)
            if not batch.waits:
                self._bump_epoch()
        elif error is ErrorCode.MESSAGE_TOO_LARGE and batch.split is not None and not batch.open_attempts:
            self._replace(batch, batch.split())
        elif error in batch.final_errors or error not in RETRIABLE:
            self._fail(now_ms, batch, error)
        elif not self._is_backing_off:  # sends nothing for `retry.backoff.ms`, then looks up the leader
            self._is_backing_off, self._leader = True, NO_LEADER
            self._finder.cancel(self._partition.topic, self._name)
            self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + self._backoff_ms, self._check_progress)
        self._send_ready(now_ms)

    def _replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Replaces a batch that no log contains by its halves, which take over its sequence numbers."""
        sequence = batch.sequence
        for part in parts:
            part.deadline_ms, part.sent_ms, part.last_error = batch.deadline_ms, batch.sent_ms, batch.last_error
            if sequence != NO_SEQUENCE:
                part.sequence = sequence
                sequence = sequence_after(sequence, part.content.record_count)
                self._stamp(part)
        self._window = deque(item for each in self._window for item in (parts if each is batch else [each]))

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _expire(self, now_ms: TimeMs) -> None:
        for batch in self._unfinished():
            if batch.deadline_ms <= now_ms:
                self._fail(now_ms, batch, batch.last_error)
        left = [batch.deadline_ms for batch in self._unfinished()]
        if left:
            self._context.set_timer(f"{DEADLINE_PREFIX}{self._name}", min(left), self._expire)
        self._send_ready(now_ms)

    def _unfinished(self) -> list[ProducerBatch]:
        return [batch for batch in (*self._window, *self._waiting) if not batch.done]

    def _fail_all(self, now_ms: TimeMs, error: ErrorCode) -> None:
        for batch in self._unfinished():
            self._fail(now_ms, batch, error)
        self._send_ready(now_ms)

    def _fail(self, now_ms: TimeMs, batch: ProducerBatch, error: ErrorCode) -> None:
        if batch.sequence != NO_SEQUENCE:
            self._needs_new_epoch = True
        if self._waiting and batch.sent_ms == NEVER:
            self._waiting.remove(batch)
        self._end(now_ms, batch, BatchResult(error, unknown=bool(batch.open_attempts)))

    def _end(self, now_ms: TimeMs, batch: ProducerBatch, result: BatchResult) -> None:
        self._stop_waiting(batch)
        batch.done = True
        batch.finished(now_ms, result)
