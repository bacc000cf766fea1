"""Invariants of logs: nothing committed is lost, and what consumers could read does not change.

Retention deletes the beginning of a log, on each replica at its own time. Records below a log's start do not count as
lost; but no log may begin after the end of what any leader has shown.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from experiments.check import rules
from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, PartitionTruth, PartitionView
from protocol.broker.context import Replica
from protocol.events.base import PartitionTrace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.ids import NodeId, Offset, TopicPartition
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import RecordBatch


def _missing(log: ReplicaLog, truth: PartitionTruth) -> str:
    """How a log lacks committed records that retention has not deleted; empty if it lacks none."""
    if wrong := rules.has_committed(log.end_offset, truth.committed_end):
        return wrong
    if log.start_offset > truth.shown_end:
        return f"begins at {log.start_offset}; leaders had high watermarks up to {truth.shown_end}"
    return ""


class LeaderCompleteness(Invariant):
    """A non-stale leader holds everything that was committed."""

    NEEDS_TOLERANCE = True

    AFTER_CONTROLLERS = False

    def check(self, view: PartitionView) -> str:
        replica = view.replica
        if replica is None or not view.is_led_by(view.node, replica):
            return ""
        wrong = _missing(replica.log, view.truth)
        return f"leader {view.node} {wrong}" if wrong else ""


class LeaderCandidateCompleteness(Invariant):
    """Every running member of ISR and ELR holds everything that was committed."""

    NEEDS_TOLERANCE = True

    def check(self, view: PartitionView) -> str:
        state = view.state
        if state is None:
            return ""
        truth = view.truth
        for broker in (*state.isr, *(b for b in state.elr if b in state.replicas)):
            replica = view.replica if broker == view.node else view.replica_of(broker)
            wrong = "" if replica is None else _missing(replica.log, truth)
            wrong = wrong if wrong and view.is_registered(broker) else ""
            if wrong:
                return f"{'ISR' if broker in state.isr else 'ELR'} member {broker} {wrong}"
        return ""


class NoCommittedRecordLostGlobally(Invariant):
    """Everything committed is on the disk of some replica."""

    NEEDS_TOLERANCE = True

    def check(self, view: PartitionView) -> str:
        end = view.truth.committed_end
        if not end or (view.replica is not None and view.replica.log.end_offset >= end):
            return ""
        ends = self.truth.stored_ends(view.partition)
        if ends and max(ends.values()) < end:
            return f"committed is {end}, the longest logs end at {ends}"
        return ""


class _PrefixCheck(Invariant):
    """Compares what a replica holds below its high watermark with what leaders have shown, each offset once per
    incarnation.
    """

    KEPT = ("_checked",)
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_checked"})  # what may be checked again
    AFTER_CONTROLLERS = False

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._checked: dict[tuple[NodeId, TopicPartition, int], Offset] = {}

    @abstractmethod
    def _concerns(self, replica: Replica) -> bool:
        """Whether the check applies to the replica in its present role."""

    def check(self, view: PartitionView) -> str:
        replica = view.replica
        if replica is None or not self._concerns(replica):
            return ""
        key = (view.node, view.partition, self.truth.cluster.incarnation_of(view.node))
        log = replica.log
        limit = min(log.high_watermark, log.end_offset)
        checked = self._checked.get(key)
        if checked == limit:
            return ""
        offset = max(min(checked or 0, limit), log.start_offset)
        while offset < limit:
            batch = log.storage.read(offset, 1)[0]
            wrong = self._compare(view, batch)
            if wrong:
                return wrong
            offset = batch.next_offset
        self._checked[key] = offset
        return ""

    def _compare(self, view: PartitionView, batch: RecordBatch) -> str:
        shown, node = view.truth.shown.get(batch.base_offset), view.node
        if shown is not None and shown != batch.payload:
            return f"broker {node} holds {batch.payload.hex()} at {batch.base_offset}; a leader had {shown.hex()} there"
        return ""


class LogMatching(_PrefixCheck):
    """Followers agree below their high watermarks with what leaders have shown."""

    NEEDS_TOLERANCE = True

    def _concerns(self, replica: Replica) -> bool:
        return replica.leadership is None


class ConsistentRead(_PrefixCheck):
    """Every later leader shows the same record at an offset. This check also updates the ground truth."""

    NEEDS_TOLERANCE = True

    def _concerns(self, replica: Replica) -> bool:
        return replica.leadership is not None

    def _compare(self, view: PartitionView, batch: RecordBatch) -> str:
        wrong, truth = super()._compare(view, batch), view.truth
        truth.shown_end = max(truth.shown_end, batch.next_offset)
        if not wrong and view.is_led_by(view.node, view.replica):
            truth.shown[batch.base_offset] = batch.payload
            truth.committed_end = max(truth.committed_end, batch.next_offset)
        return wrong


class HighWatermarkMonotone(Invariant):
    """From KIP-966 on no leader takes back what consumers could read; before it only acks=all records are promised."""

    KEPT = ("_shown", "_led")
    NEEDS_TOLERANCE = True

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._shown: dict[TopicPartition, Offset] = {}
        self._led: dict[TopicPartition, tuple[NodeId, int, Offset]] = {}

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if not self.truth.features.high_watermark_needs_min_isr:
            self._shown.pop(trace.partition, None)
            return ""
        if isinstance(trace, HighWatermarkAdvanced):
            return self._observe_advance(node, trace)
        shown = self._shown.get(trace.partition, 0)
        wrong = rules.has_committed(trace.log_end, shown) if isinstance(trace, BecameLeader) else ""
        if isinstance(trace, BecameLeader) and wrong:
            state = self.truth.controller_state(trace.partition)
            if state is not None and trace.leader_epoch < state.leader_epoch:
                return ""  # deposed before it read of its election
            return f"leader {node} {wrong}, which consumers could read"
        return ""

    def _observe_advance(self, node: NodeId, trace: HighWatermarkAdvanced) -> str:
        partition, offset, epoch = trace.partition, trace.high_watermark, trace.leader_epoch
        before = self._led.get(partition)
        self._led[partition] = (node, epoch, offset)
        self._shown[partition] = max(self._shown.get(partition, 0), offset)
        goes_on = before is not None and before[:2] == (node, epoch)
        wrong = rules.mark_stays(before[2], offset) if before is not None and goes_on else ""
        return f"leader {node} {wrong}" if wrong else ""
