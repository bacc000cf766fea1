"""Which messages a controller takes from which sender or principal, where that depends on the message type alone.

A table gives each type its rule; a type without a rule is open to every sender. Administration requests about topics,
configs and ACLs are authorized by their handlers, which know the resources that a request names
(`protocol/controller/controller_result.py`, `protocol/metadata/queries.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protocol.ids import NodeId, is_controller
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionRequest, BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.messages.quorum import (
    AddVoterRequest,
    DescribeQuorumRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    QuorumRequest,
    QuorumResponse,
    RemoveVoterRequest,
)
from protocol.messages.recovery import RecoveryResults
from protocol.metadata.authorizer import may_act_for_cluster, may_administer_quorum
from protocol.metadata.image import MetadataImage

_CLUSTER_ACTION_REQUESTS = (
    BrokerHeartbeatRequest,
    AlterPartitionRequest,
    BrokerRegistrationRequest,
    QuorumFetchRequest,
    FetchSnapshotRequest,
    RecoveryResults,
    ShutdownCommand,
)
"""Sent by nodes of the cluster and by the experiment; a client needs CLUSTER_ACTION (G8)."""
_CONTROLLER_MESSAGES = (*QuorumRequest.__subclasses__(), *QuorumResponse.__subclasses__())
"""Exchanged between controllers only: elections, and the answers of a leader. Fetches are CLUSTER_ACTION requests."""
_QUORUM_ADMINISTRATION = (AddVoterRequest, RemoveVoterRequest, DescribeQuorumRequest)
"""Requests of operators about the quorum, judged by their principal (G32)."""

Rule = Callable[[MetadataImage, NodeId, Any], bool]


def is_authorized(image: MetadataImage, sender: NodeId, message: Message) -> bool:
    """Whether sender or principal may send a message of this type under the ACLs of `image`."""
    rule = _RULES.get(type(message))
    return rule is None or rule(image, sender, message)


_RULES: Mapping[type[Message], Rule] = {
    **dict.fromkeys(_CONTROLLER_MESSAGES, lambda image, sender, message: is_controller(sender)),
    **dict.fromkeys(_CLUSTER_ACTION_REQUESTS, lambda image, sender, message: may_act_for_cluster(image, sender)),
    **dict.fromkeys(_QUORUM_ADMINISTRATION, lambda image, sender, message: may_administer_quorum(image, message)),
}
