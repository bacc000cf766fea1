"""What an invariant is: it looks at one partition after an event that touched it, and says what is wrong in words, or
nothing. Those that promise durability (`NEEDS_TOLERANCE`) are asked only while the partition is within tolerance
(`truth.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from experiments.check.truth import GroundTruth, Scene
from protocol.events.base import PartitionTrace
from protocol.ids import NodeId, TopicPartition


class Invariant:
    """Base of invariants. `check` is called after each event with the partitions that it touched, `observe` with
    each trace event about a partition.
    """

    NEEDS_TOLERANCE: ClassVar[bool] = False
    AFTER_BROKERS: ClassVar[bool] = True
    """Whether an event of a broker can break it, so that `check` is to be called after those."""
    AFTER_CONTROLLERS: ClassVar[bool] = True

    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        """Judges a trace event as it is emitted."""
        return ""

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Partitions were deleted; others of the same name will be others."""

    def check(self, scene: Scene) -> str:
        """Judges the state of a partition after an event that touched it."""
        return ""
