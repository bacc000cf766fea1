"""CreateAcls and DeleteAcls: access control entries as records (requirement G32). Without an authorizer they are
refused with SECURITY_DISABLED, as in Kafka. Both need ALTER on the cluster.

Departures from Kafka: an entry for some hosts only is refused, since nodes have no addresses here; so is an entry whose
principal is not a user, which Kafka stores although no client can have it.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode, Refused
from protocol.messages.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    USER_PREFIX,
    WILDCARD,
    AclEntry,
    AclOperation,
    AclResourceType,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResult,
)
from protocol.messages.admin import AdminRequest, Result
from protocol.messages.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord
from protocol.metadata.authorizer import is_enabled, require_cluster


def create_acls(state: ControllerState, request: CreateAclsRequest) -> ControllerResult:
    """One result per entry: INVALID_REQUEST for an invalid entry, NONE without a record for one that exists already."""
    _require_alter(state, request)
    new: dict[AclEntry, None] = {}
    results = []
    for entry in request.creations:
        invalid = _entry_error(entry)
        error = ErrorCode.INVALID_REQUEST if invalid else ErrorCode.NONE
        results.append(Result(error=error, message=invalid))
        if not invalid and entry not in state.image.acls:
            new[entry] = None
    records: list[MetadataRecord] = [AccessControlEntryRecord(entry=entry) for entry in new]
    return ControllerResult(CreateAclsResponse(correlation_id=request.correlation_id, results=tuple(results)), records)


def delete_acls(state: ControllerState, request: DeleteAclsRequest) -> ControllerResult:
    """Removes every entry that one of the filters matches; a filter without fields matches all."""
    _require_alter(state, request)
    gone: dict[AclEntry, None] = {}
    results = []
    for wanted in request.filters:
        matching = tuple(entry for entry in state.image.acls if wanted.matches(entry))
        gone.update(dict.fromkeys(matching))
        results.append(DeleteAclsResult(matching_acls=matching))
    records: list[MetadataRecord] = [RemoveAccessControlEntryRecord(entry=entry) for entry in gone]
    response = DeleteAclsResponse(correlation_id=request.correlation_id, filter_results=tuple(results))
    return ControllerResult(response, records)


def _require_alter(state: ControllerState, request: AdminRequest) -> None:
    if not is_enabled(state.image):
        raise Refused(ErrorCode.SECURITY_DISABLED, "the cluster has no authorizer")
    require_cluster(state.image, request, AclOperation.ALTER)


def _entry_error(entry: AclEntry) -> str:
    """What was found and what is allowed; empty for a valid entry."""
    if not entry.principal.startswith(USER_PREFIX) or entry.principal == USER_PREFIX:
        return f"found principal {entry.principal!r}; allowed: {USER_PREFIX}NAME or {USER_PREFIX}{WILDCARD}"
    if entry.host != ANY_HOST:
        return f"found host {entry.host!r}; allowed: {ANY_HOST}"
    if not entry.resource_name:
        return "an empty resource name"
    if entry.resource_type is AclResourceType.CLUSTER and entry.resource_name != CLUSTER_NAME:
        return f"found cluster {entry.resource_name!r}; allowed: {CLUSTER_NAME}"
    return ""
