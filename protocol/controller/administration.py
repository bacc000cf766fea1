"""Administration requests that change something: the table of their handlers, which `ControllerNode` serves while it is
active; and InitProducerId.

Every producer id is allocated once, to one producer, as long as the cluster exists: the next id is in the metadata log,
so that every later controller continues behind it (KIP-730). Apache Kafka's brokers allocate blocks of ids and hand
them out; here the controller allocates each id, which costs one record per producer and wastes no id. A principal that
may write to some topic may have an id (KIP-679).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from protocol.controller import (
    acls,
    brokers,
    configs,
    elections,
    features,
    partitions,
    reassignments,
    topics,
)
from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult, Handler
from protocol.errors import ErrorCode, Refused
from protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest
from protocol.messages.admin import AdminRequest, AdminResponse, InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.cluster import UnregisterBrokerRequest, UpdateFeaturesRequest
from protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.partitions import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from protocol.messages.records import ProducerIdsRecord
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    RemovePartitionsRequest,
)
from protocol.metadata.authorizer import may_write_somewhere


def init_producer_id(state: ControllerState, request: InitProducerIdRequest) -> ControllerResult:
    """A new producer id with epoch 0; CLUSTER_AUTHORIZATION_FAILED where the principal may write to no topic."""
    if not may_write_somewhere(state.image, request.principal):
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{request.principal} may write to no topic")
    producer_id = state.image.next_producer_id
    response = InitProducerIdResponse(correlation_id=request.correlation_id, producer_id=producer_id, producer_epoch=0)
    return ControllerResult(response, (ProducerIdsRecord(next_producer_id=producer_id + 1),))


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
    UnregisterBrokerRequest: brokers.unregister_broker,
    CreateAclsRequest: acls.create_acls,
    DeleteAclsRequest: acls.delete_acls,
    InitProducerIdRequest: init_producer_id,
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
