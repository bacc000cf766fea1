"""Ground truth: what is committed, what was acknowledged, and whether the protocol still owes its promises.

The simulator sees everything at once, so the checkers need not believe any node. For each partition the truth is kept
of what non-stale leaders have shown below their high watermark, and of *tolerance*: the promise of KIP-966 is that at
most min ISR - 1 lossy unclean shutdowns may be outstanding (F27, L18). A lossy shutdown of a broker is outstanding
until the broker is back in the ISR. Generations without ELR promise nothing once a member of the ISR has lost data.
An unclean election, whatever the reason, ends the promise for its partition as well, because it chooses a leader that
nobody vouches for. Beyond tolerance loss is a result and no violation, for the rest of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.sim.cluster import SimCluster
from protocol.broker.context import Replica, log_name
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.ids import FIRST_CONTROLLER, NodeId, Offset, TopicIdPartition, TopicPartition
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode


@dataclass(slots=True)
class PartitionTruth:
    """One partition. `shown[offset]` is the payload of the batch at that base offset that a leader has shown to
    consumers; `committed_end` the offset behind the last of them. `reached_min_isr` says whether the ISR has had min
    ISR members since min ISR or the assignment last changed.
    """

    committed_end: Offset = 0
    shown: dict[Offset, bytes] = field(default_factory=dict)
    lossy: set[NodeId] = field(default_factory=set)
    tolerant: bool = True
    min_isr: int = 0
    replicas: tuple[NodeId, ...] = ()
    reached_min_isr: bool = False


class GroundTruth:
    """Truth about all partitions of a simulated cluster; reads nodes, never changes them."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.partitions: dict[TopicPartition, PartitionTruth] = {}

    def of(self, partition: TopicPartition) -> PartitionTruth:
        return self.partitions.setdefault(partition, PartitionTruth())

    # -- reading the cluster -------------------------------------------------------------------------------------------

    def controller_image(self) -> MetadataImage | None:
        node = self.cluster.nodes.get(FIRST_CONTROLLER)
        return node.state.image if isinstance(node, ControllerNode) else None

    def controller_state(self, partition: TopicPartition) -> PartitionState | None:
        image = self.controller_image()
        topic = None if image is None else image.topic_named(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def min_isr(self, partition: TopicPartition, state: PartitionState) -> int:
        """Effective min ISR as the controller counts it."""
        image = self.controller_image()
        assert image is not None
        return image.min_isr(image.topic_ids[partition.topic], MIN_INSYNC_REPLICAS, len(state.replicas))

    def replica(self, broker: NodeId, partition: TopicPartition) -> Replica | None:
        """The broker's replica; None if it has none, or one of a topic of that name that is no more."""
        node = self.cluster.nodes.get(broker)
        if not isinstance(node, BrokerNode) or not self.knows_topic(node, partition.topic):
            return None
        return node.context.replica_named(partition.topic, partition.partition)

    def knows_topic(self, node: BrokerNode, topic: str) -> bool:
        """Whether the broker means the same topic by this name as the controller does."""
        image = self.controller_image()
        return image is None or node.context.image.topic_ids.get(topic) == image.topic_ids.get(topic)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted; one of the same name will be another."""
        for partition in [partition for partition in self.partitions if partition.topic == topic]:
            del self.partitions[partition]

    def is_registered(self, broker: NodeId) -> bool:
        """Whether the broker runs under the epoch that the controller knows."""
        node, image = self.cluster.nodes.get(broker), self.controller_image()
        return (
            isinstance(node, BrokerNode)
            and image is not None
            and node.context.broker_epoch == image.broker_epoch(broker)
        )

    def is_non_stale_leader(self, broker: NodeId, partition: TopicPartition) -> bool:
        state, replica = self.controller_state(partition), self.replica(broker, partition)
        return (
            state is not None
            and replica is not None
            and replica.leadership is not None
            and (state.leader, state.leader_epoch) == (broker, replica.leader_epoch)
        )

    def stored_ends(self, partition: TopicPartition) -> dict[NodeId, Offset]:
        """Log ends on all disks that hold a replica of the partition, of running brokers and others."""
        image = self.controller_image()
        topic_id = None if image is None else image.topic_ids.get(partition.topic)
        if topic_id is None:
            return {}
        name = log_name(TopicIdPartition(topic_id, partition.partition))
        return {
            broker: self.cluster.disks[broker].open_log(name).end_offset
            for broker in self.cluster.spec.broker_ids
            if name in self.cluster.disks[broker].log_names()
        }

    # -- keeping the truth ---------------------------------------------------------------------------------------------

    def note_crash(self, broker: NodeId, lost: dict[TopicPartition, int]) -> None:
        """A crash took records of these partitions off the broker's disk (partition -> records)."""
        for partition, count in lost.items():
            if count:
                self.of(partition).lossy.add(broker)
                self._judge(partition)

    def note_partition(self, partition: TopicPartition, state: PartitionState) -> None:
        """The controller has committed a new state."""
        truth = self.of(partition)
        truth.lossy -= set(state.isr)
        min_isr = self.min_isr(partition, state)
        if (min_isr, state.replicas) != (truth.min_isr, truth.replicas):
            truth.min_isr, truth.replicas, truth.reached_min_isr = min_isr, state.replicas, False
        truth.reached_min_isr = truth.reached_min_isr or len(state.isr) >= min_isr
        if state.leader_recovery_state:
            truth.tolerant = False
        self._judge(partition)

    def _judge(self, partition: TopicPartition) -> None:
        truth, state = self.of(partition), self.controller_state(partition)
        if state is None:
            return
        elr = self.cluster.spec.config.features.elr
        allowed = self.min_isr(partition, state) - 1 if elr else 0
        if len(truth.lossy) > allowed:
            truth.tolerant = False
