"""Finding leaders: the client asks every node of its bootstrap list, and the newest leader epoch wins.

A broker that is cut off may still consider itself leader, and the client must not depend on it. So a *search* for a
topic goes to all nodes at once. Its listeners are notified when all nodes have answered, or after `GATHER_MS` with what
is known by then and once more when all have answered. At most one search per topic gathers at a time; further listeners
join it.

An authorization error of one node counts only if no node returns the topic, since that node's metadata may be old.
NOT_CONTROLLER of an inactive controller says nothing about the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.client.context import ClientContext
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import TimeMs
from protocol.messages.admin import MetadataRequest, MetadataResponse, PartitionMetadata

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
