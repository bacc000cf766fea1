"""Administration requests of a client (Kafka's `Admin`): which node gets them, when the next one is tried, which
response counts.

A query (`READ_ONLY`) goes to one node after the other, beginning with the presumed active controller, until one
answers; a response to an earlier attempt is ignored.

A change goes to the presumed active controller, and to the next one in the rotation `retry.backoff.ms` after
NOT_CONTROLLER, or after `TRY_NEXT_MS` without a response: the controller may be down, unreachable, or still working. It
is skipped until `request.timeout.ms` after the attempt, and then tried again, since it may have restarted and lost the
request. The only controller of a cluster is not tried again without a response.

The client accepts responses to all attempts; the first one other than NOT_CONTROLLER is the outcome. So a change may be
carried out twice, or reported as already done (TOPIC_ALREADY_EXISTS), as with Kafka's admin client.

The client gives up after `delivery.timeout.ms`: with NOT_CONTROLLER if all attempts got that, so that nothing was done;
otherwise with REQUEST_TIMED_OUT, and the change may have been carried out. Requests with a `timeout_ms` of their own
get a bit less than the time that is left, so that their response comes before the client gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from protocol.client.context import DEADLINE_PREFIX, WATCH_PREFIX, ClientContext
from protocol.config import DELIVERY_TIMEOUT_MS, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import ANONYMOUS
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.messages.partitions import ElectLeadersRequest
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest

TRY_NEXT_MS = 1_000
"""How long a request waits for a response before the next node is tried."""
_LONG_REQUESTS = (ElectLeadersRequest, AddVoterRequest, RemoveVoterRequest)
"""Requests that the controller answers within their `timeout_ms`."""


@dataclass(slots=True)
class Attempt:
    """A request that was sent to a node; `is_refused` once the node has answered NOT_CONTROLLER."""

    node: NodeId
    sent_ms: TimeMs
    is_refused: bool = False


def next_node(
    rotation: Sequence[NodeId], attempts: Collection[Attempt], now_ms: TimeMs, timeout_ms: int
) -> tuple[NodeId, TimeMs]:
    """The node of the next attempt and its time: in the order of `rotation` the first that may be tried now, else the
    earliest. A node without a response may be tried again `timeout_ms` after its last attempt.
    """
    free_ms = dict.fromkeys(rotation, now_ms)
    for attempt in attempts:
        if not attempt.is_refused:
            free_ms[attempt.node] = max(free_ms[attempt.node], attempt.sent_ms + timeout_ms)
    node = min(rotation, key=free_ms.__getitem__)
    return node, free_ms[node]


class Administration:
    """An administration command in progress; calls `on_done` once, before it sends its outcome to `driver`."""

    def __init__(
        self, context: ClientContext, driver: NodeId, command: AdminCommand, on_done: Callable[[], object]
    ) -> None:
        self._context = context
        self._driver = driver
        self._command = command
        self._on_done = on_done
        self._is_query = command.request.READ_ONLY
        self._rotation = context.controllers_in_turn
        if self._is_query:
            self._rotation = tuple(dict.fromkeys((*self._rotation, *context.brokers)))
        self._timeout_ms = 0 if self._is_query else context.config.int_value(REQUEST_TIMEOUT_MS)
        self._attempts: dict[int, Attempt] = {}
        self._deadline_ms: TimeMs = 0

    def begin(self, now_ms: TimeMs) -> None:
        self._deadline_ms = now_ms + self._context.config.int_value(DELIVERY_TIMEOUT_MS)
        self._context.set_timer(f"{DEADLINE_PREFIX}{self._command.command_id}", self._deadline_ms, self._expire)
        self._try_next(now_ms)

    def _try_next(self, now_ms: TimeMs) -> None:
        """Sends the request to the next node, if one may be tried now, and sets the timer for the one after it."""
        node, at_ms = next_node(self._rotation, self._attempts.values(), now_ms, self._timeout_ms)
        if at_ms <= now_ms:
            self._send(now_ms, node)
            at_ms = now_ms + TRY_NEXT_MS
        if self._is_query or len(self._rotation) > 1:
            self._retry_at(at_ms)

    def _retry_at(self, at_ms: TimeMs) -> None:
        self._context.set_timer(f"{WATCH_PREFIX}{self._command.command_id}", at_ms, self._try_next)

    def _send(self, now_ms: TimeMs, node: NodeId) -> None:
        context = self._context
        if self._is_query:
            self._forget()
        number = context.expect(AdminResponse, self._receive)
        self._attempts[number] = Attempt(node, now_ms)
        place = self._rotation.index(node) + 1
        self._rotation = (*self._rotation[place:], *self._rotation[:place])
        context.out.send(node, self._request(number, now_ms))

    def _request(self, correlation_id: int, now_ms: TimeMs) -> AdminRequest:
        request = self._command.request
        principal = self._context.principal if request.principal == ANONYMOUS else request.principal
        sent = replace(request, correlation_id=correlation_id, principal=principal)
        if not isinstance(sent, _LONG_REQUESTS):
            return sent
        return replace(sent, timeout_ms=min(sent.timeout_ms, (self._deadline_ms - now_ms) * 9 // 10))

    def _receive(self, now_ms: TimeMs, response: AdminResponse) -> None:
        attempt = self._attempts[response.correlation_id]
        if response.error is ErrorCode.NOT_CONTROLLER:
            if not attempt.is_refused:
                attempt.is_refused = True
                self._retry_at(now_ms + self._context.config.int_value(RETRY_BACKOFF_MS))
            return
        if not self._is_query:
            self._context.controller = attempt.node
        self._end(*response.failure(), response)

    def _expire(self, now_ms: TimeMs) -> None:
        if all(attempt.is_refused for attempt in self._attempts.values()):
            self._end(ErrorCode.NOT_CONTROLLER, "no controller is active")
        else:
            self._end(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")

    def _end(self, error: ErrorCode, message: str, response: AdminResponse | None = None) -> None:
        number = self._command.command_id
        self._forget()
        self._context.cancel_timer(f"{WATCH_PREFIX}{number}")
        self._context.cancel_timer(f"{DEADLINE_PREFIX}{number}")
        self._on_done()
        outcome = AdminOutcome(command_id=number, error=error, message=message, response=response)
        self._context.out.send(self._driver, outcome)

    def _forget(self) -> None:
        for number in self._attempts:
            self._context.forget(number)
