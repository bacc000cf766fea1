"""The clock of a host: Unix time in milliseconds, and calls scheduled at a time, one after another.

Timers, timestamps of records and retention all follow this one time, as Kafka's do, so that times on a disk stay right
when a cluster starts again. Within one incarnation it follows the monotonic clock, so it never runs backwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from protocol.ids import TimeMs

_NS_PER_MS = 1_000_000


class UnixTime:
    """Unix time in milliseconds, monotonic from the creation of this object on. `skew_ms`: how far it is ahead."""

    def __init__(self, skew_ms: int = 0) -> None:
        self._origin_ns = time.time_ns() - time.monotonic_ns() + skew_ms * _NS_PER_MS

    def now_ms(self) -> TimeMs:
        return self._now_ns() // _NS_PER_MS

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._origin_ns


class LoopClock(UnixTime):
    """The clock of the running asyncio event loop."""

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Schedules `action`; it runs when `now_ms()` has reached `at_ms`, not earlier."""
        left_ms = -((self._now_ns() - at_ms * _NS_PER_MS) // _NS_PER_MS)
        return asyncio.get_running_loop().call_later(max(0, left_ms) / 1000, action)

    def call_soon(self, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(action)
