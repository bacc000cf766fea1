"""What the parts of a client share: identity, bootstrap nodes, requests without a response yet, timers, and the search
for leaders.

A response with an unknown correlation id belongs to a request of the past and is ignored; one of another type than
expected is refused, and the right one may still come.

The parts also share the presumed active controller: first the first one of the bootstrap list, then the last one that
has answered a request which only the active controller answers. Neither NOT_CONTROLLER nor a missing response changes
it, since they do not reveal the active one.

A broker that is cut off may still consider itself leader, and the client must not depend on it. So a *search* for the
leaders of a topic goes to all nodes at once, and the newest leader epoch wins. Its listeners are notified when all
nodes have answered, or after `GATHER_MS` with what is known by then and once more when all have answered. At most one
search per topic gathers at a time; further listeners join it. An authorization error of one node counts only if no node
returns the topic, since that node's metadata may be old. NOT_CONTROLLER of an inactive controller says nothing about
the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.config import ClusterConfig
from protocol.contract import Outbox
from protocol.errors import RETRIABLE, ErrorCode, ProtocolInvariantError
from protocol.ids import NodeId, TimeMs
from protocol.log.checksum import Checksum
from protocol.messages.admin import MetadataRequest, MetadataResponse, PartitionMetadata
from protocol.messages.base import Response

WATCH_MS = 1_000
"""How long a client waits for a response, or for a leader, before it looks up the leader again."""
WATCH_PREFIX = "watch/"
DEADLINE_PREFIX = "deadline/"
"""Timers of a command or partition sender, by its name: for its next search of a leader, and for its deadline."""

IDS_PER_MS = 8
MAX_FIRST_ID = 2**30
"""Correlation ids have 32 bits: half of them are left for the requests of a process."""

Handler = Callable[[TimeMs, Any], None]
"""Takes the time and a response."""


@dataclass(slots=True)
class Requests:
    """The requests of a client that have no response yet: by correlation id, which counts up from `last_id`."""

    last_id: int = 0
    waiting: dict[int, tuple[type[Response], Handler]] = field(default_factory=dict)


@dataclass(slots=True)
class ClientContext:
    """State of one client as one principal: the bootstrap list, the presumed active `controller`, the CRC-32C or None.
    `timers` are the principal's, by their names without `timer_prefix`.
    """

    me: NodeId
    principal: str
    brokers: tuple[NodeId, ...]
    controllers: tuple[NodeId, ...]
    controller: NodeId
    config: ClusterConfig
    out: Outbox
    checksum: Checksum | None = None
    requests: Requests = field(default_factory=Requests)
    timers: dict[str, Callable[[TimeMs], None]] = field(default_factory=dict)
    timer_prefix: str = ""

    @property
    def bootstrap(self) -> tuple[NodeId, ...]:
        """All nodes of the bootstrap list, each once: a broker may be the controller, too (A1)."""
        return tuple(dict.fromkeys((*self.brokers, *self.controllers)))

    @property
    def controllers_in_turn(self) -> tuple[NodeId, ...]:
        place = self.controllers.index(self.controller)
        return (*self.controllers[place:], *self.controllers[:place])

    def begin_ids(self, now_ms: TimeMs) -> None:
        """Begins correlation ids above those of the process before, whose late responses match none."""
        self.requests.last_id = now_ms * IDS_PER_MS % MAX_FIRST_ID

    def of(self, principal: str, timer_prefix: str) -> ClientContext:
        """The context of the same client as another principal."""
        return replace(self, principal=principal, timers={}, timer_prefix=timer_prefix)

    def expect(self, answer: type[Response], handler: Handler) -> int:
        """The correlation id of a new request; its responses of type `answer` go to the handler until `forget`."""
        requests = self.requests
        requests.last_id += 1
        requests.waiting[requests.last_id] = (answer, handler)
        return requests.last_id

    def forget(self, correlation_id: int) -> None:
        self.requests.waiting.pop(correlation_id, None)

    def set_timer(self, name: str, at_ms: TimeMs, action: Callable[[TimeMs], None]) -> None:
        self.timers[name] = action
        self.out.set_timer(f"{self.timer_prefix}{name}", at_ms)

    def cancel_timer(self, name: str) -> None:
        if self.timers.pop(name, None) is not None:
            self.out.cancel_timer(f"{self.timer_prefix}{name}")

    def fire(self, now_ms: TimeMs, name: str) -> None:
        """Calls the action of a timer. ProtocolInvariantError if it is not set."""
        action = self.timers.pop(name, None)
        if action is None:
            raise ProtocolInvariantError(f"client {self.me} has no timer {name!r}")
        action(now_ms)


GATHER_MS = 50
"""How long a search waits for nodes that do not answer."""
GATHER_PREFIX = "gather/"


@dataclass(frozen=True, slots=True)
class TopicLeaders:
    """The partitions of a topic by index, each with the topic's id; `error` if all nodes refuse the client."""

    partitions: Mapping[int, tuple[str, PartitionMetadata]]
    error: ErrorCode
    is_answered: bool


