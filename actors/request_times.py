"""How long a node takes for each request, and what its producers wrote, for the meter.

A request arrives when its frame does, and ends when its response, with the same correlation id, is sent to the same
peer (Kafka's TotalTimeMs, which includes the wait in the queue of requests). What waits in between are produce requests
with acks=all and reads of consumers. Requests that never get a response, such as those that a restarted peer will not
wait for, are forgotten oldest first.

A batch counts as written when the leader traces its append, which happens within the input that brought it. Duplicates
of a producer's batch, refused batches and those that a follower fetches have no such event.
"""

from __future__ import annotations

from collections import deque

from protocol.events.broker import RecordsAppended
from protocol.ids import NodeId
from protocol.messages.base import Message, Request, Response
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ProduceRequest

MAX_PENDING = 10_000
MAX_UNREAD = 100_000
KAFKA_NAMES = {"Consume": "FetchConsumer"}
"""Kinds of requests that Kafka's `request` label names otherwise than the class here."""


class RequestTimes:
    """`seconds` in all parameters are of one monotonic clock."""

    def __init__(self) -> None:
        self._pending: dict[tuple[NodeId, int], tuple[str, float]] = {}
        self._times: deque[tuple[str, float]] = deque(maxlen=MAX_UNREAD)
        self._produce: ProduceRequest | None = None

    def received(self, sender: NodeId, message: Message, arrived_s: float) -> None:
        """Begins the input that hands this message to the node; its frame arrived at `arrived_s`."""
        self._produce = message if isinstance(message, ProduceRequest) else None
        if not isinstance(message, Request) or (isinstance(message, ProduceRequest) and message.acks == 0):
            return
        if len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._pending[sender, message.correlation_id] = (_kind(message), arrived_s)

    def sent(self, to: NodeId, message: Message, now_s: float) -> None:
        if not isinstance(message, Response):
            return
        began = self._pending.pop((to, message.correlation_id), None)
        if began is not None:
            kind, arrived_s = began
            self._times.append((kind, (now_s - arrived_s) * 1000))

    def batch_of(self, appended: RecordsAppended) -> RecordBatch | None:
        """The batch of the present input that this event says is appended; None where it brought no such batch."""
        request = self._produce
        return None if request is None or (request.topic, request.partition) != appended.partition else request.batch

    def take(self, most: int) -> list[tuple[str, float]]:
        """(kind of request, ms) of at most so many requests that have ended, each once, the oldest first."""
        return [self._times.popleft() for _ in range(min(most, len(self._times)))]

    @property
    def has_any(self) -> bool:
        return bool(self._times)


def _kind(request: Request) -> str:
    """The kind of a request by Kafka's name."""
    name = type(request).__name__.removesuffix("Request")
    return KAFKA_NAMES.get(name, name)
