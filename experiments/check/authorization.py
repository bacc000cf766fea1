"""The rule `ChangesAreAuthorized`: a request changes the metadata only if its principal has the right by the metadata
of that moment (G32).

The active controller decides a request in the event in which it arrives. So the rule reads the principal's rights
before that event, and after it the records that the controller has appended: each must concern a resource on which the
principal had the right, or the cluster, where a right on the cluster suffices. The rights by request are those of
Kafka's documentation of its protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from experiments.engines.sim.cluster import SimCluster
from protocol.controller.administration import CHANGE_REQUESTS
from protocol.ids import NodeId, Offset
from protocol.messages import acls, cluster, configs, partitions, topics
from protocol.messages.acls import AclOperation
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.records import MetadataRecord, TopicRecord
from protocol.metadata.authorizer import is_enabled, may
from protocol.nodes.controller import ControllerNode
from protocol.nodes.metadata_feed import log_entries

RULE = "ChangesAreAuthorized"

_RIGHTS: Mapping[type[AdminRequest], tuple[AclOperation, Literal["cluster", "resource", "either"]]] = {
    partitions.ElectLeadersRequest: (AclOperation.CLUSTER_ACTION, "cluster"),
    partitions.AlterPartitionReassignmentsRequest: (AclOperation.ALTER, "cluster"),
    cluster.UpdateFeaturesRequest: (AclOperation.ALTER, "cluster"),
    cluster.UnregisterBrokerRequest: (AclOperation.ALTER, "cluster"),
    cluster.UnregisterControllerRequest: (AclOperation.ALTER, "cluster"),
    acls.CreateAclsRequest: (AclOperation.ALTER, "cluster"),
    acls.DeleteAclsRequest: (AclOperation.ALTER, "cluster"),
    topics.CreateTopicsRequest: (AclOperation.CREATE, "either"),
    topics.DeleteTopicsRequest: (AclOperation.DELETE, "either"),
    topics.CreatePartitionsRequest: (AclOperation.ALTER, "resource"),
    topics.RemovePartitionsRequest: (AclOperation.ALTER, "resource"),
    configs.AlterConfigsRequest: (AclOperation.ALTER_CONFIGS, "resource"),
    configs.IncrementalAlterConfigsRequest: (AclOperation.ALTER_CONFIGS, "resource"),
}
"""The right that a request needs: on the cluster, whatever it changes; on each resource that it changes, which is a
topic, or the cluster for its own configs; or on either.
"""
assert _RIGHTS.keys() < set(CHANGE_REQUESTS)


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
        _, place = _RIGHTS[type(self.request)]
        on_cluster, topic_id = self.rights[None], getattr(record, "topic_id", None)
        if place == "cluster" or topic_id is None:
            return on_cluster
        return self.rights[self.names[topic_id]] or (place == "either" and on_cluster)


class ChangesAreAuthorized:
    """Call `before` with every message that a node is about to take, and `after` when it has taken it."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._asked: _Asked | None = None

    def before(self, node: NodeId, message: Message) -> None:
        if not isinstance(message, AdminRequest) or type(message) not in _RIGHTS:
            return
        controller = self._cluster.nodes.get(node)
        if isinstance(controller, ControllerNode) and controller.is_active and is_enabled(controller.state.image):
            image, (operation, _) = controller.state.image, _RIGHTS[type(message)]
            names = {topic_id: topic.name for topic_id, topic in image.topics.items()}
            new = [topic.name for topic in message.topics] if isinstance(message, topics.CreateTopicsRequest) else []
            places = (None, *names.values(), *new)
            rights = {place: may(image, message.principal, operation, place) for place in places}
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
