"""Authorization: the rules of Kafka's standard authorizer, as pure functions of the metadata and the static config.

With `authorizer.class.name=standard` it denies by default (requirement G32). A super user may do anything.
Otherwise a matching DENY entry takes precedence over any ALLOW entry. An allowed READ, WRITE, DELETE or ALTER includes
DESCRIBE, an allowed ALTER_CONFIGS includes DESCRIBE_CONFIGS; a denied operation denies only itself. A resource without
any entry is open to all principals only with `allow.everyone.if.no.acl.found`.

A client's request is authorized by its principal. Requests that nodes send in their own name (registration, heartbeats,
fetches, AlterPartition) are authorized by their sender, which the transport authenticates: the cluster's own nodes are
trusted, a client node needs CLUSTER_ACTION under its own principal. Nodes have no addresses here, so an entry is for
all hosts.
"""

from __future__ import annotations

from functools import cache

from protocol.config import ALLOW_EVERYONE_IF_NO_ACL_FOUND, AUTHORIZER_CLASS_NAME, SUPER_USERS
from protocol.errors import ErrorCode, Refused
from protocol.ids import NodeId, is_client, node_name
from protocol.messages.acls import CLUSTER_NAME, USER_PREFIX, WILDCARD, AclOperation, AclPermissionType, AclResourceType
from protocol.messages.admin import AdminRequest
from protocol.messages.quorum import DescribeQuorumRequest
from protocol.metadata.image import MetadataImage

BROKER_PRINCIPAL = "Broker:"
"""The principal of what a broker asks on its own behalf, which may do anything. No client has it: theirs are users."""
_INCLUDED_IN = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
_EVERYONE = f"{USER_PREFIX}{WILDCARD}"
_CLUSTER_OPERATIONS = frozenset(AclOperation) - {
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
}
_TOPIC_OPERATIONS = frozenset(AclOperation) - {AclOperation.ALL, AclOperation.CLUSTER_ACTION}
_GROUP_OPERATIONS = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE)


def is_enabled(image: MetadataImage) -> bool:
    return bool(image.defaults.values[AUTHORIZER_CLASS_NAME])


def node_principal(client: NodeId) -> str:
    """The default principal of a client node: `User:client-3000`."""
    return f"{USER_PREFIX}{node_name(client)}"


def may_act_for_cluster(image: MetadataImage, sender: NodeId) -> bool:
    """Whether `sender` is a node of the cluster, or a client with CLUSTER_ACTION (B9, G8)."""
    return not is_client(sender) or may(image, node_principal(sender), AclOperation.CLUSTER_ACTION)


def may_administer_quorum(image: MetadataImage, request: AdminRequest) -> bool:
    """Whether the principal may describe the quorum, or change its voters (G32)."""
    operation = AclOperation.DESCRIBE if isinstance(request, DescribeQuorumRequest) else AclOperation.ALTER
    return may(image, request.principal, operation)


def may(image: MetadataImage, principal: str, operation: AclOperation, topic: str | None = None) -> bool:
    """Whether the principal may perform `operation` on a topic, or on the cluster (`topic` None)."""
    resource = (AclResourceType.CLUSTER, CLUSTER_NAME) if topic is None else (AclResourceType.TOPIC, topic)
    return _may(image, principal, operation, *resource)


def may_on_group(image: MetadataImage, principal: str, operation: AclOperation, group: str) -> bool:
    """Whether the principal may perform `operation` on a consumer group."""
    return _may(image, principal, operation, AclResourceType.GROUP, group)


def _may(
    image: MetadataImage, principal: str, operation: AclOperation, resource_type: AclResourceType, name: str
) -> bool:
    if not is_enabled(image) or principal == BROKER_PRINCIPAL:
        return True
    if principal in _super_users(str(image.defaults.values[SUPER_USERS])):
        return True
    entries = list(image.acls_for(resource_type, name))
    if not entries:
        return bool(image.defaults.values[ALLOW_EVERYONE_IF_NO_ACL_FOUND])
    mine = [entry for entry in entries if entry.principal in (principal, _EVERYONE)]
    denied = {entry.operation for entry in mine if entry.permission_type is AclPermissionType.DENY}
    allowed = {entry.operation for entry in mine if entry.permission_type is AclPermissionType.ALLOW}
    if denied & {operation, AclOperation.ALL}:
        return False
    return bool(allowed & {operation, AclOperation.ALL, *_INCLUDED_IN.get(operation, ())})


def require_access(
    image: MetadataImage, request: AdminRequest, operation: AclOperation, topic: str | None = None
) -> None:
    """Raises Refused unless the principal of the request has `operation` on the topic, or on the cluster (None)."""
    if not may(image, request.principal, operation, topic):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        resource = "the cluster" if topic is None else f"topic {topic!r}"
        raise Refused(error, f"{request.principal} may not {operation.name} {resource}")


def require_authorizer(image: MetadataImage, request: AdminRequest, operation: AclOperation) -> None:
    """As `require_access` for the cluster; raises Refused with SECURITY_DISABLED where it has no authorizer."""
    if not is_enabled(image):
        raise Refused(ErrorCode.SECURITY_DISABLED, "the cluster has no authorizer")
    require_access(image, request, operation)


def may_write_somewhere(image: MetadataImage, principal: str) -> bool:
    """Whether some entry allows the principal to write to a topic; DENY entries are not considered (KIP-679)."""
    values = image.defaults.values
    open_to_all = not is_enabled(image) or bool(values[ALLOW_EVERYONE_IF_NO_ACL_FOUND])
    return (
        open_to_all
        or principal in _super_users(str(values[SUPER_USERS]))
        or any(
            entry.resource_type is AclResourceType.TOPIC
            and entry.principal in (principal, _EVERYONE)
            and entry.permission_type is AclPermissionType.ALLOW
            and entry.operation in (AclOperation.WRITE, AclOperation.ALL)
            for entry in image.acls
        )
    )


def authorized_operations(image: MetadataImage, principal: str, topic: str) -> int:
    """The operations that the principal may perform on a topic, as a bit field: bit N is wire value N."""
    return sum(1 << operation.value for operation in _TOPIC_OPERATIONS if may(image, principal, operation, topic))


def group_operations(image: MetadataImage, principal: str, group: str) -> int:
    """The operations that the principal may perform on a consumer group, as `authorized_operations`."""
    return sum(
        1 << operation.value for operation in _GROUP_OPERATIONS if may_on_group(image, principal, operation, group)
    )


def cluster_operations(image: MetadataImage, principal: str) -> int:
    """The operations that the principal may perform on the cluster, as `authorized_operations`."""
    return sum(1 << operation.value for operation in _CLUSTER_OPERATIONS if may(image, principal, operation))


@cache
def _super_users(configured: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, configured.split(";"))))
