"""A producer's lane: the batches for one partition with one `acks`, in order, until each has its one outcome.

The rules are those of Apache Kafka's Sender and TransactionManager for idempotent producers (KIP-98, KIP-360). Batches
wait in order. At most `max.in.flight.requests.per.connection` of them are in the *window*: sent, or finished behind one
that is not. So no more batches lie behind an unanswered one than the leader remembers
(`protocol/log/producer_state.py`).

An idempotent lane (acks=all) gives each batch a sequence number when it enters the window; repetitions keep it, in
their order. A batch is repeated after a retriable error and a pause, when the leader epoch has moved on, and when its
answer is overdue (`request.timeout.ms`). An answer that says that the sequence has a gap means, for all but the first
batch of the window, that a predecessor is still to come: it waits for that. For the first it means that the leader's
log has lost what came before (an unclean election, or an earlier batch that has failed): the lane goes on with the next
producer epoch at sequence 0, and the batches of the window from there on with it. None of them is in that log, since
the gap lies before them. A lane never turns back to an older leader epoch of the same topic, whose log might lack what
a newer one has.

A batch that fails, certainly or not, leaves a sequence number behind that must not be used for another one. The rest of
the window runs out under its own numbers; then the lane goes on with the next epoch.

A lane of another kind has no sequence numbers. What it sends again may be stored twice or out of order; so it waits
for an answer for ever, unless the leader epoch moves on. With acks=0 there is no answer and a batch is done when it is
sent.

A batch that is too large for the topic (MESSAGE_TOO_LARGE), and that the producer has gathered, is halved until it fits
or has one record; the halves keep its place, and its sequence numbers among them.

Every batch ends acknowledged, definitely failed (no attempt of it can have been appended) or unknown, at the latest
`delivery.timeout.ms` after it came.

Departures from Kafka: each partition has an epoch of its own under the producer id; a duplicate that the leader no
longer has an offset for (DUPLICATE_SEQUENCE_NUMBER) counts as unknown, not as acknowledged; a batch that came as one
is not split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from protocol.client.context import DEADLINE_PREFIX, WATCH_MS, WATCH_PREFIX, ClientContext
from protocol.client.identity import ProducerIdentity
from protocol.client.metadata import Findings, LeaderFinder
from protocol.config import (
    DELIVERY_TIMEOUT_MS,
    MAX_IN_FLIGHT_REQUESTS,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
)
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import NO_EPOCH, NO_LEADER, NO_OFFSET, Epoch, Offset, TimeMs, TopicPartition
from protocol.log.checksum import checksum_of
from protocol.log.producer_state import MAX_PRODUCER_EPOCH, sequence_after
from protocol.messages.batch import NO_PRODUCER_ID, NO_SEQUENCE, RecordBatch
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.messages.trusted import changed, trusted

_REQUEST: Final = trusted(ProduceRequest)
ACKS_ALL = -1
NEVER = -(2**63)
"""A time before all others."""
_GAP = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How a batch ended: `error` NONE is acknowledged; otherwise `unknown` says that it may be in the log."""

    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    unknown: bool = False


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A batch on its way. `finished` is told how it ended; errors in `final_errors` are not retried.

    `request_id` is the attempt whose answer is outstanding, -1 if none is, sent at `sent_ms` to the leader of
    `sent_epoch`; `open_attempts` are those that may have been appended. `waits` says that a predecessor has to be
    repeated first. `halves` makes two batches of its records, None where it cannot be parted.
    """

    content: RecordBatch
    finished: Callable[[TimeMs, BatchResult], None]
    deadline_ms: TimeMs = 0
    final_errors: Collection[ErrorCode] = ()
    halves: Callable[[], list[ProducerBatch]] | None = None
    sequence: int = NO_SEQUENCE
    request_id: int = -1
    sent_ms: TimeMs = NEVER
    sent_epoch: Epoch = NO_EPOCH
    waits: bool = False
    done: bool = False
    last_error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT
    open_attempts: set[int] = field(default_factory=set)


class Lane:
    """See the module docstring."""

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
        self._in_flight = config.int_value(MAX_IN_FLIGHT_REQUESTS)
        self._delivery_ms = config.int_value(DELIVERY_TIMEOUT_MS)
        self._request_ms = config.int_value(REQUEST_TIMEOUT_MS)
        self._backoff_ms = config.int_value(RETRY_BACKOFF_MS)
        self._waiting: deque[ProducerBatch] = deque()
        self._window: deque[ProducerBatch] = deque()
        self._leader = NO_LEADER
        self._leader_epoch: Epoch = NO_EPOCH
        self._topic_id = ""
        self._pausing = False
        self._looking = False
        self._heard_ms: TimeMs = NEVER
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = 0
        self._next_sequence = 0
        self._used_up = NO_PRODUCER_ID
        self._is_broken = False

    @property
    def is_idle(self) -> bool:
        """Whether all batches have ended."""
        return not (self._waiting or self._window)

    def put(self, now_ms: TimeMs, batch: ProducerBatch, *, afresh: bool = False) -> None:
        """Takes a batch. A lane that was idle looks for the leader anew if it has not heard from it for a while, or if
        it is to begin `afresh`.
        """
        batch.deadline_ms = now_ms + self._delivery_ms
        if self.is_idle:
            self._context.set_timer(f"{DEADLINE_PREFIX}{self._name}", batch.deadline_ms, self._expire)
            if afresh or now_ms - self._heard_ms >= WATCH_MS:
                self._leader = NO_LEADER
        self._waiting.append(batch)
        self._go(now_ms)

    # -- what a batch needs to leave -----------------------------------------------------------------------------------

    def _go(self, now_ms: TimeMs) -> None:
        """Sends what may be sent, and asks for what is missing for it: the leader, the producer id."""
        while self._window and self._window[0].done:
            self._window.popleft()
        if self.is_idle:
            self._rest()
            return
        if self._is_broken and not self._window:
            self._begin_epoch()
        if self._pausing:
            return
        if self._leader == NO_LEADER:
            self._look(now_ms)
        if self._identity is not None and self._producer_id == NO_PRODUCER_ID:
            self._identity.want(now_ms, self._name, self._identified, self._used_up)
        elif self._leader != NO_LEADER:
            self._pump(now_ms)

    def _rest(self) -> None:
        self._looking = self._pausing = False
        self._context.cancel_timer(f"{WATCH_PREFIX}{self._name}")
        self._context.cancel_timer(f"{DEADLINE_PREFIX}{self._name}")
        self._finder.leave(self._partition.topic, self._name)
        if self._identity is not None:
            self._identity.leave(self._name)

    def _look(self, now_ms: TimeMs) -> None:
        if not self._looking:
            self._looking = True
            self._finder.search(now_ms, self._partition.topic, self._name, self._found)
            self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + WATCH_MS, self._watch)

    def _watch(self, now_ms: TimeMs) -> None:
        """A pause is over, or it is time to see whether the leader that owes answers still leads."""
        self._looking = self._pausing = False
        if self._identity is not None:
            for batch in self._window:
                if batch.request_id >= 0 and now_ms - batch.sent_ms >= self._request_ms:
                    self._give_up_attempt(batch)
        if self._leader == NO_LEADER or now_ms - self._heard_ms >= WATCH_MS:
            self._look(now_ms)
        else:
            self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + WATCH_MS, self._watch)
            self._go(now_ms)

    def _pause(self, now_ms: TimeMs) -> None:
        """The leader cannot take a batch just now, or is none any more: look again in a moment."""
        if not self._pausing:
            self._pausing, self._leader = True, NO_LEADER
            self._finder.leave(self._partition.topic, self._name)
            self._context.set_timer(f"{WATCH_PREFIX}{self._name}", now_ms + self._backoff_ms, self._watch)

    def _found(self, now_ms: TimeMs, findings: Findings) -> None:
        found = findings.partitions.get(self._partition.partition)
        if found is None:
            self._leader = NO_LEADER
            if findings.denied is not ErrorCode.NONE:
                self._fail_all(now_ms, findings.denied)
            if findings.is_heard:
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
                self._go(now_ms)

    def _identified(self, now_ms: TimeMs, producer_id: int, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._fail_all(now_ms, error)
            return
        self._producer_id, self._producer_epoch = producer_id, 0
        self._go(now_ms)

    def _begin_epoch(self) -> None:
        """Goes on at sequence 0 of the next epoch, with what is still in the window. After the last epoch of a producer
        id the lane needs another one.
        """
        self._is_broken = False
        self._next_sequence = 0
        if self._producer_epoch < MAX_PRODUCER_EPOCH:
            self._producer_epoch += 1
        else:
            self._used_up, self._producer_id = self._producer_id, NO_PRODUCER_ID
        for batch in self._window:
            self._give_up_attempt(batch)
            batch.sequence, batch.waits = NO_SEQUENCE, False

    # -- sending and answers -------------------------------------------------------------------------------------------

    def _pump(self, now_ms: TimeMs) -> None:
        """Sends again what needs it, in order, then what is new."""
        is_first, repeated = True, False
        for batch in [batch for batch in self._window if not batch.done]:
            answer_is_due = batch.request_id >= 0 and batch.sent_epoch >= self._leader_epoch
            if not answer_is_due and (is_first or repeated or not batch.waits):
                self._send(now_ms, batch)
                repeated = True
            is_first = False
        while self._waiting and len(self._window) < self._in_flight and not self._is_broken:
            batch = self._waiting.popleft()
            if self._acks == 0:
                self._send(now_ms, batch)
                self._end(now_ms, batch, BatchResult(ErrorCode.NONE))
            else:
                self._window.append(batch)
                self._send(now_ms, batch)
        watch = f"{WATCH_PREFIX}{self._name}"
        if self.is_idle:
            self._rest()
        elif watch not in self._context.timers:
            self._context.set_timer(watch, now_ms + WATCH_MS, self._watch)

    def _send(self, now_ms: TimeMs, batch: ProducerBatch) -> None:
        self._give_up_attempt(batch)
        if batch.sequence == NO_SEQUENCE and (self._identity is not None or not batch.open_attempts):
            self._seal(batch)
        number = self._context.expect(ProduceResponse, lambda at_ms, answer: self._answered(at_ms, batch, answer))
        batch.request_id, batch.sent_ms, batch.sent_epoch, batch.waits = number, now_ms, self._leader_epoch, False
        batch.open_attempts.add(number)
        request = _REQUEST(
            correlation_id=number,
            principal=self._context.principal,
            topic=self._partition.topic,
            partition=self._partition.partition,
            acks=self._acks,
            batch=batch.content,
        )
        self._context.out.send(self._leader, request)

    def _seal(self, batch: ProducerBatch) -> None:
        """Gives the batch the next place in the sequence."""
        if self._identity is not None:
            batch.sequence = self._next_sequence
            self._next_sequence = sequence_after(self._next_sequence, batch.content.record_count)
        self._stamp(batch)

    def _stamp(self, batch: ProducerBatch) -> None:
        """Writes the batch's place in the sequence into it, and its checksum."""
        content = batch.content
        if batch.sequence != NO_SEQUENCE:
            content = changed(
                content,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=batch.sequence,
            )
        if self._context.checksum is not None:
            content = changed(content, crc=checksum_of(content, self._context.checksum))
        batch.content = content

    def _give_up_attempt(self, batch: ProducerBatch) -> None:
        """Its answer is not waited for any more; what it may have done is not forgotten."""
        if batch.request_id >= 0:
            self._context.forget(batch.request_id)
            batch.request_id = -1

    def _answered(self, now_ms: TimeMs, batch: ProducerBatch, response: ProduceResponse) -> None:
        self._give_up_attempt(batch)
        error = response.error
        if error is ErrorCode.NONE:
            self._heard_ms = now_ms
            self._end(now_ms, batch, BatchResult(error, response.base_offset))
            self._go(now_ms)
            return
        batch.last_error = error
        if response.base_offset == NO_OFFSET and error is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            batch.open_attempts.discard(response.correlation_id)
        if error in _GAP and self._identity is not None:
            self._gap(batch)
        elif error is ErrorCode.MESSAGE_TOO_LARGE and batch.halves is not None and not batch.open_attempts:
            self._part(batch, batch.halves())
        elif error in batch.final_errors or error not in RETRIABLE:
            self._fail(now_ms, batch, error)
        else:
            self._pause(now_ms)
        self._go(now_ms)

    def _gap(self, batch: ProducerBatch) -> None:
        """The leader's log lacks what comes before the batch."""
        first = next(item for item in self._window if not item.done)
        if batch is first:
            self._begin_epoch()
        else:
            batch.waits = True

    def _part(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Puts parts of a batch that is in no log in its place; those of a sequence number keep to its sequence."""
        sequence = batch.sequence
        for part in parts:
            part.deadline_ms, part.sent_ms, part.last_error = batch.deadline_ms, batch.sent_ms, batch.last_error
            if sequence != NO_SEQUENCE:
                part.sequence = sequence
                sequence = sequence_after(sequence, part.content.record_count)
                self._stamp(part)
        place = self._window.index(batch)
        self._window = deque([*self._window][:place] + parts + [*self._window][place + 1 :])

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _expire(self, now_ms: TimeMs) -> None:
        """The time of the oldest batches is up."""
        for batch in [*self._window, *self._waiting]:
            if not batch.done and batch.deadline_ms <= now_ms:
                self._fail(now_ms, batch, batch.last_error)
        left = [batch.deadline_ms for batch in (*self._window, *self._waiting) if not batch.done]
        if left:
            self._context.set_timer(f"{DEADLINE_PREFIX}{self._name}", min(left), self._expire)
        self._go(now_ms)

    def _fail_all(self, now_ms: TimeMs, error: ErrorCode) -> None:
        for batch in [*self._window, *self._waiting]:
            if not batch.done:
                self._fail(now_ms, batch, error)
        self._go(now_ms)

    def _fail(self, now_ms: TimeMs, batch: ProducerBatch, error: ErrorCode) -> None:
        if batch.sequence != NO_SEQUENCE:
            self._is_broken = True
        if self._waiting and batch.sent_ms == NEVER:
            self._waiting.remove(batch)
        self._end(now_ms, batch, BatchResult(error, unknown=bool(batch.open_attempts)))

    def _end(self, now_ms: TimeMs, batch: ProducerBatch, result: BatchResult) -> None:
        self._give_up_attempt(batch)
        batch.done = True
        batch.finished(now_ms, result)
