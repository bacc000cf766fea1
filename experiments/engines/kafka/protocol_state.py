"""The state of a cluster by requests to its brokers, for a broker whose metadata and logs are not Kafka's files.

Metadata names the brokers that are registered and unfenced, and the topics; DescribeTopicPartitions (KIP-966) the
partitions with their ELR and last known ELR. What responses do not have is unknown: a broker that is not named is
fenced or not registered, and counts as not registered; broker epochs, partition epochs and the recovery of a leader are
not known, and epochs are -1, which no expectation names. While no broker answers there is no view. Of replicas a leader
shows what consumers can read, a follower nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from experiments.engines.kafka.client import METADATA, Address, Connections, read_log
from experiments.engines.kafka.wire import Unanswered
from experiments.engines.port import ClusterView
from protocol.broker.context import ReplicaView
from protocol.ids import Epoch, NodeId, TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.quorum.describe import QuorumView

DESCRIBE = (75, 0)
"""DescribeTopicPartitions and its version."""
WITHIN_S = 2.0
UNKNOWN = -1
_LIMIT = 2_000
"""Partitions in a response."""
_ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


@dataclass(slots=True)
class ProtocolState:
    """The state as the first of `brokers` that answers describes it. `controller` is the id that stands for the active
    controller, which clients do not see.
    """

    brokers: Mapping[NodeId, Address]
    controller: NodeId
    records: Sequence[MetadataRecord] = ()
    _view: ClusterView | None = None
    _is_known: bool = False

    def refresh(self) -> bool:
        """Asks the brokers; returns whether the state is another than before."""
        with closing(Connections(self.brokers)) as connections:
            for broker in self.brokers:
                try:
                    found = self._described(connections, broker)
                except Unanswered:
                    continue
                has_changed, self._view = found != self._view, found
                self._is_known = True
                return has_changed
        self._is_known = False
        return False

    def _described(self, connections: Connections, broker: NodeId) -> ClusterView:
        connection = connections.of(broker)
        metadata = connection.call(*METADATA, _ALL_TOPICS, WITHIN_S)
        registered = {
            it.node_id: BrokerRegistration(it.node_id, UNKNOWN, "", fenced=False, rack=it.rack)
            for it in metadata.brokers
        }
        names = sorted(topic.name for topic in metadata.topics)
        cursor, partitions = None, dict[TopicPartition, PartitionState]()
        while names:
            wanted = {"topics": [{"name": name} for name in names], "response_partition_limit": _LIMIT}
            response = connection.call(*DESCRIBE, {**wanted, "cursor": cursor}, WITHIN_S)
            for topic in response.topics:
                for it in topic.partitions:
                    partitions[TopicPartition(topic.name, it.partition_index)] = _state(it)
            following = response.next_cursor
            if following is None:
                break
            cursor = {"topic_name": following.topic_name, "partition_index": following.partition_index}
        return ClusterView(partitions, registered, (self.controller,))

    def view(self) -> ClusterView:
        """The state that was described last."""
        return self._view or ClusterView({}, {}, (self.controller,))

    def quorum(self, running: Mapping[NodeId, Epoch]) -> Iterator[tuple[NodeId, QuorumView]]:
        """One active controller while a broker answers; nothing is known of others."""
        if self._is_known:
            yield self.controller, QuorumView("leader", "", 0, True, ())

    def is_held_without(self, node: NodeId) -> bool:
        """True: whose disks have what is not known."""
        return True

    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        """A leader's replica, by what consumers can read."""
        state = self.view().partitions.get(partition)
        if state is None or state.leader != broker:
            return None
        found = read_log(self.brokers[broker], partition, WITHIN_S)
        return None if found is None else ReplicaView(True, state.leader_epoch, found[1], found[1])

    def holds(self, broker: NodeId, partition: TopicPartition) -> bool:
        return self.replica(broker, partition) is not None

    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        """What consumers can read from a leader."""
        found = read_log(self.brokers[broker], partition, WITHIN_S)
        return () if found is None else found[0]


def _state(described: Any) -> PartitionState:
    """A partition of the response. A broker without the ELR's fields has none."""
    return PartitionState(
        replicas=tuple(described.replica_nodes),
        isr=tuple(described.isr_nodes),
        elr=tuple(described.eligible_leader_replicas or ()),
        last_known_elr=tuple(described.last_known_elr or ()),
        leader=described.leader_id,
        leader_epoch=described.leader_epoch,
        partition_epoch=UNKNOWN,
    )
