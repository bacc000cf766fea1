"""Administration requests that change something: the table of their handlers, which `ControllerNode` serves while it is
active, and the handlers of producer ids and access control entries (requirement G32).

Every producer id is allocated once, to one producer, as long as the cluster exists: the next id is in the metadata log,
so that every later controller continues behind it (KIP-730). Apache Kafka's brokers allocate blocks of ids and hand
them out; here the controller allocates each id, which costs one record per producer and wastes no id. A principal that
may write to some topic may have an id (KIP-679).

Departures from Kafka: an access control entry for some hosts only is refused, since nodes have no addresses here; so is
an entry whose principal is not a user, which Kafka stores although no client can have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain

from protocol.controller import brokers, configs, controllers, elections, features, partitions, reassignments, topics
from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult, Handler
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
from protocol.messages.admin import AdminRequest, InitProducerIdRequest, InitProducerIdResponse, Result
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterControllerRequest, UpdateFeaturesRequest
from protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.partitions import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from protocol.messages.records import AccessControlEntryRecord, ProducerIdsRecord, RemoveAccessControlEntryRecord
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    RemovePartitionsRequest,
)
from protocol.metadata.authorizer import may_write_somewhere, require_authorizer


def init_producer_id(state: ControllerState, request: InitProducerIdRequest) -> ControllerResult:
    """A new producer id with epoch 0; CLUSTER_AUTHORIZATION_FAILED where the principal may write to no topic."""
    if not may_write_somewhere(state.image, request.principal):
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{request.principal} may write to no topic")
    producer_id = state.image.next_producer_id
    response = InitProducerIdResponse(correlation_id=request.correlation_id, producer_id=producer_id, producer_epoch=0)
    return ControllerResult(response, (ProducerIdsRecord(next_producer_id=producer_id + 1),))


def create_acls(state: ControllerState, request: CreateAclsRequest) -> ControllerResult:
    """One result per entry: INVALID_REQUEST for an invalid entry, NONE without a record for one that exists already."""
    require_authorizer(state.image, request, AclOperation.ALTER)
    reasons = [_entry_error(entry) for entry in request.creations]
    results = tuple(
        Result(error=ErrorCode.INVALID_REQUEST if reason else ErrorCode.NONE, message=reason) for reason in reasons
    )
    valid = [entry for entry, reason in zip(request.creations, reasons, strict=True) if not reason]
    new = [entry for entry in dict.fromkeys(valid) if entry not in state.image.acls]
    records = [AccessControlEntryRecord(entry=entry) for entry in new]
    return ControllerResult(CreateAclsResponse(correlation_id=request.correlation_id, results=results), records)


def delete_acls(state: ControllerState, request: DeleteAclsRequest) -> ControllerResult:
    """Removes every entry that one of the filters matches; a filter without fields matches all."""
    require_authorizer(state.image, request, AclOperation.ALTER)
    matching = [tuple(filter(wanted.matches, state.image.acls)) for wanted in request.filters]
    results = tuple(DeleteAclsResult(matching_acls=entries) for entries in matching)
    records = [RemoveAccessControlEntryRecord(entry=entry) for entry in dict.fromkeys(chain.from_iterable(matching))]
    return ControllerResult(DeleteAclsResponse(correlation_id=request.correlation_id, filter_results=results), records)


def _entry_error(entry: AclEntry) -> str:
    if not entry.principal.startswith(USER_PREFIX) or entry.principal == USER_PREFIX:
        return f"found principal {entry.principal!r}; allowed: {USER_PREFIX}NAME or {USER_PREFIX}{WILDCARD}"
    if entry.host != ANY_HOST:
        return f"found host {entry.host!r}; allowed: {ANY_HOST}"
    if not entry.resource_name:
        return "an empty resource name"
    if entry.resource_type is AclResourceType.CLUSTER and entry.resource_name != CLUSTER_NAME:
        return f"found cluster {entry.resource_name!r}; allowed: {CLUSTER_NAME}"
    return ""


_HANDLERS: Mapping[type[AdminRequest], Handler] = {
    CreateTopicsRequest: topics.create_topics,
    DeleteTopicsRequest: topics.delete_topics,
    CreatePartitionsRequest: partitions.create_partitions,
    RemovePartitionsRequest: partitions.remove_partitions,
    AlterConfigsRequest: configs.alter_configs,
    IncrementalAlterConfigsRequest: configs.alter_configs,
    ElectLeadersRequest: elections.elect_leaders,
    AlterPartitionReassignmentsRequest: reassignments.alter_partition_reassignments,
    UpdateFeaturesRequest: features.update_features,
    UnregisterBrokerRequest: brokers.unregister_broker,
    UnregisterControllerRequest: controllers.unregister_controller,
    CreateAclsRequest: create_acls,
    DeleteAclsRequest: delete_acls,
    InitProducerIdRequest: init_producer_id,
}
CHANGE_REQUESTS: Collection[type[AdminRequest]] = _HANDLERS.keys()
"""The request types that `handle` takes."""


def handle(state: ControllerState, request: AdminRequest) -> ControllerResult:
    """The response, and the records to commit before it is sent; only an error where the handler raises Refused."""
    try:
        return _HANDLERS[type(request)](state, request)
    except Refused as refused:
        return ControllerResult(request.refusal(refused.error, refused.message))
