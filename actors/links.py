"""Which links of a cluster are not whole: cut ones, and slow ones."""

from __future__ import annotations

from collections.abc import Iterable

from actors.transport import NodeLinks
from protocol.ids import NodeId

Link = tuple[NodeId, NodeId]
"""From the first node to the second."""


class DisturbedLinks:
    """The links that are not whole."""

    def __init__(self) -> None:
        self._cut: set[Link] = set()
        self._slow: dict[Link, int] = {}

    def set(self, links: Iterable[Link], up: bool) -> None:
        """Cuts links, or makes them whole."""
        changed = frozenset(links)
        self._cut = self._cut - changed if up else self._cut | changed
        self._slow = {link: delay_ms for link, delay_ms in self._slow.items() if link not in changed}

    def slow(self, links: Iterable[Link], delay_ms: int) -> None:
        """Delays what is sent over whole links."""
        self._slow |= dict.fromkeys(links, delay_ms)

    def all(self) -> dict[Link, int | None]:
        """The links in order: the delay in milliseconds, None where the link is cut."""
        return dict(sorted((dict.fromkeys(self._cut) | self._slow).items()))

    def of(self, node: NodeId) -> NodeLinks:
        """Those of a node, as its transport takes them."""
        return NodeLinks(
            cut_to=frozenset(target for source, target in self._cut if source == node),
            cut_from=frozenset(source for source, target in self._cut if target == node),
            slow_to=tuple((target, delay) for (source, target), delay in sorted(self._slow.items()) if source == node),
        )
