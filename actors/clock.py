"""Time as a host needs it: the cluster's milliseconds, and calls that are due at one of them.

All nodes of a cluster count from the same wall-clock moment; from a node's birth on its time follows the monotonic
clock, so that it never runs backwards within a life.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from protocol.ids import TimeMs


class Cancellable(Protocol):
    """A call to come that can be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What a host asks of time. Calls are made one after another, never from within another."""

    def now_ms(self) -> TimeMs: ...

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> Cancellable:
        """Not before `now_ms()` has reached `at_ms`."""

    def call_soon(self, action: Callable[[], None]) -> None: ...


class ClusterTime:
    """Milliseconds since `started_at_s` (Unix time)."""

    def __init__(self, started_at_s: float) -> None:
        self._origin_s = time.monotonic() - (time.time() - started_at_s)

    def now_ms(self) -> TimeMs:
        return int((time.monotonic() - self._origin_s) * 1000)


class LoopClock(ClusterTime):
    """Time on the event loop that runs (`Clock`)."""

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> Cancellable:
        delay_s = max(0.0, at_ms / 1000 - (time.monotonic() - self._origin_s))
        return asyncio.get_running_loop().call_later(math.ceil(delay_s * 1000) / 1000, action)

    def call_soon(self, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(action)
