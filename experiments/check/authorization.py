"""The rule `ChangesAreAuthorized`: a request changes the metadata only if its principal has the right by the metadata
of that moment (G32).

The active controller decides a request in the event in which it arrives. So the rule reads the principal's rights
before that event, and after it the records that the controller has appended: each must concern a resource on which the
principal had the right, or the cluster, where a right on the cluster suffices. The rights by request are those of
Kafka's documentation of its protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from experiments.engines.sim.cluster import SimCluster
from protocol.controller.administration import CHANGE_REQUESTS
from protocol.ids import NodeId, Offset
from protocol.messages.acls import AclOperation, CreateAclsRequest, DeleteAclsRequest
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.cluster import UnregisterBrokerRequest, UpdateFeaturesRequest
from protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.partitions import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from protocol.messages.records import MetadataRecord, TopicRecord
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    RemovePartitionsRequest,
)
from protocol.metadata.authorizer import is_enabled, may
from protocol.metadata.image import MetadataImage
from protocol.nodes.controller import ControllerNode
from protocol.nodes.metadata_feed import log_entries

RULE = "ChangesAreAuthorized"

_ON_CLUSTER: Mapping[type[AdminRequest], AclOperation] = {
    ElectLeadersRequest: AclOperation.CLUSTER_ACTION,
    AlterPartitionReassignmentsRequest: AclOperation.ALTER,
    UpdateFeaturesRequest: AclOperation.ALTER,
    UnregisterBrokerRequest: AclOperation.ALTER,
    CreateAclsRequest: AclOperation.ALTER,
    DeleteAclsRequest: AclOperation.ALTER,
}
"""Requests that need this right on the cluster, whatever they change."""
_ON_EITHER: Mapping[type[AdminRequest], AclOperation] = {
    CreateTopicsRequest: AclOperation.CREATE,
    DeleteTopicsRequest: AclOperation.DELETE,
}
"""Requests that need this right on the cluster or on each topic."""
_ON_RESOURCE: Mapping[type[AdminRequest], AclOperation] = {
    CreatePartitionsRequest: AclOperation.ALTER,
    RemovePartitionsRequest: AclOperation.ALTER,
    AlterConfigsRequest: AclOperation.ALTER_CONFIGS,
    IncrementalAlterConfigsRequest: AclOperation.ALTER_CONFIGS,
}
"""Requests that need this right on what they change: a topic, or the cluster for its own configs."""
_OPERATIONS: Mapping[type[AdminRequest], AclOperation] = {**_ON_CLUSTER, **_ON_EITHER, **_ON_RESOURCE}
assert _OPERATIONS.keys() < set(CHANGE_REQUESTS)


class _Asked(NamedTuple):
    """A request under way: the log end before it, the names of topics by id, and on which of them, or on the cluster
    (None), the principal had the right.
    """

    request: AdminRequest
    end: Offset
    names: dict[str, str]
    rights: Mapping[str | None, bool]

    def allows(self, record: MetadataRecord) -> bool:
        if isinstance(record, TopicRecord):
            self.names[record.topic_id] = record.name
        cluster, topic_id = self.rights[None], getattr(record, "topic_id", None)
        if type(self.request) in _ON_CLUSTER or topic_id is None:
            return cluster
        topic = self.rights[self.names[topic_id]]
        return topic or (type(self.request) in _ON_EITHER and cluster)


class ChangesAreAuthorized:
    """Call `before` with every message that a node is about to take, and `after` when it has taken it."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._asked: _Asked | None = None

    def before(self, node: NodeId, message: Message) -> None:
        """The node is about to take the message."""
        operation = _OPERATIONS.get(type(message)) if isinstance(message, AdminRequest) else None
        controller = self._cluster.nodes.get(node)
        if operation is None or not isinstance(controller, ControllerNode) or not controller.is_active:
            return
        image = controller.state.image
        if is_enabled(image) and isinstance(message, AdminRequest):
            names = {topic_id: topic.name for topic_id, topic in image.topics.items()}
            rights = _rights(image, message, operation, [*names.values(), *_created(message)])
            self._asked = _Asked(message, image.next_offset, names, rights)

    def after(self, node: NodeId) -> str:
        """The violation in what the node has appended for the message, empty if there is none."""
        if self._asked is None:
            return ""
        asked, self._asked = self._asked, None
        controller = self._cluster.nodes[node]
        assert isinstance(controller, ControllerNode)
        for entries in log_entries(controller.replica, asked.end, controller.state.image.next_offset):
            for record in () if entries.is_snapshot else entries.records:
                if not asked.allows(record):
                    request = asked.request
                    return f"{request.principal} had no right to what {type(request).__name__} has changed: {record}"
        return ""


def _created(request: AdminRequest) -> list[str]:
    """The topics that a request names and that may not exist yet."""
    return [topic.name for topic in request.topics] if isinstance(request, CreateTopicsRequest) else []


def _rights(
    image: MetadataImage, request: AdminRequest, operation: AclOperation, topics: list[str]
) -> Mapping[str | None, bool]:
    """Whether the request's principal may perform the operation on the cluster (None) and on each topic."""
    return {topic: may(image, request.principal, operation, topic) for topic in (None, *topics)}
