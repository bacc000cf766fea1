"""How long a replica is absent from the ISR after a failure: down, then `restart_time`, then fetching what it lacks.

It lacks what was written since the failure, what was missing already when the broker failed, and the backlog besides if
the disk was lost. The trial holds fetches back for that long (`trials/degraded.py`), and importance sampling forces
failures for that long (`biased.py`)."""

from __future__ import annotations

from experiments.studies.design.mappings import CatchUp
from protocol.ids import NodeId, TimeMs


class Absences:
    """The brokers that are absent: since when, and until when they have to catch up. `catch_up` as in study files."""

    def __init__(self, catch_up: CatchUp | None) -> None:
        self._catch_up = catch_up
        self._failed_ms: dict[NodeId, TimeMs] = {}
        self._until_ms: dict[NodeId, TimeMs] = {}
        self._disks_lost: set[NodeId] = set()

    def fail(self, broker: NodeId, now_ms: TimeMs, lost_disk: bool) -> None:
        """The broker has failed, or its disk was lost while it was down."""
        self._failed_ms.setdefault(broker, now_ms)
        if lost_disk:
            self._disks_lost.add(broker)

    def caught_up_ms(self, broker: NodeId, boot_ms: TimeMs) -> TimeMs:
        """When the broker will have caught up if its process takes part from `boot_ms` on."""
        if self._catch_up is None:
            return boot_ms
        failed_ms = self._failed_ms.get(broker, boot_ms)
        behind_ms = max(0, self._until_ms.get(broker, failed_ms) - failed_ms)
        return boot_ms + self._catch_up.needed_ms(boot_ms - failed_ms, broker in self._disks_lost, behind_ms)

    def start(self, broker: NodeId, boot_ms: TimeMs) -> TimeMs:
        """The broker's process takes part from now on; returns until when it is behind."""
        until_ms = self._until_ms[broker] = self.caught_up_ms(broker, boot_ms)
        self._failed_ms.pop(broker, None)
        self._disks_lost.discard(broker)
        return until_ms

    def end(self, broker: NodeId, now_ms: TimeMs) -> None:
        """The broker has nothing left to fetch."""
        self._until_ms[broker] = now_ms
