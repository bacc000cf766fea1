"""Requests of admins that only read, in generation `v3`: the controller reads the store for the client.

Brokers of `v3` know only the partitions that they hold, so the answer is made of what the store has published at that
moment: the nodes become a metadata image, from which later generations answer (`metadata/queries.py`). One request
reads the nodes of the topics that it names, or of all topics. What `v3` does not have is not answered: features, access
control, the quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from protocol.config import ClusterConfig
from protocol.ids import BrokerId, TopicPartition
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.cluster import DescribeClusterRequest
from protocol.messages.configs import DescribeConfigsRequest, ListConfigResourcesRequest
from protocol.messages.partitions import ListPartitionReassignmentsRequest
from protocol.messages.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from protocol.messages.store import GetData
from protocol.messages.topics import DescribeTopicRequest
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import answer
from protocol.v3.controller.context import Controller
from protocol.v3.controller.procedure import Procedure, read
from protocol.v3.controller.publishing import children
from protocol.v3.store import paths
from protocol.v3.store.records import DamagedNodeError, TopicNode
from protocol.v3.store.view import StoreView, store_view

QUERIES = (
    DescribeClusterRequest,
    DescribeTopicRequest,
    DescribeConfigsRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
)
"""The requests that `query` answers."""

Nodes = dict[str, tuple[bytes, int]]


def query(config: ClusterConfig, controller: Controller, request: AdminRequest) -> Procedure[AdminResponse]:
    """Answers one of `QUERIES`."""
    named = request.topics if isinstance(request, DescribeTopicRequest) else ()
    nodes = yield from _read_nodes(named)
    image = MetadataImage(config)
    for record in _records(store_view(nodes), controller.leaving):
        image.replay(record)
    return answer(image, controller.author.controller, request)


def _read_nodes(named: Collection[str]) -> Procedure[Nodes]:
    """Data and version of the nodes of brokers, topics, partitions and reassignments; without names of all topics."""
    nodes: Nodes = {}
    brokers = yield from children(paths.BROKER_IDS, watch=False)
    yield from _read_into(nodes, (f"{paths.BROKER_IDS}/{name}" for name in brokers))
    existing = yield from children(paths.TOPICS, watch=False)
    topics = [name for name in existing if not named or name in named]
    yield from _read_into(nodes, map(paths.topic, topics))
    keys = [key for name in topics for key in _partitions(nodes, name)]
    yield from _read_into(nodes, map(paths.leader_and_isr, keys))
    moving = yield from children(paths.REASSIGNED, watch=False)
    yield from _read_into(nodes, (paths.request(paths.REASSIGNED, key) for key in keys if key.topic in moving))
    return nodes


def _read_into(nodes: Nodes, wanted: Iterable[str]) -> Procedure[None]:
    found = list(wanted)
    results = yield from read(GetData(path=path) for path in found)
    nodes |= {
        path: (result.data, result.version) for path, result in zip(found, results, strict=True) if not result.error
    }


def _partitions(nodes: Nodes, name: str) -> list[TopicPartition]:
    path = paths.topic(name)
    try:
        topic = TopicNode.decode(path, nodes[path][0]) if path in nodes else None
    except DamagedNodeError:  # which the controller has reported
        topic = None
    return [] if topic is None else [TopicPartition(name, index) for index in sorted(topic.partitions)]


def _records(view: StoreView, leaving: Collection[BrokerId]) -> Iterator[MetadataRecord]:
    """The metadata records of what the store has published."""
    for broker, registration in view.brokers.items():
        yield RegisterBrokerRecord(
            broker_id=broker,
            broker_epoch=registration.broker_epoch,
            incarnation_id=registration.incarnation_id,
            fenced=False,
            in_controlled_shutdown=broker in leaving,
        )
    for name, topic_id in view.topic_ids.items():
        yield TopicRecord(name=name, topic_id=topic_id)
        for config, value in sorted(view.topic_configs[name].items()):
            yield ConfigRecord(topic_id=topic_id, name=config, value=value)
    for key, state in view.partitions.items():
        yield PartitionRecord(
            topic_id=view.topic_ids[key.topic],
            partition_id=key.partition,
            replicas=state.replicas,
            isr=state.isr,
            removing_replicas=state.removing_replicas,
            adding_replicas=state.adding_replicas,
            leader=state.leader,
            leader_recovery_state=int(state.leader_recovery_state),
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            first_leader_epoch=state.first_leader_epoch,
        )
