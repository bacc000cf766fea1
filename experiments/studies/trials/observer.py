"""What a simulated trial sees: the ground truth of losses, and the rows of the trace.

A write follows every change of a partition's ISR or leader, so that there is always an acknowledged record that depends
on the present ISR and would show a loss (`writer.py`). Losses are measured against ground truth, not by the protocol's
own state: the log of each new leader is compared with the records that were acknowledged to the client.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.engines.sim.cluster import SimCluster
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.states import PartitionStates
from experiments.studies.trials.writer import Writer
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.controller import PartitionChanged
from protocol.ids import NodeId, TimeMs, TopicPartition
from protocol.nodes.broker import BrokerNode

_OBSERVED = frozenset((PartitionChanged, BecameLeader, HighWatermarkAdvanced))


class Observer:
    """The workload and the observations of one trial on `cluster`.

    `add` takes the rows of the trace, whose time and weight it fills in. `settled` is called after each write that no
    other write follows.
    """

    def __init__(
        self,
        params: CellParameters,
        cluster: SimCluster,
        add: Callable[[TraceRow], None],
        settled: Callable[[], None],
    ) -> None:
        self.states = PartitionStates(params.partitions, params.acks, add)
        self.writer = Writer(cluster, self.states, params.acks, settled)
        self._cluster = cluster
        self._writing = False
        cluster.trace_observers.append(self._observe)

    def begin_writing(self) -> None:
        """Writes to every partition, and from now on after every change."""
        self._writing = True
        self.write_all()

    def write_all(self) -> None:
        """Writes to every partition."""
        for name in self.states.partitions:
            self.writer.request(name)

    # -- observation ---------------------------------------------------------------------------------------------------

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if type(trace) not in _OBSERVED:
            return
        if isinstance(trace, PartitionChanged):
            self.states.handle_change(trace)
            if self._writing:
                self.writer.request(trace.partition)
        elif isinstance(trace, BecameLeader):
            self._handle_new_leader(node, trace)
        elif isinstance(trace, HighWatermarkAdvanced):
            self.states.handle_high_watermark(trace)

    def _handle_new_leader(self, node: NodeId, trace: BecameLeader) -> None:
        """A replica has become leader: records the acknowledged records that its log lacks as a loss."""
        self.states.handle_regression(node, trace)
        if self.states.is_outdated(trace):
            return
        lost = self.remove_lost(trace.partition, node, trace.log_end)
        if lost:
            self.states.handle_loss(node, trace.partition, lost)
        self.states.handle_leader(node, trace)
        if self._writing and self.states.partitions[trace.partition].serves:
            self.writer.handle_leader(trace.partition)

    def remove_lost(self, name: TopicPartition, leader: NodeId, log_end: int) -> int:
        """Removes the acknowledged records that the leader's log lacks from `acked`; returns their number.

        Logs that agree at an offset agree before it (log matching), so the search ends at the first match from the
        end, or at the log's start offset: records that retention has deleted are not lost.
        """
        node, acked = self._cluster.nodes[leader], self.writer.writes[name].acked
        assert isinstance(node, BrokerNode)
        replica = node.context.replica_named(name.topic, name.partition)
        assert replica is not None
        lost = 0
        while acked:
            offset, payload = acked[-1]
            if offset < replica.log.start_offset:
                break
            if offset < log_end and replica.log.storage.read(offset, 1)[0].payload == payload:
                break
            acked.pop()
            lost += 1
        return lost
