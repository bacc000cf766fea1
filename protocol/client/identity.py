"""The producer id of a client: asked for once, when the first batch that needs it is there, and used everywhere.

Each partition counts epochs and sequence numbers of its own under the id (`lane.py`). Only when a partition has used up
all epochs does the client ask for another id; the other partitions keep theirs.

The controller that is believed active is asked first; one that says that it is not active, or says nothing for
`ASK_AGAIN_MS`, sends the client to the next in turn. To ask twice does no harm: an id is wasted.
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
ASK_AGAIN_MS = 1_000
"""How long a client waits for a controller before it asks the next one, which may be the same."""

Listener = Callable[[TimeMs, int, ErrorCode], None]
"""Takes the time, and a producer id or the error for which there is none."""


class ProducerIdentity:
    """See the module docstring."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._producer_id = NO_PRODUCER_ID
        self._listeners: dict[str, Listener] = {}
        self._correlation_id = 0
        self._turn = context.controllers_in_turn

    def want(self, now_ms: TimeMs, who: str, listener: Listener, used_up: int = NO_PRODUCER_ID) -> None:
        """Gives the listener, known as `who`, the client's producer id: at once or when it is there. It must be another
        one than `used_up`.
        """
        if self._producer_id == used_up:
            self._producer_id = NO_PRODUCER_ID
        if self._producer_id != NO_PRODUCER_ID:
            listener(now_ms, self._producer_id, ErrorCode.NONE)
            return
        asking = bool(self._listeners)
        self._listeners[who] = listener
        if not asking:
            self._turn = self._context.controllers_in_turn
            self._ask(now_ms)

    def leave(self, who: str) -> None:
        """`who` is not interested any more."""
        if self._listeners.pop(who, None) is not None and not self._listeners:
            self._rest()

    def _rest(self) -> None:
        self._context.forget(self._correlation_id)
        self._context.cancel_timer(IDENTITY_TIMER)

    def _ask(self, now_ms: TimeMs) -> None:
        context = self._context
        context.forget(self._correlation_id)
        self._correlation_id = context.expect(InitProducerIdResponse, self._answered)
        controller, *others = self._turn
        self._turn = (*others, controller)
        request = InitProducerIdRequest(correlation_id=self._correlation_id, principal=context.principal)
        context.out.send(controller, request)
        context.set_timer(IDENTITY_TIMER, now_ms + ASK_AGAIN_MS, self._ask)

    def _answered(self, now_ms: TimeMs, response: InitProducerIdResponse) -> None:
        self._rest()
        if response.error is not ErrorCode.NOT_CONTROLLER:
            self._context.controller = self._turn[-1]
        if response.error in RETRIABLE:
            backoff_ms = self._context.config.int_value(RETRY_BACKOFF_MS)
            self._context.set_timer(IDENTITY_TIMER, now_ms + backoff_ms, self._ask)
            return
        self._producer_id = response.producer_id
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener(now_ms, response.producer_id, response.error)
