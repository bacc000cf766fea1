"""The base of invariants. An invariant checks one partition after an event that touched it and returns the violation in
words, empty if there is none. Invariants of durability (`NEEDS_TOLERANCE`) are checked only while the partition is
within tolerance (`truth.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from experiments.check.truth import GroundTruth, PartitionView
from protocol.events.base import PartitionTrace
from protocol.ids import NodeId, TopicPartition


class Invariant:
    """`check` follows each event with the partitions that it touched, `observe` each trace event about a partition."""

    NEEDS_TOLERANCE: ClassVar[bool] = False
    AFTER_BROKERS: ClassVar[bool] = True
    """Whether an event of a broker can violate it, so that `check` is called after those events."""
    AFTER_CONTROLLERS: ClassVar[bool] = True
    KEPT: ClassVar[tuple[str, ...]] = ()
    """The attributes that it keeps by partition: their keys are partitions, or tuples with one."""
    NEEDS_NODES: ClassVar[bool] = False
    """Whether it reads more of the controller's node than its image, which is all that a recording has."""

    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        return ""

    def controller_started(self, node: NodeId) -> None:
        """A controller has become the active one."""

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Partitions were deleted; later partitions of the same name are different ones."""
        for name in self.KEPT:
            kept = {
                key: value
                for key, value in getattr(self, name).items()
                if not any(isinstance(part, TopicPartition) and is_gone(part) for part in (key, *key))
            }
            setattr(self, name, kept)

    def check(self, view: PartitionView) -> str:
        return ""
