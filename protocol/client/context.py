"""What the parts of a client share: who it is, whom it may ask, its requests that wait for an answer, its timers.

A request is answered to the part that made it: each has a correlation id, under which the part's handler waits. An
answer to an id that nobody waits for is one to a request of the past, and ignored; one of another type than the request
calls for is refused, and the right one may still come. Timers too belong to the part that set them.

They share a belief too: which controller is the active one. At first that is the first of the bootstrap list, then
whoever last answered what only the active controller answers. One that does not answer, or says that it is not active,
does not change the belief: nobody knows by that who is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.config import ClusterConfig
from protocol.contract import Outbox
from protocol.errors import ProtocolInvariantError
from protocol.ids import NodeId, TimeMs
from protocol.log.checksum import Checksum
from protocol.messages.base import Response

WATCH_MS = 1_000
"""How long a client waits for an answer, or for a leader, before it looks again who leads."""
WATCH_PREFIX = "watch/"
DEADLINE_PREFIX = "deadline/"
"""Timers of a command or of a lane, whose name follows: when it looks again, and when its time is over."""

Handler = Callable[[TimeMs, Any], None]
"""Takes the time and an answer."""


@dataclass(slots=True)
class ClientContext:
    """See the module docstring. `brokers` and `controllers` are the bootstrap list; `controller` is the one believed
    active; `checksum`, where there is one, is what batches are sealed with.
    """

    me: NodeId
    principal: str
    brokers: tuple[NodeId, ...]
    controllers: tuple[NodeId, ...]
    controller: NodeId
    config: ClusterConfig
    out: Outbox
    checksum: Checksum | None = None
    last_correlation_id: int = 0
    waiting: dict[int, tuple[type[Response], Handler]] = field(default_factory=dict)
    timers: dict[str, Callable[[TimeMs], None]] = field(default_factory=dict)

    @property
    def bootstrap(self) -> tuple[NodeId, ...]:
        return (*self.brokers, *self.controllers)

    @property
    def controllers_in_turn(self) -> tuple[NodeId, ...]:
        """All controllers, beginning with the one believed active."""
        place = self.controllers.index(self.controller)
        return (*self.controllers[place:], *self.controllers[:place])

    def expect(self, answer: type[Response], handler: Handler) -> int:
        """The correlation id of a new request; its answers go to the handler until it is forgotten."""
        self.last_correlation_id += 1
        self.waiting[self.last_correlation_id] = (answer, handler)
        return self.last_correlation_id

    def forget(self, correlation_id: int) -> None:
        """Nobody waits for the answer, if anybody did."""
        self.waiting.pop(correlation_id, None)

    def set_timer(self, name: str, at_ms: TimeMs, action: Callable[[TimeMs], None]) -> None:
        """Has `action` called at a time, instead of what the timer of that name was to call."""
        self.timers[name] = action
        self.out.set_timer(name, at_ms)

    def cancel_timer(self, name: str) -> None:
        """Forgets the timer, if it is set."""
        if self.timers.pop(name, None) is not None:
            self.out.cancel_timer(name)

    def fire(self, now_ms: TimeMs, name: str) -> None:
        """A timer is due."""
        action = self.timers.pop(name, None)
        if action is None:
            raise ProtocolInvariantError(f"client {self.me} has no timer {name!r}")
        action(now_ms)
