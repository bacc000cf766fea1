"""Finding leaders: the client asks every node of its bootstrap list, and the newest leader epoch wins.

A broker that is cut off may still think that it leads, and must not capture the client. So a *search* for a topic goes
to all nodes at once and ends when all have answered, or after `GATHER_MS` with what is known by then; those who come
later are heard once all have answered. One search per topic is under way at a time; whoever wants to know while it is
joins it.

A node that says that the client may not ask is outvoted by one that answers: its metadata may be old. A controller that
is not active and says so has said nothing about the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.client.context import ClientContext
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import TimeMs
from protocol.messages.admin import MetadataRequest, MetadataResponse, PartitionMetadata
from protocol.messages.trusted import trusted

_REQUEST: Final = trusted(MetadataRequest)
GATHER_MS = 50
"""How long a client waits for the metadata of nodes that do not answer."""
GATHER_PREFIX = "gather/"


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search has found: by index, each partition and the id of the topic to which it belongs; `denied` says that
    no node tells the client; `is_heard` that any has said what it knows.
    """

    partitions: Mapping[int, tuple[str, PartitionMetadata]]
    denied: ErrorCode
    is_heard: bool


Listener = Callable[[TimeMs, Findings], None]


@dataclass(slots=True)
class _Search:
    """`awaited` is the number of nodes that have not answered; `is_heard` as in the findings; `gathering` until the
    first findings are told.
    """

    correlation_id: int
    awaited: int
    is_heard: bool = False
    gathering: bool = True
    partitions: dict[int, tuple[str, PartitionMetadata]] = field(default_factory=dict)
    denied: ErrorCode = ErrorCode.NONE
    listeners: dict[str, Listener] = field(default_factory=dict)


class LeaderFinder:
    """See the module docstring."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._searches: dict[str, _Search] = {}

    def search(self, now_ms: TimeMs, topic: str, who: str, listener: Listener) -> None:
        """Finds the leaders of a topic's partitions; the listener, known as `who`, is told the findings, and again if
        more nodes answer late.
        """
        running = self._searches.get(topic)
        if running is not None and running.gathering:
            running.listeners[who] = listener
            return
        context = self._context
        if running is not None:
            context.forget(running.correlation_id)
        number = context.expect(MetadataResponse, lambda at_ms, answer: self._answered(at_ms, topic, answer))
        self._searches[topic] = _Search(number, len(context.bootstrap), listeners={who: listener})
        request = _REQUEST(correlation_id=number, principal=context.principal, topic=topic)
        for node in context.bootstrap:
            context.out.send(node, request)
        context.set_timer(f"{GATHER_PREFIX}{topic}", now_ms + GATHER_MS, lambda at_ms: self._tell(at_ms, topic))

    def leave(self, topic: str, who: str) -> None:
        """`who` is not interested any more; a search that interests nobody is over."""
        search = self._searches.get(topic)
        if search is None:
            return
        search.listeners.pop(who, None)
        if not search.listeners:
            del self._searches[topic]
            self._context.forget(search.correlation_id)
            self._context.cancel_timer(f"{GATHER_PREFIX}{topic}")

    def _answered(self, now_ms: TimeMs, topic: str, response: MetadataResponse) -> None:
        """One node's metadata: kept where it knows of a newer leader epoch than the others."""
        search = self._searches[topic]
        search.is_heard |= response.error is not ErrorCode.NOT_CONTROLLER
        if response.error is not ErrorCode.NONE and response.error not in RETRIABLE:
            search.denied = response.error
        for found in (told for told in response.topics if told.name == topic):
            for partition in found.partitions:
                known = search.partitions.get(partition.partition)
                if known is None or partition.leader_epoch > known[1].leader_epoch:
                    search.partitions[partition.partition] = (found.topic_id, partition)
        search.awaited -= 1
        if search.awaited == 0:
            self._context.cancel_timer(f"{GATHER_PREFIX}{topic}")
            self._tell(now_ms, topic)

    def _tell(self, now_ms: TimeMs, topic: str) -> None:
        search = self._searches[topic]
        search.gathering = False
        denied = ErrorCode.NONE if search.partitions else search.denied
        findings = Findings(search.partitions, denied, search.is_heard)
        for who, listener in list(search.listeners.items()):
            if who in search.listeners:
                listener(now_ms, findings)
