"""What the parts of a client share: identity, bootstrap nodes, requests without a response yet, timers.

Each request has a correlation id, under which the handler of its response is registered. A response with an unknown id
belongs to a request of the past and is ignored; one of another type than expected is refused, and the right one may
still come. Each timer calls the action that the part which set it has given.

The parts also share the presumed active controller: first the first one of the bootstrap list, then the last one that
has answered a request which only the active controller answers. Neither NOT_CONTROLLER nor a missing response changes
it, since they do not reveal the active one.
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
"""How long a client waits for a response, or for a leader, before it looks up the leader again."""
WATCH_PREFIX = "watch/"
DEADLINE_PREFIX = "deadline/"
"""Timers of a command or partition sender, whose name follows: for the next search of a leader, and for its deadline.
"""

IDS_PER_MS = 8
MAX_FIRST_ID = 2**30
"""Correlation ids have 32 bits: half of them are left for the requests of a process."""

Handler = Callable[[TimeMs, Any], None]
"""Takes the time and a response."""


@dataclass(slots=True)
class ClientContext:
    """State shared by the parts of one client: the bootstrap list, and the presumed active `controller`. `checksum`
    computes the CRC-32C of produced batches; None leaves that out.
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
        """All nodes of the bootstrap list, each once: a broker may be the controller, too (A1)."""
        return tuple(dict.fromkeys((*self.brokers, *self.controllers)))

    @property
    def controllers_in_turn(self) -> tuple[NodeId, ...]:
        """All controllers, beginning with the presumed active one."""
        place = self.controllers.index(self.controller)
        return (*self.controllers[place:], *self.controllers[:place])

    def begin_ids(self, now_ms: TimeMs) -> None:
        """Begins correlation ids above those of the process before, of at most `IDS_PER_MS` requests per ms: its late
        responses match none.
        """
        self.last_correlation_id = now_ms * IDS_PER_MS % MAX_FIRST_ID

    def expect(self, answer: type[Response], handler: Handler) -> int:
        """The correlation id of a new request; its responses of type `answer` go to the handler until `forget`."""
        self.last_correlation_id += 1
        self.waiting[self.last_correlation_id] = (answer, handler)
        return self.last_correlation_id

    def forget(self, correlation_id: int) -> None:
        self.waiting.pop(correlation_id, None)

    def set_timer(self, name: str, at_ms: TimeMs, action: Callable[[TimeMs], None]) -> None:
        """Sets a timer that calls `action`; replaces one of the same name."""
        self.timers[name] = action
        self.out.set_timer(name, at_ms)

    def cancel_timer(self, name: str) -> None:
        if self.timers.pop(name, None) is not None:
            self.out.cancel_timer(name)

    def fire(self, now_ms: TimeMs, name: str) -> None:
        """Calls the action of a timer. ProtocolInvariantError if it is not set."""
        action = self.timers.pop(name, None)
        if action is None:
            raise ProtocolInvariantError(f"client {self.me} has no timer {name!r}")
        action(now_ms)
