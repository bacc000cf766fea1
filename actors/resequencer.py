"""Restores the order of frames that calls of Ray deliver out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GAP_S = 3.0
"""How long a frame that has arrived early waits for the ones before it."""


class Resequencer:
    """Restores the order of the frames of one channel from one incarnation of a peer to one of this node. A frame that
    arrives early is held until the missing ones have arrived, or count as lost after `GAP_S`; a late one is dropped.
    `first` is the number of the first frame, None where the first one to arrive begins the count.
    """

    def __init__(self, first: int | None) -> None:
        self._next = first
        self._held: dict[int, Callable[[], None]] = {}
        self._gap_timer: asyncio.TimerHandle | None = None

    def take(self, number: int, action: Callable[[], None]) -> bool:
        """Runs `action` when it is the turn of frame `number`, possibly at once; False where the frame is dropped."""
        if self._next is None:
            self._next = number
        if number < self._next or number in self._held:
            return False
        self._held[number] = action
        self._run_consecutive()
        return True

    def _run_consecutive(self) -> None:
        assert self._next is not None
        while self._next in self._held:
            action = self._held.pop(self._next)
            self._next += 1
            action()
        if self._held and self._gap_timer is None:
            self._gap_timer = asyncio.get_running_loop().call_later(GAP_S, self._skip_gap)
        elif not self._held and self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None

    def _skip_gap(self) -> None:
        self._gap_timer = None
        self._next = min(self._held)
        self._run_consecutive()
