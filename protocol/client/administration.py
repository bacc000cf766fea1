"""Administration requests of a client: whom it asks, when it asks somebody else, and which answer counts.

A request that only asks (`READ_ONLY`) goes to one node after the other, beginning with the controller that is believed
active, until one answers; an answer to an earlier question is ignored.

One that changes something goes to the controller that is believed active. Two things send the client to the next one in
turn:

- NOT_CONTROLLER: nothing was done there. After `retry.backoff.ms` the next one is asked.
- Silence for `ASK_NEXT_MS`: the controller may be dead or cut off, or still at work, as with an election that takes its
  time. It is passed over until `request.timeout.ms` after it was asked; then it takes its turn again, since it may have
  been restarted and have lost the request. The only controller of a cluster is not asked again for its silence.

All answers stay awaited, and the first that is not NOT_CONTROLLER is the outcome. A change may thereby be done twice,
or be reported as done already (TOPIC_ALREADY_EXISTS), where a controller has done it and its answer did not come in
time. It is so with Kafka's admin client too.

The client waits for `delivery.timeout.ms`. If everybody it asked has said NOT_CONTROLLER by then, nothing was done, and
that is the outcome; if an answer is missing, the outcome is REQUEST_TIMED_OUT, and the change may have been done. A
request that the controller may take its time for gives it less than what is left: an answer says how far it came, and a
client that has given up would know of none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from protocol.client.context import DEADLINE_PREFIX, WATCH_PREFIX, ClientContext
from protocol.config import DELIVERY_TIMEOUT_MS, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import ANONYMOUS
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.messages.partitions import ElectLeadersRequest
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest

ASK_NEXT_MS = 1_000
"""How long a request waits for an answer before the next node is asked."""
_TAKES_ITS_TIME = (ElectLeadersRequest, AddVoterRequest, RemoveVoterRequest)
"""Requests that the controller answers within their `timeout_ms`."""


@dataclass(slots=True)
class Attempt:
    """A request that was sent to a node; `is_refused` once the node has said that it is not the active controller."""

    node: NodeId
    asked_ms: TimeMs
    is_refused: bool = False


def whose_turn(
    turn: Sequence[NodeId], attempts: Collection[Attempt], now_ms: TimeMs, patience_ms: int
) -> tuple[NodeId, TimeMs]:
    """Who is asked next, and when: of `turn`, in its order, the first that may be asked now, else the one that may be
    first. A node that owes an answer may not be asked until `patience_ms` after it was asked last.
    """
    free_ms = dict.fromkeys(turn, now_ms)
    for attempt in attempts:
        if not attempt.is_refused:
            free_ms[attempt.node] = max(free_ms[attempt.node], attempt.asked_ms + patience_ms)
    node = min(turn, key=free_ms.__getitem__)
    return node, free_ms[node]


class Administration:
    """An administration command under way; `over` is called once, when it has sent its outcome."""

    def __init__(self, context: ClientContext, driver: NodeId, command: AdminCommand, over: Callable[[], None]) -> None:
        self._context = context
        self._driver = driver
        self._command = command
        self._over = over
        self._only_asks = command.request.READ_ONLY
        self._turn = context.controllers_in_turn
        if self._only_asks:
            self._turn = (*self._turn, *context.brokers)
        self._patience_ms = 0 if self._only_asks else context.config.int_value(REQUEST_TIMEOUT_MS)
        self._attempts: dict[int, Attempt] = {}
        self._deadline_ms: TimeMs = 0

    def begin(self, now_ms: TimeMs) -> None:
        """Sends the request."""
        self._deadline_ms = now_ms + self._context.config.int_value(DELIVERY_TIMEOUT_MS)
        self._context.set_timer(f"{DEADLINE_PREFIX}{self._command.command_id}", self._deadline_ms, self._expire)
        self._ask(now_ms)

    def _ask(self, now_ms: TimeMs) -> None:
        """Asks the next node, if there is one that may be asked now."""
        node, at_ms = whose_turn(self._turn, self._attempts.values(), now_ms, self._patience_ms)
        if at_ms <= now_ms:
            self._send(now_ms, node)
            at_ms = now_ms + ASK_NEXT_MS
        if self._only_asks or len(self._turn) > 1:
            self._ask_again_at(at_ms)

    def _ask_again_at(self, at_ms: TimeMs) -> None:
        self._context.set_timer(f"{WATCH_PREFIX}{self._command.command_id}", at_ms, self._ask)

    def _send(self, now_ms: TimeMs, node: NodeId) -> None:
        context = self._context
        if self._only_asks:
            self._forget()
        number = context.expect(AdminResponse, self._answered)
        self._attempts[number] = Attempt(node, now_ms)
        place = self._turn.index(node) + 1
        self._turn = (*self._turn[place:], *self._turn[:place])
        context.out.send(node, self._request(number, now_ms))

    def _request(self, correlation_id: int, now_ms: TimeMs) -> AdminRequest:
        request = self._command.request
        principal = self._context.principal if request.principal == ANONYMOUS else request.principal
        asked = request.model_copy(update={"correlation_id": correlation_id, "principal": principal})
        if isinstance(asked, _TAKES_ITS_TIME):
            left_ms = self._deadline_ms - now_ms
            asked = asked.model_copy(update={"timeout_ms": min(asked.timeout_ms, left_ms * 9 // 10)})
        return asked

    def _answered(self, now_ms: TimeMs, response: AdminResponse) -> None:
        attempt = self._attempts[response.correlation_id]
        if response.error is ErrorCode.NOT_CONTROLLER:
            if not attempt.is_refused:
                attempt.is_refused = True
                self._ask_again_at(now_ms + self._context.config.int_value(RETRY_BACKOFF_MS))
            return
        if not self._only_asks:
            self._context.controller = attempt.node
        error, text = response.failure()
        self._end(AdminOutcome(command_id=self._command.command_id, error=error, message=text, response=response))

    def _expire(self, now_ms: TimeMs) -> None:
        error, text = ErrorCode.REQUEST_TIMED_OUT, "no answer in time"
        if all(attempt.is_refused for attempt in self._attempts.values()):
            error, text = ErrorCode.NOT_CONTROLLER, "no controller is active"
        self._end(AdminOutcome(command_id=self._command.command_id, error=error, message=text))

    def _end(self, outcome: AdminOutcome) -> None:
        self._forget()
        self._context.cancel_timer(f"{WATCH_PREFIX}{self._command.command_id}")
        self._context.cancel_timer(f"{DEADLINE_PREFIX}{self._command.command_id}")
        self._over()
        self._context.out.send(self._driver, outcome)

    def _forget(self) -> None:
        """Answers to what was sent so far are not awaited any more."""
        for number in self._attempts:
            self._context.forget(number)
