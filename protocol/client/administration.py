"""Administration requests of a client: one that changes something goes to the controller, once; one that only asks goes
to one node after the other, beginning with the controller, until one answers.

The client waits for `delivery.timeout.ms`. A request that the controller may take its time for gives it less than that:
an answer says of each partition how far it came, and a client that has given up would know of none.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.client.context import DEADLINE_PREFIX, WATCH_PREFIX, ClientContext
from protocol.config import DELIVERY_TIMEOUT_MS
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.messages.admin import AdminResponse
from protocol.messages.base import ANONYMOUS
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.messages.partitions import ElectLeadersRequest

ASK_NEXT_MS = 1_000
"""How long a question waits for an answer before the next node is asked."""


class Administration:
    """An administration command under way; `over` is called once, when it has sent its outcome."""

    def __init__(self, context: ClientContext, driver: NodeId, command: AdminCommand, over: Callable[[], None]) -> None:
        self._context = context
        self._driver = driver
        self._command = command
        self._over = over
        self._request_id = -1
        self._attempts = 0

    def begin(self, now_ms: TimeMs) -> None:
        """Sends the request."""
        deadline_ms = now_ms + self._context.config.int_value(DELIVERY_TIMEOUT_MS)
        self._context.set_timer(f"{DEADLINE_PREFIX}{self._command.command_id}", deadline_ms, self._expire)
        self._ask(now_ms)

    def _ask(self, now_ms: TimeMs) -> None:
        context, request = self._context, self._command.request
        context.forget(self._request_id)
        self._request_id = context.expect(AdminResponse, self._answered)
        principal = context.principal if request.principal == ANONYMOUS else request.principal
        nodes = (*context.controllers, *context.brokers)
        asked = request.model_copy(update={"correlation_id": self._request_id, "principal": principal})
        if isinstance(asked, ElectLeadersRequest):
            delivery_ms = context.config.int_value(DELIVERY_TIMEOUT_MS)
            asked = asked.model_copy(update={"timeout_ms": min(asked.timeout_ms, delivery_ms * 9 // 10)})
        context.out.send(nodes[self._attempts % len(nodes)], asked)
        self._attempts += 1
        if request.READ_ONLY:
            context.set_timer(f"{WATCH_PREFIX}{self._command.command_id}", now_ms + ASK_NEXT_MS, self._ask)

    def _answered(self, now_ms: TimeMs, response: AdminResponse) -> None:
        error, text = response.failure()
        self._end(AdminOutcome(command_id=self._command.command_id, error=error, message=text, response=response))

    def _expire(self, now_ms: TimeMs) -> None:
        error = ErrorCode.REQUEST_TIMED_OUT
        self._end(AdminOutcome(command_id=self._command.command_id, error=error, message="no answer in time"))

    def _end(self, outcome: AdminOutcome) -> None:
        self._context.forget(self._request_id)
        self._context.cancel_timer(f"{WATCH_PREFIX}{self._command.command_id}")
        self._context.cancel_timer(f"{DEADLINE_PREFIX}{self._command.command_id}")
        self._over()
        self._context.out.send(self._driver, outcome)
