"""Puts frames into the order in which they were numbered.

Frames of one channel travel in calls and in the answers to calls, several at a time, and may overtake each other. What
comes before its turn is held until what is missing has come, or for `GAP_S`: then it counts as lost, and the order goes
on behind it. What arrives behind its turn is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GAP_S = 3.0


class Resequencer:
    """The order of one channel between a life of a peer and one of this node. `first` is the number that begins the
    count, None if it is to be the first that arrives. All calls on one event loop.
    """

    def __init__(self, first: int | None) -> None:
        self._next = first
        self._held: dict[int, Callable[[], None]] = {}
        self._patience: asyncio.TimerHandle | None = None

    def take(self, number: int, action: Callable[[], None]) -> bool:
        """Carries out `action` when it is the turn of `number`, which may be at once; whether it ever will be."""
        if self._next is None:
            self._next = number
        if number < self._next or number in self._held:
            return False
        self._held[number] = action
        self._go_on()
        return True

    def _go_on(self) -> None:
        assert self._next is not None
        while self._next in self._held:
            action = self._held.pop(self._next)
            self._next += 1
            action()
        if self._held and self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(GAP_S, self._skip)
        elif not self._held and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _skip(self) -> None:
        self._patience = None
        self._next = min(self._held)
        self._go_on()
