"""The clock of a host: cluster time in milliseconds, and calls scheduled at a time.

All nodes of a cluster count from the same wall-clock moment. Within one incarnation a node's time follows the monotonic
clock, so it never runs backwards.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from protocol.ids import TimeMs


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The time source and scheduler of a host. Scheduled calls run one after another, never inside another."""

    def now_ms(self) -> TimeMs:
        """Cluster time."""

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> Cancellable:
        """Schedules `action` for `at_ms`; it runs when `now_ms()` has reached that time, not earlier."""

    def call_soon(self, action: Callable[[], None]) -> None:
        """Schedules `action` for the next turn of the loop."""


class ClusterTime:
    """Milliseconds since `started_at_s` (Unix time)."""

    def __init__(self, started_at_s: float) -> None:
        self._origin_s = time.monotonic() - (time.time() - started_at_s)

    def now_ms(self) -> TimeMs:
        return int((time.monotonic() - self._origin_s) * 1000)


class LoopClock(ClusterTime):
    """A `Clock` on the running asyncio event loop."""

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> Cancellable:
        delay_s = max(0.0, at_ms / 1000 - (time.monotonic() - self._origin_s))
        return asyncio.get_running_loop().call_later(math.ceil(delay_s * 1000) / 1000, action)

    def call_soon(self, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(action)
