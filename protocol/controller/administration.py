"""Administration requests: which handler plans which, and what every request has in common.

A request that its handler refuses as a whole is answered with the error in its response type, and nothing is changed;
so is one that nobody handles.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.controller import (
    acls,
    configs,
    elections,
    features,
    partitions,
    producer_ids,
    reassignments,
    registrations,
    topics,
)
from protocol.controller.context import ControllerState
from protocol.controller.planning import Handler, Plan, Refused
from protocol.errors import ErrorCode
from protocol.messages.acls import CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.cluster import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from protocol.messages.configs import AlterConfigsRequest, AlterConfigsResponse, IncrementalAlterConfigsRequest
from protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    RemovePartitionsRequest,
    RemovePartitionsResponse,
)

_HANDLERS: Mapping[type[AdminRequest], tuple[Handler, type[AdminResponse]]] = {
    CreateTopicsRequest: (topics.create_topics, CreateTopicsResponse),
    DeleteTopicsRequest: (topics.delete_topics, DeleteTopicsResponse),
    CreatePartitionsRequest: (partitions.create_partitions, CreatePartitionsResponse),
    RemovePartitionsRequest: (partitions.remove_partitions, RemovePartitionsResponse),
    AlterConfigsRequest: (configs.alter_configs, AlterConfigsResponse),
    IncrementalAlterConfigsRequest: (configs.incremental_alter_configs, AlterConfigsResponse),
    ElectLeadersRequest: (elections.elect_leaders, ElectLeadersResponse),
    AlterPartitionReassignmentsRequest: (
        reassignments.alter_partition_reassignments,
        AlterPartitionReassignmentsResponse,
    ),
    UpdateFeaturesRequest: (features.update_features, UpdateFeaturesResponse),
    UnregisterBrokerRequest: (registrations.unregister_broker, UnregisterBrokerResponse),
    CreateAclsRequest: (acls.create_acls, CreateAclsResponse),
    DeleteAclsRequest: (acls.delete_acls, DeleteAclsResponse),
    InitProducerIdRequest: (producer_ids.init_producer_id, InitProducerIdResponse),
}


def plan(state: ControllerState, request: AdminRequest) -> Plan:
    """What an administration request that changes something comes to in the present state."""
    handler, response_type = _HANDLERS.get(type(request), (_unsupported, AdminResponse))
    try:
        return handler(state, request)
    except Refused as refused:
        return Plan(response_type(correlation_id=request.correlation_id, error=refused.error, message=refused.message))


def _unsupported(state: ControllerState, request: AdminRequest) -> Plan:
    raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"no such request: {type(request).__name__}")
