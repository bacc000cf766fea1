"""Produce requests with acks=all that wait for the high watermark (Kafka's `DelayedProduce`).

A request waits in `Replica.delayed_produces`, in the order of the offsets that it requires. It completes when the high
watermark reaches that offset, when the replica stops leading, or after `request.timeout.ms`.
"""

from __future__ import annotations

from typing import ClassVar

from protocol.broker.context import BrokerContext, DelayedProduce, Replica
from protocol.config import REQUEST_TIMEOUT_MS
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.log.producer_state import ProducedBatch
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ProduceRequest, ProduceResponse

AppendedBatch = RecordBatch | ProducedBatch
"""A batch in the log: as it was appended now, or as the producer state knows it."""
PRODUCE_TIMER = "produce-timeout"
MAX_DELAYED = 4_096
"""Requests that may wait per partition; the next one is answered with the retriable BROKER_NOT_AVAILABLE."""


class DelayedProduces:
    """Delays and completes the acks=all requests of one broker."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_timer_is_set"})

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._timeout_ms = context.config.int_value(REQUEST_TIMEOUT_MS)
        self._timer_is_set = False

    def delay(
        self, replica: Replica, client: NodeId, request: ProduceRequest, batch: AppendedBatch, now_ms: TimeMs
    ) -> None:
        """Delays the response until the high watermark reaches `batch.next_offset`."""
        deadline_ms = now_ms + self._timeout_ms
        delayed = DelayedProduce(batch.next_offset, batch.base_offset, client, request.correlation_id, deadline_ms)
        queue, place = replica.delayed_produces, len(replica.delayed_produces)
        while place and queue[place - 1].required_offset > delayed.required_offset:
            place -= 1
        queue.insert(place, delayed)
        self._set_timer(deadline_ms)

    def complete(self, replica: Replica, error: ErrorCode) -> None:
        """Answers the requests below the high watermark with NONE, or NOT_ENOUGH_REPLICAS_AFTER_APPEND (E6)."""
        queue, done = replica.delayed_produces, 0
        while done < len(queue) and queue[done].required_offset <= replica.log.high_watermark:
            self._respond(queue[done], error)
            done += 1
        if done:
            del queue[:done]

    def withdraw(self, client: NodeId, number: int, request: ProduceRequest) -> None:
        """Forgets a delayed request, whose correlation id is `number`; its records stay in the log."""
        replica = self._context.replica_named(request.topic, request.partition)
        if replica is not None:
            queue = replica.delayed_produces
            queue[:] = [item for item in queue if (item.client, item.correlation_id) != (client, number)]

    def fail(self, replica: Replica, error: ErrorCode) -> None:
        for delayed in replica.delayed_produces:
            self._respond(delayed, error)
        replica.delayed_produces.clear()

    def fire(self, now_ms: TimeMs, _: str) -> None:
        """Answers expired requests with REQUEST_TIMED_OUT. Their records stay in the log and may still be committed."""
        self._timer_is_set = False
        deadlines = []
        for replica in self._context.replicas.values():
            for delayed in [item for item in replica.delayed_produces if item.deadline_ms <= now_ms]:
                replica.delayed_produces.remove(delayed)
                self._respond(delayed, ErrorCode.REQUEST_TIMED_OUT)
            deadlines += [item.deadline_ms for item in replica.delayed_produces]
        if deadlines:
            self._set_timer(min(deadlines))

    def _respond(self, delayed: DelayedProduce, error: ErrorCode) -> None:
        number, base_offset = delayed.correlation_id, delayed.base_offset
        response = ProduceResponse.unchecked(correlation_id=number, error=error, base_offset=base_offset)
        self._context.out.send(delayed.client, response)

    def _set_timer(self, deadline_ms: TimeMs) -> None:
        if not self._timer_is_set:
            self._timer_is_set = True
            self._context.out.set_timer(PRODUCE_TIMER, deadline_ms)