Listener = Callable[[TimeMs, TopicLeaders], None]


@dataclass(slots=True)
class _Search:
    """`awaited` nodes have not answered yet; `gathering` until the listeners are notified for the first time."""

    correlation_id: int
    awaited: int
    is_answered: bool = False
    gathering: bool = True
    partitions: dict[int, tuple[str, PartitionMetadata]] = field(default_factory=dict)
    error: ErrorCode = ErrorCode.NONE
    listeners: dict[str, Listener] = field(default_factory=dict)


class LeaderFinder:
    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._searches: dict[str, _Search] = {}

    def search(self, now_ms: TimeMs, topic: str, name: str, listener: Listener) -> None:
        """Looks up a topic's leaders. Calls the listener `name` with the result, and again if nodes answer late."""
        running = self._searches.get(topic)
        if running is not None and running.gathering:
            running.listeners[name] = listener
            return
        context = self._context
        if running is not None:
            context.forget(running.correlation_id)
        number = context.expect(MetadataResponse, lambda at_ms, answer: self._receive(at_ms, topic, answer))
        self._searches[topic] = _Search(number, len(context.bootstrap), listeners={name: listener})
        request = MetadataRequest.unchecked(correlation_id=number, principal=context.principal, topic=topic)
        for node in context.bootstrap:
            context.out.send(node, request)
        context.set_timer(f"{GATHER_PREFIX}{topic}", now_ms + GATHER_MS, lambda at_ms: self._notify(at_ms, topic))

    def cancel(self, topic: str, name: str) -> None:
        """Removes the listener `name`; ends a search without listeners."""
        search = self._searches.get(topic)
        if search is None:
            return
        search.listeners.pop(name, None)
        if not search.listeners:
            del self._searches[topic]
            self._context.forget(search.correlation_id)
            self._context.cancel_timer(f"{GATHER_PREFIX}{topic}")

    def _receive(self, now_ms: TimeMs, topic: str, response: MetadataResponse) -> None:
        """Takes one node's metadata: per partition, the newest leader epoch of all nodes counts."""
        search = self._searches[topic]
        search.is_answered |= response.error is not ErrorCode.NOT_CONTROLLER
        if response.error is not ErrorCode.NONE and response.error not in RETRIABLE:
            search.error = response.error
        for found in (topics for topics in response.topics if topics.name == topic):
            for partition in found.partitions:
                known = search.partitions.get(partition.partition)
                if known is None or partition.leader_epoch > known[1].leader_epoch:
                    search.partitions[partition.partition] = (found.topic_id, partition)
        search.awaited -= 1
        if search.awaited == 0:
            self._context.cancel_timer(f"{GATHER_PREFIX}{topic}")
            self._notify(now_ms, topic)

    def _notify(self, now_ms: TimeMs, topic: str) -> None:
        search = self._searches[topic]
        search.gathering = False
        error = ErrorCode.NONE if search.partitions else search.error
        leaders = TopicLeaders(search.partitions, error, search.is_answered)
        for name, listener in list(search.listeners.items()):
            if name in search.listeners:
                listener(now_ms, leaders)
