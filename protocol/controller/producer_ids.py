"""Producer ids: each is given out once, to one producer, for the life of the cluster.

The next id stands in the metadata log, so that a controller that restarts, and every later one, goes on behind it
(KIP-730). Apache Kafka's brokers fetch blocks of ids and hand them out; here the controller gives out each one itself,
which costs a record per producer and no id that is never used. As since KIP-679, whoever may write to some topic may
have one.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.controller.planning import Plan
from protocol.errors import ErrorCode, Refused
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import ProducerIdsRecord
from protocol.metadata.authorizer import may_write_somewhere


def init_producer_id(state: ControllerState, request: InitProducerIdRequest) -> Plan:
    """A fresh producer id with epoch 0; CLUSTER_AUTHORIZATION_FAILED for who may write nowhere."""
    if not may_write_somewhere(state.image, request.principal):
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{request.principal} may write to no topic")
    producer_id = state.image.next_producer_id
    response = InitProducerIdResponse(correlation_id=request.correlation_id, producer_id=producer_id, producer_epoch=0)
    return Plan(response, (ProducerIdsRecord(next_producer_id=producer_id + 1),))
