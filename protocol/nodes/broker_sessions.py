"""The sessions of brokers: a timer per unfenced broker, renewed by its heartbeats (KIP-631).

Sessions are in the memory of the active controller only. A controller that takes over gives every unfenced broker a
full session timeout to send its first heartbeat.
"""

from __future__ import annotations

from protocol.contract import Outbox
from protocol.ids import BrokerId, TimeMs

SESSION_PREFIX = "session/"
HEARTBEAT_TIMER = "heartbeat"
"""The broker's timer whose heartbeats renew its session (`contract.SetTimer`)."""


class BrokerSessions:
    """Open sessions by broker; each ends `timeout_ms` milliseconds after it was last renewed."""

    def __init__(self, timeout_ms: int, out: Outbox) -> None:
        self._timeout_ms = timeout_ms
        self._out = out
        self._open: set[BrokerId] = set()

    def is_open(self, broker: BrokerId) -> bool:
        return broker in self._open

    def renew(self, broker: BrokerId, now_ms: TimeMs) -> None:
        self._open.add(broker)
        self._out.set_timer(
            f"{SESSION_PREFIX}{broker}", now_ms + self._timeout_ms, idle_with=broker, renewed_by=HEARTBEAT_TIMER
        )

    def end(self, broker: BrokerId) -> None:
        if broker in self._open:
            self._open.discard(broker)
            self._out.cancel_timer(f"{SESSION_PREFIX}{broker}")

    def expire(self, timer: str) -> BrokerId:
        """The broker whose session timer has fired; its session is closed."""
        broker = int(timer.removeprefix(SESSION_PREFIX))
        self._open.discard(broker)
        return broker

    def cancel_timers(self) -> None:
        """Cancels the timers of all open sessions, in the order of the brokers."""
        for broker in sorted(self._open):
            self._out.cancel_timer(f"{SESSION_PREFIX}{broker}")

    def forget_all(self) -> None:
        """Closes all sessions and leaves their timers as they are."""
        self._open.clear()
