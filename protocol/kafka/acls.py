"""DescribeAcls, CreateAcls and DeleteAcls: access control entries of topics, of groups and of the cluster.

Entries of resources that do not exist here (transactional ids, delegation tokens, users) are not created:
INVALID_REQUEST. A filter that asks for them matches nothing.

A filter's pattern type ANY matches every entry with the name, MATCH those whose pattern matches the name: literally, as
a prefix, or as the wildcard. The project's filters compare fields; where a filter to delete says MATCH, the broker
expands it by its own metadata to the entries that match.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.calls import Handler
from protocol.kafka.forward import (
    DEFAULT_TIMEOUT_MS,
    allowed,
    change,
    error_fields,
    member,
    parts,
    read,
    refused,
)
from protocol.kafka.view import Client, View
from protocol.kafka.wire import KafkaRequest, Values
from protocol.messages.acls import (
    WILDCARD,
    AclEntry,
    AclFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    PatternType,
)
from protocol.metadata.image import MetadataImage

_ANY = 1
"""Kafka's wire value for any member of an enumeration."""
_MATCH = 2
_HIGHEST = {"resource_type": 7, "pattern_type": 4, "operation": 15, "permission_type": 3}
"""Kafka's highest wire value of each enumeration; what is between and not here matches no entry."""
_KINDS: dict[str, type[Enum]] = {
    "resource_type": AclResourceType,
    "pattern_type": PatternType,
    "operation": AclOperation,
    "permission_type": AclPermissionType,
}


class _Invalid(Exception):
    """Why a filter or an entry is refused."""


class _Filter:
    """A filter of a request as fields to compare; `matched_name` where its pattern type is MATCH."""

    def __init__(self, item: Any) -> None:
        values = {
            "resource_type": item.resource_type_filter,
            "pattern_type": getattr(item, "pattern_type_filter", PatternType.LITERAL.value),
            "operation": item.operation,
            "permission_type": item.permission_type,
        }
        is_match = values["pattern_type"] == _MATCH
        self.matched_name: str | None = item.resource_name_filter if is_match else None
        self.can_match = True
        if is_match:
            values["pattern_type"] = _ANY
        wanted: dict[str, Any] = {}
        for name, value in values.items():
            if not _ANY <= value <= _HIGHEST[name]:
                raise _Invalid(f"found {name} {value}; allowed: 1 (ANY), {allowed(_KINDS[name])}")
            wanted[name] = None if value == _ANY else member(_KINDS[name], value)
            self.can_match = self.can_match and (value == _ANY or wanted[name] is not None)
        self.fields = AclFilter(
            **wanted,
            resource_name=None if is_match else item.resource_name_filter,
            principal=item.principal_filter,
            host=item.host_filter,
        )

    def matches(self, entry: AclEntry) -> bool:
        return self.can_match and self.fields.matches(entry) and self._matches_name(entry)

    def _matches_name(self, entry: AclEntry) -> bool:
        name = self.matched_name
        if name is None:
            return True
        if entry.pattern_type is PatternType.PREFIXED:
            return name.startswith(entry.resource_name)
        return entry.resource_name in (name, WILDCARD)

    def expanded(self, image: MetadataImage) -> list[AclFilter]:
        """Filters that compare fields and match the same entries."""
        if not self.can_match:
            return []
        if self.matched_name is None:
            return [self.fields]
        return [AclFilter.exactly(entry) for entry in image.acls if self.matches(entry)]


def describe_acls(view: View, client: Client, request: KafkaRequest) -> Values:
    """The entries that match a filter, by resource."""
    try:
        wanted = _Filter(request.body)
    except _Invalid as invalid:
        return {**refused(ErrorCode.INVALID_REQUEST, str(invalid)), "resources": ()}
    question = DescribeAclsRequest(correlation_id=0, principal=client.principal, filter=wanted.fields)
    found = read(view, question, DescribeAclsResponse)
    resources: dict[tuple[int, str, int], list[Values]] = {}
    for entry in found.acls:
        if wanted.matches(entry):
            key = (entry.resource_type.value, entry.resource_name, entry.pattern_type.value)
            resources.setdefault(key, []).append(_access(entry))
    return {
        **error_fields(found),
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": entries}
            for (kind, name, pattern), entries in resources.items()
        ],
    }


def _access(entry: AclEntry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation.value,
        "permission_type": entry.permission_type.value,
    }


def create_acls(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Creates entries, each independently of the others."""
    entries: dict[int, AclEntry] = {}
    errors: dict[int, Values] = {}
    for place, item in enumerate(request.body.creations):
        try:
            entries[place] = _entry(item)
        except _Invalid as invalid:
            errors[place] = refused(ErrorCode.INVALID_REQUEST, str(invalid))
    forwarded = CreateAclsRequest(correlation_id=0, principal=client.principal, creations=tuple(entries.values()))
    answer = yield from change(view, forwarded, CreateAclsResponse, DEFAULT_TIMEOUT_MS)
    errors |= zip(entries, map(error_fields, parts(answer, len(entries))), strict=True)
    return {"results": [errors[place] for place in range(len(request.body.creations))]}


def _entry(item: Any) -> AclEntry:
    values = {
        "resource_type": item.resource_type,
        "pattern_type": getattr(item, "resource_pattern_type", PatternType.LITERAL.value),
        "operation": item.operation,
        "permission_type": item.permission_type,
    }
    fields: dict[str, Any] = {name: member(_KINDS[name], value) for name, value in values.items()}
    for name, found in fields.items():
        if found is None:
            raise _Invalid(f"found {name} {values[name]}; allowed: {allowed(_KINDS[name])}")
    return AclEntry(resource_name=item.resource_name, principal=item.principal, host=item.host, **fields)


def delete_acls(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Deletes the entries that match any of the filters; the result of each filter has those that it matched."""
    expanded: dict[int, list[AclFilter]] = {}
    errors: dict[int, Values] = {}
    for place, item in enumerate(request.body.filters):
        try:
            expanded[place] = _Filter(item).expanded(view.image)
        except _Invalid as invalid:
            errors[place] = refused(ErrorCode.INVALID_REQUEST, str(invalid)) | {"matching_acls": ()}
    filters = tuple(item for items in expanded.values() for item in items)
    forwarded = DeleteAclsRequest(correlation_id=0, principal=client.principal, filters=filters)
    answer = yield from change(view, forwarded, DeleteAclsResponse, DEFAULT_TIMEOUT_MS)
    results = iter(answer.filter_results)
    for place, items in expanded.items():
        matching: Iterable[AclEntry] = ()
        if answer.error is ErrorCode.NONE:
            matching = [entry for _ in items for entry in next(results).matching_acls]
        errors[place] = {**error_fields(answer), "matching_acls": [_deleted(entry) for entry in matching]}
    return {"filter_results": [errors[place] for place in range(len(request.body.filters))]}


def _deleted(entry: AclEntry) -> Values:
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "resource_type": entry.resource_type.value,
        "resource_name": entry.resource_name,
        "pattern_type": entry.pattern_type.value,
        **_access(entry),
    }
