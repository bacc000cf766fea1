"""Access control entries: who may do what to which topic or consumer group, or to the cluster (requirement G32).

Operations, types and wire values are Kafka's, as far as there is something here to guard.
"""

from __future__ import annotations

from enum import Enum

from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Message, field_values
from protocol.values import direct

ANY_HOST = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""
WILDCARD = "*"
"""As a resource name: any name. As the name in a principal: any principal."""
USER_PREFIX = "User:"
"""The prefix of every principal in an entry."""


@direct
class AclResourceType(Enum):
    """Kafka's wire values."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


@direct
class PatternType(Enum):
    """Kafka's wire values. PREFIXED matches every resource name that starts with the entry's."""

    LITERAL = 3
    PREFIXED = 4


@direct
class AclOperation(Enum):
    """Kafka's wire values."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


@direct
class AclPermissionType(Enum):
    """Kafka's wire values. A matching DENY entry overrides every ALLOW entry."""

    DENY = 2
    ALLOW = 3


class AclEntry(Message):
    """Allows or denies `principal` (`User:NAME`, or `User:*` for all) an operation on a resource."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType = PatternType.LITERAL
    principal: str
    host: str = ANY_HOST
    operation: AclOperation
    permission_type: AclPermissionType = AclPermissionType.ALLOW


class AclFilter(Message):
    """Matches entries whose fields equal every field that is not null."""

    resource_type: AclResourceType | None = None
    resource_name: str | None = None
    pattern_type: PatternType | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation | None = None
    permission_type: AclPermissionType | None = None

    @staticmethod
    def exactly(entry: AclEntry) -> AclFilter:
        return AclFilter(**field_values(entry))

    def matches(self, entry: AclEntry) -> bool:
        wanted = field_values(self).items()
        return all(value is None or value == getattr(entry, name) for name, value in wanted)


class CreateAclsRequest(AdminRequest):
    """Creates access control entries."""

    creations: tuple[AclEntry, ...]


class CreateAclsResponse(AdminResponse):
    """One result per entry to create."""

    results: tuple[Result, ...] = ()


class DeleteAclsRequest(AdminRequest):
    """Deletes the entries that match a filter."""

    filters: tuple[AclFilter, ...]


class DeleteAclsResult(Result):
    """The entries that a filter matched, which are deleted."""

    matching_acls: tuple[AclEntry, ...] = ()


class DeleteAclsResponse(AdminResponse):
    """One result per filter."""

    filter_results: tuple[DeleteAclsResult, ...] = ()


class DescribeAclsRequest(AdminRequest, read_only=True):
    """Requests the entries that match a filter."""

    filter: AclFilter = AclFilter()


class DescribeAclsResponse(AdminResponse):
    """The matching entries."""

    acls: tuple[AclEntry, ...] = ()
