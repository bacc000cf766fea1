"""What a simulated trial sees: the ground truth of losses, and the rows of the trace.

A write follows every change of a partition's ISR or leader, and precedes every failure (`trial.py`), so that there is
always an acknowledged record that depends on the present ISR and would show a loss. Losses are measured against ground
truth: the log of each new leader is compared with the records that were acknowledged to the client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from experiments.check.store_changes import partition_changed
from experiments.engines.sim.cluster import SimCluster
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import simulated_partitions
from experiments.studies.trace.kinds import ACKED, Checkpoint, Elected, Observation, Produced, Recovery
from experiments.studies.trials.reader import Reader
from experiments.studies.trials.states import PartitionStates
from experiments.studies.trials.writer import Writer
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.controller import PartitionChanged, RecoveryDecided
from protocol.events.store import StoreChanged
from protocol.ids import NodeId, TimeMs, TopicPartition
from protocol.log.replica_log import ReplicaLog
from protocol.nodes.base_broker import BaseBroker

_OBSERVED = frozenset((PartitionChanged, StoreChanged, BecameLeader, HighWatermarkAdvanced, RecoveryDecided))
Lineage = list[tuple[int, int]]
"""The leader epochs of a log with their start offsets, oldest first."""


class Observer:
    """The workload and the observations of one trial on `cluster`. `add` takes the rows of the trace, whose time and
    weight it fills in. `settled` is called after each write that no other write follows."""

    def __init__(
        self,
        params: CellParameters,
        cluster: SimCluster,
        add: Callable[[Observation], None],
        settled: Callable[[], None],
    ) -> None:
        self.states = PartitionStates(simulated_partitions(params), params.delivery_timeout_ms, add, cluster.call_at)
        self.reader = Reader(cluster, self.states, add) if params.consumer == "polling" else None
        self.writer = Writer(cluster, self.states, add, settled, self.reader)
        self._add = add
        self._cluster = cluster
        self._logs_match = not cluster.spec.config.generation.features.truncates_to_high_watermark
        self._writing = False
        self._lineages: dict[TopicPartition, Lineage] = {}
        cluster.trace_observers.append(self._observe)

    def begin_writing(self) -> None:
        """Writes to every partition, and from now on after every change."""
        self._writing = True
        for name in self.states.partitions:
            self.writer.request(name)

    def write_to(self, *brokers: NodeId) -> None:
        """Writes to every partition of which one of the brokers has a replica."""
        for name in dict.fromkeys(name for broker in brokers for name in self.states.replicas_on(broker)):
            self.writer.request(name)

    def handle_crash(self, broker: NodeId) -> None:
        """The broker's process has ended."""
        self.states.handle_crash(self._cluster.now_ms, broker)
        self.write_to(broker)

    def handle_slow(self, broker: NodeId) -> None:
        """A time begins in which the broker is slow."""
        self.states.handle_slow(self._cluster.now_ms, broker)
        self.write_to(broker)

    def give_up_writes(self, leader: NodeId) -> None:
        """The requests to that leader, or the answers to them, were lost."""
        for name in self.states.replicas_on(leader):
            if self.states.partitions[name].leader == leader:
                self.writer.give_up(name)

    def begin_measuring(self) -> None:
        """The trace begins: the states, and the records that were acknowledged before and may still be lost."""
        self.states.add_all()
        for name, writes in self.writer.writes.items():
            for offset, _ in writes.acked:
                self._add(Produced(self.states.partitions[name].index, ACKED, offset=offset))

    def forget_records(self) -> None:
        """All replicas have all records: those before the last one are not followed any more."""
        for name, writes in self.writer.writes.items():
            del writes.acked[:-1]
            for offset, _ in writes.acked:
                self._add(Checkpoint(self.states.partitions[name].index, offset))

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if type(trace) not in _OBSERVED:
            return
        if isinstance(trace, StoreChanged):
            published = partition_changed(trace)
            state = None if published is None else self.states.partitions.get(published.partition)
            if published is None or state is None:
                return
            trace = replace(published, min_isr=state.configured_min_isr)
        if isinstance(trace, PartitionChanged):
            self.states.handle_change(now_ms, trace)
            if self._writing:
                self.writer.request(trace.partition)
        elif isinstance(trace, BecameLeader):
            self._handle_new_leader(node, trace)
        elif isinstance(trace, HighWatermarkAdvanced):
            self.states.handle_high_watermark(trace)
            if self.reader is not None:
                self.reader.request(trace.partition)
        elif isinstance(trace, RecoveryDecided):
            self._add(Recovery(self.states.partitions[trace.partition].index, trace.leader, trace.outcome()))

    def _handle_new_leader(self, node: NodeId, trace: BecameLeader) -> None:
        """A replica has become leader: adds its row, and counts the acknowledged records that its log lacks as lost."""
        self.states.handle_regression(node, trace)
        if trace.leader_epoch < self.states.partitions[trace.partition].leader_epoch:
            return  # the controller has elected another leader since
        log = self._log(trace.partition, node)
        missing_from = self._missing_from(trace.partition, log, trace.log_end)
        self._lineages[trace.partition] = [*log.epochs.entries(), (trace.leader_epoch, trace.log_end)]
        index = self.states.partitions[trace.partition].index
        self._add(Elected(index, node, trace.log_end, trace.leader_epoch, missing_from))
        lost = self.remove_lost(trace.partition, node, trace.log_end)
        if lost:
            self.states.handle_loss(node, trace.partition, lost)
        self.states.handle_leader(node, trace)
        if self._writing and self.states.partitions[trace.partition].serves:
            self.writer.handle_leader(trace.partition)
            if self.reader is not None:
                self.reader.handle_leader(trace.partition)

    def remove_lost(self, name: TopicPartition, leader: NodeId, log_end: int) -> int:
        """Removes the acknowledged records that the leader's log lacks from `acked`; returns their number.

        Logs that agree at an offset agree before it (log matching), so the search ends at the first match from the
        end, or at the log's start offset: records that retention has deleted are not lost. Where followers truncate to
        their high watermarks logs need not match (N1): every record is looked up, and those behind the first one that
        is missing count as lost, too, though the log may have them. The number of events is exact, that of records an
        upper bound.
        """
        acked, log = self.writer.writes[name].acked, self._log(name, leader)
        first = len(acked)
        if self._logs_match:
            while first and not _has(log, log_end, *acked[first - 1]):
                first -= 1
        else:
            first = _first_missing(acked, log, log_end)
        lost = len(acked) - first
        del acked[first:]
        return lost

    def _missing_from(self, name: TopicPartition, log: ReplicaLog, log_end: int) -> int:
        """The offset from which on a new leader's log lacks what was acknowledged, or that of its end."""
        if self._logs_match:
            return max(log.start_offset, shared_end(self._lineages.get(name), log.epochs.entries(), log_end))
        acked = self.writer.writes[name].acked
        first = _first_missing(acked, log, log_end)
        return acked[first][0] if first < len(acked) else log_end

    def _log(self, name: TopicPartition, broker: NodeId) -> ReplicaLog:
        node = self._cluster.nodes[broker]
        assert isinstance(node, BaseBroker)
        replica = node.context.replica_named(name.topic, name.partition)
        assert replica is not None
        return replica.log


def _first_missing(acked: list[tuple[int, bytes]], log: ReplicaLog, log_end: int) -> int:
    """The index of the first acknowledged record that the log lacks; the number of records if it has all."""
    return next((index for index, record in enumerate(acked) if not _has(log, log_end, *record)), len(acked))


def _has(log: ReplicaLog, log_end: int, offset: int, payload: bytes) -> bool:
    """Whether a log that ends there has the record, or has deleted it by retention."""
    return offset < log.start_offset or (offset < log_end and log.storage.read(offset, 1)[0].payload == payload)


def shared_end(before: Lineage | None, lineage: Lineage, log_end: int) -> int:
    """The end offset of the newest leader epoch that two logs have in common: of a leader's log, whose last epoch goes
    on, and of its successor's, which ends at `log_end`. No record has the same offset and epoch as another one."""
    if before is None:
        return log_end
    ends_before = {epoch: end for (epoch, _), (_, end) in itertools.pairwise(before)}
    if before:
        ends_before[before[-1][0]] = log_end
    end = log_end
    for epoch, start in reversed(lineage):
        if epoch in ends_before:
            return min(end, ends_before[epoch])
        end = start
    return 0
