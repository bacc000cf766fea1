"""Effects that a controller may not emit before a majority of the quorum has the records that they follow from.

Answers and trace events are deferred in the order in which they came up, each until the log is committed up to the
offset that the state had reached when they came up. Timers and the end of the node concern the node alone, and are
emitted at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.contract import CancelTimer, Effect, Exit, SetTimer
from protocol.ids import NodeId, Offset
from protocol.messages.base import Message

_IMMEDIATE = (SetTimer, CancelTimer, Exit)


@dataclass(frozen=True, slots=True)
class _Deferred:
    """The effects of one input, released when `offset` is committed; `request` is None where it was no message."""

    offset: Offset
    effects: list[Effect]
    sender: NodeId
    request: Message | None


class DeferredEffects:
    """A queue of effects, in the order of the inputs that caused them."""

    def __init__(self) -> None:
        self._queue: deque[_Deferred] = deque()

    def release(
        self, effects: list[Effect], offset: Offset, high_watermark: Offset, sender: NodeId, request: Message | None
    ) -> list[Effect]:
        """Takes the `effects` of an input, replayed up to `offset`; returns those committed by `high_watermark`."""
        if not self._queue and offset <= high_watermark:
            return effects
        released: list[Effect] = [effect for effect in effects if isinstance(effect, _IMMEDIATE)]
        rest: list[Effect] = [effect for effect in effects if not isinstance(effect, _IMMEDIATE)]
        if rest:
            self._queue.append(_Deferred(offset, rest, sender, request))
        while self._queue and self._queue[0].offset <= high_watermark:
            released += self._queue.popleft().effects
        return released

    def discard(self, high_watermark: Offset) -> Iterator[tuple[NodeId, Message]]:
        """Removes what is not committed by `high_watermark`; yields the requests that are left without an answer, with
        their senders.
        """
        discarded = [item for item in self._queue if item.offset > high_watermark]
        self._queue = deque(item for item in self._queue if item.offset <= high_watermark)
        for item in discarded:
            if item.request is not None:
                yield item.sender, item.request
