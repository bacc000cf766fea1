"""The clock of a simulated node: an affine function of true time, in whole milliseconds.

Within an incarnation a node's time never goes back (`protocol.contract`): a clock may jump forward, and its rate may
change, from what it shows at that moment on.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import TimeMs


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock that was `skew_ms` ahead at the true time `since_ms`, and gains `drift` (over -1,000) ms per second."""

    skew_ms: int = 0
    since_ms: TimeMs = 0
    drift: int = 0

    def shows(self, true_ms: TimeMs) -> TimeMs:
        return true_ms + self.skew_ms + (true_ms - self.since_ms) * self.drift // 1_000

    def reaches(self, shown_ms: TimeMs) -> TimeMs:
        """The first true time at which the clock shows at least this."""
        if not self.drift:
            return shown_ms - self.skew_ms
        return self.since_ms - (self.since_ms + self.skew_ms - shown_ms) * 1_000 // (1_000 + self.drift)

    def adjusted(self, now_ms: TimeMs, jump_ms: int, drift: int) -> Clock:
        """The clock from now on: `jump_ms` further ahead than it is, and with that drift."""
        return Clock(self.shows(now_ms) - now_ms + jump_ms, now_ms, drift)
