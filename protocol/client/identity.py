"""The producer id of a client: requested once, with the first batch that needs it, and used for all partitions.

Each partition has producer epochs and sequence numbers of its own under the id (`partition_sender.py`). The client
requests another id only for a partition that has used up all epochs; other partitions keep theirs.

The presumed active controller is asked first; after NOT_CONTROLLER, or no response for `RETRY_MS`, the next one.
Repeated requests waste producer ids, but do no harm.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.client.context import ClientContext
from protocol.config import RETRY_BACKOFF_MS
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import TimeMs
from protocol.messages.batch import NO_PRODUCER_ID
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse

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
        if self._producer_id == exhausted:
            self._producer_id = NO_PRODUCER_ID
        if self._producer_id != NO_PRODUCER_ID:
            listener(now_ms, self._producer_id, ErrorCode.NONE)
            return
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
        controller, *others = self._rotation
        self._rotation = (*others, controller)
        request = InitProducerIdRequest(correlation_id=self._correlation_id, principal=context.principal)
        context.out.send(controller, request)
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
