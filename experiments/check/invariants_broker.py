"""Invariants of one broker: its state, its replicas, and what it fetches. They hold with any fault."""

from __future__ import annotations

from typing import ClassVar

from experiments.check import rules
from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, PartitionView
from protocol.broker.lifecycle import LifecycleState
from protocol.ids import NO_EPOCH, NO_LEADER, NodeId, Offset, TopicPartition
from protocol.metadata.partition import LeaderRecoveryState
from protocol.nodes.broker import BrokerNode


class ValidBrokerState(Invariant):
    """A running broker has registered, and has replayed its registration from the metadata log."""

    AFTER_CONTROLLERS = False

    def check(self, view: PartitionView) -> str:
        node = view.node
        broker = self.truth.cluster.nodes.get(node)
        if not isinstance(broker, BrokerNode) or broker.state is not LifecycleState.RUNNING:
            return ""
        epoch, replayed = broker.context.broker_epoch, broker.context.image.next_offset
        if epoch == NO_EPOCH or replayed <= epoch:
            return f"broker {node} runs under epoch {epoch} and has replayed {replayed} records"
        return ""


class ValidReplicaState(Invariant):
    """A replica's high watermark lies within its log, and falls only where the log is truncated (N6); its records are
    of epochs that it knows to have begun.
    """

    KEPT = ("_before",)
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_before"})  # in a search the state before the step shows them
    AFTER_CONTROLLERS = False

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._before: dict[tuple[NodeId, TopicPartition], tuple[int, Offset]] = {}

    def check(self, view: PartitionView) -> str:
        node, partition, replica = view.node, view.partition, view.replica
        if replica is None:
            return ""
        log = replica.log
        start, mark, end = log.start_offset, log.high_watermark, log.end_offset
        if wrong := rules.mark_is_in_log(mark, end, start):
            return f"broker {node} {wrong}"
        if log.latest_epoch > replica.leader_epoch:
            return f"broker {node} has records of epoch {log.latest_epoch} in leader epoch {replica.leader_epoch}"
        incarnation = self.truth.cluster.incarnation_of(node)
        known, before = self._before.get((node, partition), (incarnation, 0))
        self._before[node, partition] = (incarnation, mark)
        if known == incarnation and before <= end and (wrong := rules.mark_stays(before, mark)):
            return f"broker {node} {wrong}"
        leadership = replica.leadership
        if leadership is not None and leadership.leader_epoch != replica.leader_epoch:
            return f"broker {node} leads epoch {leadership.leader_epoch} in leader epoch {replica.leader_epoch}"
        return ""


class RecoveringLeaderIsAlone(Invariant):
    """A leader that is RECOVERING has itself alone in the ISR that it knows and in the one that it proposes (C11)."""

    AFTER_CONTROLLERS = False

    def check(self, view: PartitionView) -> str:
        leadership = None if view.replica is None else view.replica.leadership
        if leadership is None or leadership.recovery_state is not LeaderRecoveryState.RECOVERING:
            return ""
        if set(leadership.maximal_isr) <= {view.node}:
            return ""
        return f"leader {view.node} is RECOVERING and counts with {leadership.maximal_isr}"


class ValidFetcherState(Invariant):
    """A follower fetches from the leader that it knows, from its own log end on; a leader does not fetch."""

    AFTER_CONTROLLERS = False

    def check(self, view: PartitionView) -> str:
        node, replica = view.node, view.replica
        if replica is None:
            return ""
        fetch = replica.fetch_state
        if replica.leadership is not None:
            return "" if fetch is None else f"leader {node} fetches {fetch.fetch_offset} from {replica.leader_id}"
        if replica.leader_id in (NO_LEADER, node):
            return "" if fetch is None else f"broker {node} fetches from {replica.leader_id}"
        if fetch is None:
            return f"broker {node} follows {replica.leader_id} and does not fetch"
        known = (fetch.current_leader_epoch, fetch.fetch_offset)
        if known != (replica.leader_epoch, replica.log.end_offset):
            return f"broker {node} fetches {known}, its log ends at {replica.log.end_offset} in {replica.leader_epoch}"
        return ""
