"""What an invariant is: it looks at one partition after an event that touched it, and says what is wrong in words, or
nothing. Those that promise durability (`NEEDS_TOLERANCE`) are asked only while the partition is within tolerance
(`truth.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from experiments.check.truth import GroundTruth
from protocol.contract import Trace
from protocol.ids import NodeId, TopicPartition


class Invariant:
    """Base of invariants; `check` is called after each event with the node that acted, `note` with each trace event."""

    NEEDS_TOLERANCE: ClassVar[bool] = False

    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth

    def note(self, node: NodeId, partition: TopicPartition, trace: Trace) -> str:
        """Judges a trace event as it is emitted."""
        return ""

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Partitions were deleted; others of the same name will be others."""

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        """Judges the state of a partition after an event of `node` that touched it."""
        return ""
