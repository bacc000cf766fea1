"""Invariants of logs: nothing committed is lost, and what consumers could read does not change.

Retention deletes the beginning of a log, on each replica at its own time: records below a log's start are not lost, but
no log may begin after the end of what any leader has shown.
"""

from __future__ import annotations

from typing import ClassVar

from experiments.check import rules
from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, PartitionTruth, PartitionView
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
            if wrong and view.is_registered(broker):
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
    """Compares what a replica, of leaders or of followers, holds below its high watermark with what leaders have shown,
    each offset once per incarnation.
    """

    OF_LEADERS: ClassVar[bool] = False
    NEEDS_TOLERANCE = True
    KEPT = ("_checked",)
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_checked"})  # what may be checked again
    AFTER_CONTROLLERS = False

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._checked: dict[tuple[NodeId, TopicPartition, int], Offset] = {}

    def check(self, view: PartitionView) -> str:
        replica = view.replica
        if replica is None or (replica.leadership is not None) != self.OF_LEADERS:
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
            if wrong := self._compare(view, batch):
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


class ConsistentRead(_PrefixCheck):
    """Every later leader shows the same record at an offset. This check also updates the ground truth."""

    OF_LEADERS = True

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
        shown = self._shown.get(trace.partition, 0)
        if isinstance(trace, HighWatermarkAdvanced):
            mark, epoch = trace.high_watermark, trace.leader_epoch
            leader, led_epoch, before = self._led.get(trace.partition, (node, epoch, 0))
            self._led[trace.partition] = (node, epoch, mark)
            self._shown[trace.partition] = max(shown, mark)
            wrong = rules.mark_stays(before, mark) if (leader, led_epoch) == (node, epoch) else ""
            return f"leader {node} {wrong}" if wrong else ""
        if isinstance(trace, BecameLeader) and (wrong := rules.has_committed(trace.log_end, shown)):
            state = self.truth.controller_state(trace.partition)
            is_deposed = (
                state is not None and trace.leader_epoch < state.leader_epoch
            )  # it has not read of its successor
            return "" if is_deposed else f"leader {node} {wrong}, which consumers could read"
        return ""
