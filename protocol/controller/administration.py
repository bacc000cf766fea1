"""Administration requests that change something: the table of their handlers.

A new request is registered here; `ControllerNode` serves every type in the table while it is active.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

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
from protocol.controller.controller_result import ControllerResult, Handler
from protocol.errors import Refused
from protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.cluster import UnregisterBrokerRequest, UpdateFeaturesRequest
from protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.partitions import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from protocol.messages.producers import InitProducerIdRequest
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    RemovePartitionsRequest,
)

_HANDLERS: Mapping[type[AdminRequest], Handler] = {
    CreateTopicsRequest: topics.create_topics,
    DeleteTopicsRequest: topics.delete_topics,
    CreatePartitionsRequest: partitions.create_partitions,
    RemovePartitionsRequest: partitions.remove_partitions,
    AlterConfigsRequest: configs.alter_configs,
    IncrementalAlterConfigsRequest: configs.incremental_alter_configs,
    ElectLeadersRequest: elections.elect_leaders,
    AlterPartitionReassignmentsRequest: reassignments.alter_partition_reassignments,
    UpdateFeaturesRequest: features.update_features,
    UnregisterBrokerRequest: registrations.unregister_broker,
    CreateAclsRequest: acls.create_acls,
    DeleteAclsRequest: acls.delete_acls,
    InitProducerIdRequest: producer_ids.init_producer_id,
}
CHANGE_REQUESTS: Collection[type[AdminRequest]] = _HANDLERS.keys()
"""The request types that `handle` takes."""


def handle(state: ControllerState, request: AdminRequest) -> ControllerResult:
    """The response, and the records to commit before it is sent; only an error where the handler raises Refused."""
    try:
        return _HANDLERS[type(request)](state, request)
    except Refused as refused:
        response = cast("type[AdminResponse]", request.response_type())
        return ControllerResult(
            response(correlation_id=request.correlation_id, error=refused.error, message=refused.message)
        )
