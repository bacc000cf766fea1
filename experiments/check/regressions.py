"""High watermark regressions: how often what consumers could read is taken back.

A leader whose log ends below what an earlier leader has shown to consumers takes visible records away. So does a leader
of generation `v3` whose high watermark moves back (N6); with another leader a lower high watermark is no regression, as
a new leader learns of the present one only then. The counter is fed with the trace events of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import Epoch, Offset, TopicPartition

_REMOVED = 2**63
"""Higher than every leader epoch."""


@dataclass(slots=True)
class RegressionCounter:
    """Counts regressions per partition. `seen` is for the caller: how many events it has passed on.

    A leader that was deposed while it was paused or cut off may still report its own epoch, so what comes from an epoch
    older than the newest seen is ignored. After a partition was removed everything is ignored until the controller
    records a partition of that name again.
    """

    seen: int = 0
    epochs: dict[TopicPartition, Epoch] = field(default_factory=dict)
    shown: dict[TopicPartition, Offset] = field(default_factory=dict)
    reported: dict[TopicPartition, tuple[Epoch, Offset]] = field(default_factory=dict)
    counts: dict[TopicPartition, int] = field(default_factory=dict)

    def _is_stale(self, partition: TopicPartition, leader_epoch: Epoch) -> bool:
        newest = max(self.epochs.get(partition, 0), leader_epoch)
        self.epochs[partition] = newest
        return leader_epoch < newest

    def observe_high_watermark(self, partition: TopicPartition, leader_epoch: Epoch, high_watermark: Offset) -> bool:
        """A leader reports its high watermark. Returns whether that is a regression."""
        if self._is_stale(partition, leader_epoch):
            return False
        epoch, before = self.reported.get(partition, (leader_epoch, 0))
        self.reported[partition] = leader_epoch, high_watermark
        if epoch == leader_epoch and high_watermark < before:
            self._count(partition, high_watermark)
            return True
        self.shown[partition] = max(self.shown.get(partition, 0), high_watermark)
        return False

    def _count(self, partition: TopicPartition, shown: Offset) -> None:
        self.shown[partition] = shown
        self.counts[partition] = self.counts.get(partition, 0) + 1

    def observe_leader(self, partition: TopicPartition, leader_epoch: Epoch, log_end: Offset) -> bool:
        """A new leader's log ends at `log_end`. Returns whether that is a regression."""
        if self._is_stale(partition, leader_epoch) or log_end >= self.shown.get(partition, 0):
            return False
        self._count(partition, log_end)
        return True

    def observe_removal(self, partition: TopicPartition) -> None:
        """The partition was removed, and what it had shown with it."""
        self.epochs[partition] = _REMOVED
        self.shown.pop(partition, None)
        self.reported.pop(partition, None)
        self.counts.pop(partition, None)

    def observe_topic_deletion(self, topic: str) -> None:
        for partition in [partition for partition in self.epochs if partition.topic == topic]:
            self.observe_removal(partition)

    def observe_partition(self, partition: TopicPartition, leader_epoch: Epoch) -> None:
        """The controller has recorded a state of the partition."""
        if self.epochs.get(partition) == _REMOVED:
            self.epochs[partition] = leader_epoch
