"""What a controller has to say, and must not say before a majority has the records that it follows from.

It is withheld in the order in which it came up, each part until the log is committed below the offset where the
state stood then. Timers are the node's own business, and are set at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.contract import CancelTimer, Effect, Exit, SetTimer
from protocol.ids import NodeId, Offset
from protocol.messages.base import Message

_AT_ONCE = (SetTimer, CancelTimer, Exit)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one input came to; `sender` has asked for it by `request`."""

    offset: Offset
    effects: list[Effect]
    sender: NodeId
    request: Message | None


class Withheld:
    """See the module docstring."""

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()

    def pass_on(
        self, said: list[Effect], offset: Offset, high_watermark: Offset, sender: NodeId, request: Message | None
    ) -> list[Effect]:
        """What may leave now that an input has come to `said`, by a state that stands at `offset`."""
        if not self._parts and offset <= high_watermark:
            return said
        leaving: list[Effect] = [effect for effect in said if isinstance(effect, _AT_ONCE)]
        rest: list[Effect] = [effect for effect in said if not isinstance(effect, _AT_ONCE)]
        if rest:
            self._parts.append(_Part(offset, rest, sender, request))
        while self._parts and self._parts[0].offset <= high_watermark:
            leaving += self._parts.popleft().effects
        return leaving

    def drop(self) -> Iterator[tuple[NodeId, Message]]:
        """Forgets everything; the requests that are left without an answer, with their senders."""
        dropped: Sequence[_Part] = tuple(self._parts)
        self._parts.clear()
        for part in dropped:
            if part.request is not None:
                yield part.sender, part.request
