"""Invariants of what brokers keep and count. They hold with any fault."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, PartitionView
from protocol.broker.context import log_name
from protocol.broker.lifecycle import LifecycleState
from protocol.config import NUM_REPLICA_FETCHERS
from protocol.events.base import PartitionTrace
from protocol.events.broker import RecordsAppended
from protocol.ids import FIRST_CLIENT, METADATA_LOG, NO_LEADER, NO_OFFSET, NodeId, Offset, TopicPartition
from protocol.messages.acls import AclOperation
from protocol.messages.batch import NO_SEQUENCE, RecordBatch
from protocol.metadata.authorizer import may, node_principal
from protocol.nodes.broker import BrokerNode

_Key = tuple[int, ...]
"""A producer: its id; or a batch: producer id, producer epoch and sequence number of the first record."""


class _ProducerCheck(Invariant):
    """Reads the batches of idempotent producers in each log, each batch once per incarnation, in the log's order."""

    KEPT = ("_found",)
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_found"})  # what may be checked again
    AFTER_CONTROLLERS = False

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._found: dict[tuple[NodeId, TopicPartition], tuple[int, Offset, dict[_Key, int]]] = {}

    def check(self, view: PartitionView) -> str:
        replica = view.replica
        if replica is None:
            return ""
        key, log = (view.node, view.partition), replica.log
        incarnation, end = self.truth.cluster.incarnation_of(view.node), log.end_offset
        known, checked, found = self._found.get(key, (incarnation, 0, {}))
        if known != incarnation or end < checked or log.start_offset > checked:
            checked, found = log.start_offset, {}
        wrong = ""
        while checked < end:
            for batch in log.storage.read(checked, 10_000):
                checked = batch.next_offset
                if batch.base_sequence != NO_SEQUENCE:
                    wrong = self._wrong_with(batch, found, log.start_offset) or wrong
        self._found[key] = (incarnation, checked, found)
        return f"broker {view.node} holds {wrong}" if wrong else ""

    @abstractmethod
    def _wrong_with(self, batch: RecordBatch, found: dict[_Key, int], start_offset: Offset) -> str:
        """What is wrong with the batch after those before it; adds the batch to what was `found`."""


class OneCopyPerSequence(_ProducerCheck):
    """No log holds two batches with the same producer id, producer epoch and sequence number (KIP-98)."""

    def _wrong_with(self, batch: RecordBatch, found: dict[_Key, int], start_offset: Offset) -> str:
        sequence = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        before = found.get(sequence, NO_OFFSET)
        found[sequence] = batch.base_offset
        again = start_offset <= before < batch.base_offset
        return f"batch {sequence} at {before} and at {batch.base_offset}" if again else ""


class ProducerEpochsRise(_ProducerCheck):
    """In no log a batch follows one of a later epoch of its producer: with its next epoch a producer has given up what
    it sent before, and what arrives of that is refused (KIP-98, INVALID_PRODUCER_EPOCH).
    """

    def _wrong_with(self, batch: RecordBatch, found: dict[_Key, int], start_offset: Offset) -> str:
        producer, epoch = (batch.producer_id,), batch.producer_epoch
        before = found.get(producer, epoch)
        found[producer] = max(before, epoch)
        if epoch >= before:
            return ""
        return f"a batch of epoch {epoch} of producer {batch.producer_id} at {batch.base_offset}, after epoch {before}"


class OnlyAssignedLogs(Invariant):
    """A running broker keeps no log of a partition that its metadata do not assign to it, such as one of a deleted
    topic (A34, M36). It applies its metadata once they contain all that its leader has reported as committed.
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_checked"})  # what may be checked again
    AFTER_CONTROLLERS = False

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._checked: dict[NodeId, tuple[int, Offset]] = {}

    def check(self, view: PartitionView) -> str:
        broker = self.truth.cluster.nodes.get(view.node)
        if not isinstance(broker, BrokerNode) or broker.state is not LifecycleState.RUNNING:
            return ""
        image = broker.context.image
        checked = (self.truth.cluster.incarnation_of(view.node), image.next_offset)
        if self._checked.get(view.node) == checked or image.taken_offset < image.next_offset:
            return ""
        self._checked[view.node] = checked
        wanted = {log_name(key) for key, state in image.partitions() if view.node in state.replicas}
        names = self.truth.cluster.disks[view.node].log_names()
        stale = [name for name in names if name not in wanted and name != METADATA_LOG]
        return f"broker {view.node} keeps the logs {stale} of partitions that it does not have" if stale else ""


class WritesAreAuthorized(Invariant):
    """A leader appends only what the client may write by the leader's metadata of that moment (G32). All records of a
    simulated cluster come from one client.
    """

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        broker = self.truth.cluster.nodes.get(node)
        if not isinstance(trace, RecordsAppended) or not isinstance(broker, BrokerNode):
            return ""
        client = node_principal(FIRST_CLIENT)
        if may(broker.context.image, client, AclOperation.WRITE, trace.partition.topic):
            return ""
        return f"leader {node} has appended what {client} may not write"


class LeadersCountWhatFollowersHold(Invariant):
    """What a leader has recorded as the log end of a follower, this follower holds, as long as neither has begun
    another incarnation or leader epoch (E1, N5).
    """

    AFTER_CONTROLLERS = False

    def check(self, view: PartitionView) -> str:
        leader = view.replica
        if leader is None or leader.leadership is None:
            return ""
        for follower, progress in leader.leadership.followers.items():
            if progress.end_offset <= 0:
                continue
            node, replica = self.truth.cluster.nodes.get(follower), view.replica_of(follower)
            if replica is None or not isinstance(node, BrokerNode) or replica.leader_epoch != leader.leader_epoch:
                continue
            same = node.context.broker_epoch == progress.broker_epoch
            if same and replica.log.end_offset < progress.end_offset:
                end = replica.log.end_offset
                return f"leader {view.node} counts {progress.end_offset} for broker {follower}, whose log ends at {end}"
        return ""


class FetchSessionsAgree(Invariant):
    """In a fetch session neither side has received more messages than the other one has sent, and no leader knows a
    later session than its follower has begun (KIP-227).
    """

    AFTER_CONTROLLERS = False

    def check(self, view: PartitionView) -> str:
        replica, node = view.replica, self.truth.cluster.nodes.get(view.node)
        if replica is None or not isinstance(node, BrokerNode) or replica.leader_id == NO_LEADER:
            return ""
        if replica.leadership is None:
            leader = self.truth.cluster.nodes.get(replica.leader_id)
            return self._compare(leader, node) if isinstance(leader, BrokerNode) else ""
        followers = (self.truth.cluster.nodes.get(broker) for broker in replica.leadership.followers)
        found = (self._compare(node, follower) for follower in followers if isinstance(follower, BrokerNode))
        return next(filter(None, found), "")

    def _compare(self, leader: BrokerNode, follower: BrokerNode) -> str:
        me, other = leader.node_id, follower.node_id
        if leader.fetch_sessions.epoch_of(other) != follower.context.broker_epoch:
            return ""
        for fetcher in range(leader.context.config.int_value(NUM_REPLICA_FETCHERS)):
            served, began = leader.fetch_sessions.session((other, fetcher)), follower.fetcher.session(me, fetcher)
            if served is None or not served[0] or served[0] < began[0]:
                continue
            if served[0] > began[0] or served[1] > began[1] or began[2] > served[2]:
                return f"leader {me} serves (session, requests, answers) {served}, broker {other} has {began}"
        return ""
