"""Ground truth: what is committed on a simulated cluster, and whether the protocol's promises still hold for it.

The checkers read the whole cluster and rely on no node's report. For each partition the ground truth holds what
non-stale leaders have shown below their high watermark, and its *tolerance*: KIP-966 promises durability while at most
min ISR - 1 lossy unclean shutdowns are outstanding (F27, L18), each until the broker is back in the ISR. A partition
leaves tolerance, for the rest of the run, when

- more lossy shutdowns are outstanding. Generations without ELR tolerate none, nor does any partition whose ISR has not
  reached min ISR: what was committed under another min ISR or other feature levels may be on fewer replicas;
- an unclean election chooses a leader that is not known to be complete. Complete are the last known leader, while its
  disk has lost nothing, since it led last; and the leader of a balanced recovery, which waits for the whole last known
  ELR, so that a replica without losses is among the candidates (F27);
- `kip-966-elr` keeps an ELR, as Kafka's first phase does, through an election that reaches a min ISR which was lowered
  in between: from then on the members of that ELR need not have what is committed.

Beyond tolerance loss is a result and not a violation. Each unclean recovery is recorded with its cost: the committed
records that the log of the elected replica lacks and that no earlier recovery had lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from experiments.engines.sim.cluster import SimCluster
from protocol.broker.context import Replica, log_name
from protocol.broker.leadership import Leadership
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.events.controller import RecoveryDecided
from protocol.features import Features
from protocol.ids import FIRST_CONTROLLER, NO_LEADER, NodeId, Offset, TopicIdPartition, TopicPartition
from protocol.messages.metadata_batch import unpack_records
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode


@dataclass(frozen=True, slots=True)
class JudgedRecovery:
    """`leader` is elected in the epoch after `leader_epoch`; `lost` counts the committed records that this costs."""

    mode: str
    leader: NodeId
    leader_epoch: int
    lost: int


@dataclass(slots=True)
class PartitionTruth:
    """`shown[offset]` is the payload of the batch at that base offset that a leader has shown to consumers,
    `committed_end` the offset after the last of them. `shown_end` includes what deposed leaders have shown: while all
    members of their maximal ISR follow them, they commit and may delete records. `lossy` are the brokers with an
    outstanding lossy shutdown. `reached_min_isr`: the ISR has had min ISR members since min ISR or the assignment last
    changed. `identity` is that of `GroundTruth.identity`, `state` the last committed state, `recovery` the last
    recovery, `lost` the base offsets and payloads of batches that recoveries have lost.
    """

    committed_end: Offset = 0
    shown_end: Offset = 0
    shown: dict[Offset, bytes] = field(default_factory=dict)
    lossy: set[NodeId] = field(default_factory=set)
    tolerant: bool = True
    min_isr: int = 0
    replicas: tuple[NodeId, ...] = ()
    reached_min_isr: bool = False
    identity: tuple[str, int] | None = None
    state: PartitionState | None = None
    recovery: JudgedRecovery | None = None
    lost: set[tuple[Offset, bytes]] = field(default_factory=set)


class PartitionView:
    """One partition after an event of `node`, read once for all invariants. `image` and `state` are the controller's,
    None while there is none; `replica` is the node's. `_topic` and `_last_state` are those of the controller that ran
    last.
    """

    __slots__ = ("_cluster", "_ground", "_last_state", "_topic", "image", "node", "partition", "replica", "state")

    def __init__(self, ground: GroundTruth, node: NodeId, partition: TopicPartition) -> None:
        self.node = node
        self.partition = partition
        self._ground = ground
        self.image = image = ground.controller_image()
        self._cluster = ground.cluster
        last = ground.last_image
        self._topic = topic = None if last is None else last.topic_named(partition.topic)
        self._last_state = None if topic is None else topic.partitions.get(partition.partition)
        self.state = None if image is None else self._last_state
        self.replica = self.replica_of(node)

    @property
    def truth(self) -> PartitionTruth:
        """Created if there is none."""
        return self._ground.of(self.partition)

    @property
    def min_isr(self) -> int:
        """Effective min ISR as the controller counts it; there must be a `state`."""
        assert self.image is not None
        assert self._topic is not None
        assert self.state is not None
        return self.image.min_isr(self._topic.topic_id, MIN_INSYNC_REPLICAS, len(self.state.replicas))

    def min_isr_of_leader(self, leadership: Leadership) -> int:
        """Effective min ISR as the leader of the `state`, which must run, counts it by the metadata it has replayed."""
        assert self.state is not None
        assert self._topic is not None
        leader = self._cluster.nodes[self.state.leader]
        assert isinstance(leader, BrokerNode)
        return leader.context.image.min_isr(self._topic.topic_id, MIN_INSYNC_REPLICAS, len(leadership.replicas))

    def replica_of(self, broker: NodeId) -> Replica | None:
        """The broker's replica of what the controller means by this name, or the last one did while there is none; None
        if it has none, or one of a deleted topic or a removed partition of the same name.
        """
        node, topic, state = self._cluster.nodes.get(broker), self._topic, self._last_state
        if not isinstance(node, BrokerNode) or topic is None or state is None:
            return None
        replica = node.context.replicas.get(TopicIdPartition(topic.topic_id, self.partition.partition))
        return None if replica is None or replica.leader_epoch < state.first_leader_epoch else replica

    def is_registered(self, broker: NodeId) -> bool:
        """Whether the broker runs under the epoch that the controller knows."""
        node, image = self._cluster.nodes.get(broker), self.image
        if image is None or not isinstance(node, BrokerNode):
            return False
        return node.context.broker_epoch == image.broker_epoch(broker)

    def is_led_by(self, broker: NodeId, replica: Replica | None) -> bool:
        """Whether the broker, with this replica, leads in the latest leader epoch. While no controller runs no leader
        can be elected, and what the leader commits is committed.
        """
        state = self._last_state
        if replica is None or replica.leadership is None:
            return False
        return state is not None and state.leader == broker and state.leader_epoch == replica.leader_epoch


def _state_in(image: MetadataImage | None, partition: TopicPartition) -> PartitionState | None:
    topic = None if image is None else image.topic_named(partition.topic)
    return None if topic is None else topic.partitions.get(partition.partition)


class GroundTruth:
    """Reads the nodes of a simulated cluster and never changes them. `last_image` is that of the controller which ran
    last; `deletions` counts how often a topic of a name has been deleted.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.partitions: dict[TopicPartition, PartitionTruth] = {}
        self.last_image: MetadataImage | None = None
        self.recoveries: list[JudgedRecovery] = []
        self.deletions: Counter[str] = Counter()
        self.features: Features = cluster.spec.config.generation.features
        """The features of the levels in force; while there is no controller, of the last ones."""
        self._committed = MetadataImage(cluster.spec.config) if cluster.spec.controllers > 1 else None

    def of(self, partition: TopicPartition) -> PartitionTruth:
        truth = self.partitions.get(partition)
        if truth is None:
            truth = self.partitions[partition] = PartitionTruth()
        return truth

    # -- reading the cluster -------------------------------------------------------------------------------------------

    def view(self, node: NodeId, partition: TopicPartition) -> PartitionView:
        return PartitionView(self, node, partition)

    def controller_image(self) -> MetadataImage | None:
        """What is committed of the metadata; None before the first controller has started. A single controller has
        committed all that it has applied, and there is none while it does not run. With several controllers the
        committed records are replayed here: a controller that resigns reports with its last effects what it has
        committed.
        """
        if self._committed is None:
            node = self.cluster.nodes.get(FIRST_CONTROLLER)
            if not isinstance(node, ControllerNode) or not node.is_active:
                return None
            self.last_image = node.state.image
        elif self._committed.next_offset:
            self.last_image = self._committed
        return self.last_image

    def observe_commit(self, controller: NodeId, end_offset: Offset) -> None:
        """A controller reports that the metadata log is committed below `end_offset`."""
        image, node = self._committed, self.cluster.nodes.get(controller)
        if image is None or not isinstance(node, ControllerNode) or end_offset <= image.next_offset:
            return
        snapshot = node.replica.snapshot
        if image.next_offset < node.first_record and snapshot is not None:
            image.load(unpack_records(snapshot.data), snapshot.end_offset)
        for record in node.records[image.next_offset - node.first_record : end_offset - node.first_record]:
            image.replay(record)
        image.take_delta()

    def latest_image(self) -> MetadataImage | None:
        return self.controller_image() or self.last_image

    def controller_state(self, partition: TopicPartition) -> PartitionState | None:
        return _state_in(self.controller_image(), partition)

    def min_isr(self, partition: TopicPartition, state: PartitionState) -> int:
        """Effective min ISR as the controller counts it."""
        image = self.controller_image()
        assert image is not None
        return image.min_isr(image.topic_ids[partition.topic], MIN_INSYNC_REPLICAS, len(state.replicas))

    def identity(self, partition: TopicPartition) -> tuple[str, int] | None:
        """The id of the topic that the controller has committed under this name, and the partition's first leader
        epoch, which is another one if it was removed and added again. None if there is no such partition.
        """
        image = self.controller_image()
        state = _state_in(image, partition)
        return None if image is None or state is None else (image.topic_ids[partition.topic], state.first_leader_epoch)

    def take_removed(self, topic: str) -> set[TopicPartition]:
        """Forgets the deleted partitions of a topic, and returns them; later ones of the same name are different ones.
        A new active controller may report deletions again that are long past.
        """
        known = [(name, truth.identity) for name, truth in self.partitions.items() if name.topic == topic]
        gone = {name: identity for name, identity in known if identity != self.identity(name)}
        image = self.controller_image()
        topic_id = None if image is None else image.topic_ids.get(topic)
        for name in gone:
            del self.partitions[name]
        self.deletions[topic] += any(identity is not None and identity[0] != topic_id for identity in gone.values())
        return set(gone)

    def observe_feature_levels(self) -> None:
        """After a change of feature levels the promise has to be built up again from the present ISR."""
        image = self.controller_image()
        if image is None or image.features == self.features:
            return
        self.features = image.features
        for partition, truth in self.partitions.items():
            state = self.controller_state(partition)
            if state is not None:
                truth.min_isr = self.min_isr(partition, state)
                truth.reached_min_isr = len(state.isr) >= truth.min_isr
            self._judge(partition)

    def stored_ends(self, partition: TopicPartition) -> dict[NodeId, Offset]:
        """Log ends on all disks that hold a replica of the partition, also of brokers that do not run."""
        name = self._log_name(partition)
        ends = ((broker, self.cluster.disks[broker].log_end(name)) for broker in self.cluster.spec.broker_ids)
        return {broker: end for broker, end in ends if end is not None}

    def _log_name(self, partition: TopicPartition) -> str:
        """The name of the partition's logs on disks; empty while the controller knows no such topic."""
        image = self.controller_image()
        topic_id = None if image is None else image.topic_ids.get(partition.topic)
        return "" if topic_id is None else log_name(TopicIdPartition(topic_id, partition.partition))

    # -- keeping the truth ---------------------------------------------------------------------------------------------

    def observe_crash(self, broker: NodeId, lost: dict[TopicPartition, int]) -> None:
        """The broker's disk has lost records in a crash: their number by partition."""
        for partition, count in lost.items():
            if count:
                self.of(partition).lossy.add(broker)
                self._judge(partition)

    def observe_partition(self, partition: TopicPartition, state: PartitionState) -> None:
        """The controller has committed a new state."""
        truth = self.of(partition)
        truth.identity = self.identity(partition)
        known_complete = not state.leader_recovery_state or self._is_known_complete(truth, state)
        if truth.lossy:
            view = self.view(FIRST_CONTROLLER, partition)
            truth.lossy -= {broker for broker in state.isr if view.is_registered(broker)}
        min_isr = self.min_isr(partition, state)
        if (min_isr, state.replicas) != (truth.min_isr, truth.replicas):
            truth.min_isr, truth.replicas, truth.reached_min_isr = min_isr, state.replicas, False
        truth.reached_min_isr = truth.reached_min_isr or len(state.isr) >= min_isr
        stale_elr = self.features.last_known_leader_in_elr and bool(state.elr) and len(state.isr) >= min_isr
        before = truth.state
        is_abandoned = False
        if before is not None and before.replicas != state.replicas and not state.isr and not state.elr:
            # A reassignment was cancelled while only replicas that it added were in ISR and ELR, which topics allow
            # that prefer availability: no complete replica is left (E35).
            is_abandoned = bool(before.isr or before.elr)
        truth.tolerant = truth.tolerant and known_complete and not stale_elr and not is_abandoned
        truth.state = state
        self._judge(partition)

    def observe_recovery(self, decided: RecoveryDecided) -> None:
        """The controller is about to record the outcome of a recovery."""
        truth, held = self.of(decided.partition), self._held_by(decided.leader, decided.partition)
        start = min(held, default=0)
        shown = [(base, payload) for base, payload in truth.shown.items() if base >= start]
        missing = {batch for batch in shown if held.get(batch[0]) != batch[1]} - truth.lost
        ends = dict(pairwise([*sorted(truth.shown), truth.committed_end]))
        lost = sum(ends[base] - base for base, _ in missing)
        truth.lost |= missing
        truth.recovery = JudgedRecovery(decided.mode, decided.leader, decided.leader_epoch, lost)
        self.recoveries.append(truth.recovery)

    def only_held_by(self, broker: NodeId, other: NodeId, partition: TopicPartition) -> list[Offset]:
        """The base offsets of committed batches that are on the disk of `broker` and not on that of `other`, and that
        retention has not deleted there.
        """
        shown, mine, its = self.of(partition).shown, self._held_by(broker, partition), self._held_by(other, partition)
        start = min(its, default=0)
        return [
            base
            for base, payload in sorted(mine.items())
            if base >= start and shown.get(base) == payload != its.get(base)
        ]

    def _held_by(self, broker: NodeId, partition: TopicPartition) -> dict[Offset, bytes]:
        """Base offsets and payloads of the batches on a broker's disk."""
        disk, name = self.cluster.disks[broker], self._log_name(partition)
        if name not in disk.log_names():
            return {}
        log = disk.open_log(name)
        return {batch.base_offset: batch.payload for batch in log.read(log.start_offset, 2**62)}

    def _is_known_complete(self, truth: PartitionTruth, state: PartitionState) -> bool:
        """Whether a leader that this record elects into a RECOVERING partition is known to be complete."""
        before, leader = truth.state, state.leader
        if before is None:
            return False
        if leader in (NO_LEADER, before.leader) or leader in before.isr + before.elr:
            return True
        if self.features.unclean_recovery:
            found = truth.recovery
            outcome = ("balanced", leader, before.leader_epoch)
            return found is not None and (found.mode, found.leader, found.leader_epoch) == outcome
        known = before.last_known_leader
        if self.features.last_known_leader_in_elr and len(before.last_known_elr) == 1:
            known = before.last_known_elr[0]
        return leader == known and leader not in truth.lossy

    def _judge(self, partition: TopicPartition) -> None:
        truth, state = self.of(partition), self.controller_state(partition)
        min_isr = truth.min_isr if state is None else self.min_isr(partition, state)
        promised = self.features.elr and truth.reached_min_isr and min_isr == truth.min_isr
        allowed = min_isr - 1 if promised else 0
        if len(truth.lossy) > allowed:
            truth.tolerant = False
