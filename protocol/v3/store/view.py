"""The state of a cluster of generation `v3` as it is published in the store, for engines and experiments: published
decisions are the truth (A2). The partition epoch is the version of the partition's node. A damaged node is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.errors import ProtocolError
from protocol.ids import NO_EPOCH, NO_NODE, BrokerId, Epoch, TopicPartition
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import LeaderRecoveryState, PartitionState
from protocol.v3.store import paths
from protocol.v3.store.records import (
    REMOVED,
    BrokerNode,
    ControllerNode,
    DamagedNodeError,
    ReplicasNode,
    TopicNode,
    decode_epoch,
    stored_state,
)
from protocol.v3.store.tree import Tree


@dataclass(frozen=True, slots=True)
class StoreView:
    """What the store has published. `controller` is NO_NODE while there is none; `controller_epoch` is the last one."""

    controller: BrokerId = NO_NODE
    controller_epoch: Epoch = NO_EPOCH
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def store_view(nodes: Mapping[str, tuple[bytes, int]]) -> StoreView:
    """The view of the nodes of a store: data and version by path."""
    controller, epoch = NO_NODE, NO_EPOCH
    brokers: dict[BrokerId, BrokerRegistration] = {}
    partitions: dict[TopicPartition, PartitionState] = {}
    topic_ids: dict[str, str] = {}
    configs: dict[str, Mapping[str, str]] = {}
    for path, (data, _) in nodes.items():
        try:
            root, names = paths.locate(path)
            if path == paths.CONTROLLER:
                controller = ControllerNode.decode(path, data).brokerid
            elif path == paths.CONTROLLER_EPOCH:
                epoch = decode_epoch(path, data)
            elif root == paths.BROKER_IDS and names:
                broker = paths.number(root, names[0])
                broker_epoch = BrokerNode.decode(path, data).broker_epoch
                brokers[broker] = BrokerRegistration(broker, broker_epoch, str(broker_epoch), fenced=False)
            elif root == paths.TOPICS and len(names) == 1:
                topic = TopicNode.decode(path, data)
                topic_ids[names[0]], configs[names[0]] = topic.topic_id, topic.configs
                partitions |= _partitions(nodes, names[0], topic)
        except ProtocolError:  # a damaged node, which the controller has reported
            continue
    return StoreView(controller, epoch, brokers, partitions, topic_ids, configs)


def tree_nodes(tree: Tree) -> dict[str, tuple[bytes, int]]:
    return {path: (node.data, node.version) for path, node in tree.items()}


def _partitions(
    nodes: Mapping[str, tuple[bytes, int]], name: str, topic: TopicNode
) -> dict[TopicPartition, PartitionState]:
    """The partitions of a topic that have been initialised; replicas that a reassignment adds are among them."""
    found = {}
    for index, assigned in sorted(topic.partitions.items()):
        key = TopicPartition(name, index)
        path, request = paths.leader_and_isr(key), paths.request(paths.REASSIGNED, key)
        data, version = nodes.get(path, (REMOVED, -1))
        try:
            state = stored_state(path, data)
            target = ReplicasNode.decode(request, nodes[request][0]).replicas if request in nodes else assigned
        except DamagedNodeError:  # which the controller has reported
            continue
        if state is None:
            continue
        found[key] = PartitionState(
            replicas=tuple(dict.fromkeys((*target, *assigned))),
            isr=state.isr,
            adding_replicas=tuple(broker for broker in target if broker not in assigned),
            removing_replicas=tuple(broker for broker in assigned if broker not in target),
            leader=state.leader,
            leader_recovery_state=LeaderRecoveryState(int(state.is_unclean_leader)),
            leader_epoch=state.leader_epoch,
            partition_epoch=version,
            first_leader_epoch=topic.first_epoch,
        )
    return found
