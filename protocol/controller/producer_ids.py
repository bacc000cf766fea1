"""InitProducerId: every producer id is allocated once, to one producer, as long as the cluster exists.

The next id is in the metadata log, so that every later controller continues behind it (KIP-730). Apache Kafka's brokers
allocate blocks of ids and hand them out; here the controller allocates each id, which costs one record per producer and
wastes no id. A principal that may write to some topic may have an id (KIP-679).
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode, Refused
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import ProducerIdsRecord
from protocol.metadata.authorizer import may_write_somewhere


def init_producer_id(state: ControllerState, request: InitProducerIdRequest) -> ControllerResult:
    """A new producer id with epoch 0; CLUSTER_AUTHORIZATION_FAILED where the principal may write to no topic."""
    if not may_write_somewhere(state.image, request.principal):
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{request.principal} may write to no topic")
    producer_id = state.image.next_producer_id
    response = InitProducerIdResponse(correlation_id=request.correlation_id, producer_id=producer_id, producer_epoch=0)
    return ControllerResult(response, (ProducerIdsRecord(next_producer_id=producer_id + 1),))
