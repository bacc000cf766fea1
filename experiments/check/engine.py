"""The sim engine with the invariants checked after every event: what scenarios and the fuzz run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.check.suite import InvariantSuite
from experiments.engines.port import ClusterSpec, Loss, Recovery, Violation
from experiments.engines.sim.engine import SimEngine
from experiments.engines.sim.network import NetworkModel
from protocol.ids import NodeId, TopicPartition


class CheckedEngine(SimEngine):
    """A simulated cluster whose `suite` checks every invariant; see `SimCluster` for the options."""

    def __init__(
        self,
        spec: ClusterSpec,
        model: NetworkModel | None = None,
        *,
        elide_idle: bool = True,
        paranoid: bool = False,
    ) -> None:
        super().__init__(spec, model, elide_idle=elide_idle, paranoid=paranoid)
        self.suite = InvariantSuite(self.cluster)

    def _crash(self, node: NodeId, loss: Loss) -> dict[TopicPartition, int]:
        return self.suite.crash(node, loss)

    def recoveries(self) -> Sequence[Recovery]:
        """With what each of them cost."""
        costs = [recovery.lost for recovery in self.suite.truth.recoveries]
        return [replace(decided, lost=lost) for decided, lost in zip(super().recoveries(), costs, strict=True)]

    def violations(self) -> Sequence[Violation]:
        """Violations so far, after all partitions were checked once more, touched or not."""
        self.suite.check_everything()
        return self.suite.violations
