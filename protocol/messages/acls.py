"""Access control entries: who may do what to which topic, or to the cluster (requirement G32).

Operations, types and wire values are Kafka's, as far as there is something here to guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Message

ANY_HOST = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
WILDCARD = "*"
"""As a resource name: any name. As the name in a principal: anyone."""
USER_PREFIX = "User:"
"""What every principal of an entry begins with."""


class AclResourceType(Enum):
    TOPIC = 2
    CLUSTER = 4


class PatternType(Enum):
    LITERAL = 3
    PREFIXED = 4


class AclOperation(Enum):
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


class AclPermissionType(Enum):
    DENY = 2
    ALLOW = 3


class AclEntry(Message):
    """`principal` is `User:NAME`, or `User:*` for everyone."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType = PatternType.LITERAL
    principal: str
    host: str = ANY_HOST
    operation: AclOperation
    permission_type: AclPermissionType = AclPermissionType.ALLOW


class AclFilter(Message):
    """Matches entries that agree with every field that is given."""

    resource_type: AclResourceType | None = None
    resource_name: str | None = None
    pattern_type: PatternType | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation | None = None
    permission_type: AclPermissionType | None = None

    def matches(self, entry: AclEntry) -> bool:
        wanted = ((name, getattr(self, name)) for name in type(self).model_fields)
        return all(value is None or value == getattr(entry, name) for name, value in wanted)


class CreateAclsRequest(AdminRequest):
    creations: tuple[AclEntry, ...]


class CreateAclsResponse(AdminResponse):
    """One result per entry."""

    results: tuple[Result, ...] = ()

    def parts(self) -> Sequence[Result]:
        return self.results


class DeleteAclsRequest(AdminRequest):
    filters: tuple[AclFilter, ...]


class DeleteAclsResult(Result):
    """The entries that a filter matched, and that are gone."""

    matching_acls: tuple[AclEntry, ...] = ()


class DeleteAclsResponse(AdminResponse):
    filter_results: tuple[DeleteAclsResult, ...] = ()

    def parts(self) -> Sequence[Result]:
        return self.filter_results


class DescribeAclsRequest(AdminRequest):
    READ_ONLY: ClassVar[bool] = True

    filter: AclFilter = AclFilter()


class DescribeAclsResponse(AdminResponse):
    acls: tuple[AclEntry, ...] = ()
