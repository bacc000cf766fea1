"""UnregisterBroker: an operator removes the registration of a broker that will not return.

The broker leaves every ISR and ELR, as after an unclean shutdown: no broker epoch is left against which it could prove
a clean shutdown, so its replicas do not count before they have caught up (E20, E26). It is kept in the last known ELR
and as last known leader. Its replicas stay assigned; a reassignment removes them. Below the metadata version that
brings ELR it stays in an ISR of which it is the last member (K4).

A broker that still runs learns this from the metadata log or from its next heartbeat, and registers anew.

Departure from Kafka's code: there the broker stays in the ELR, because its removal is handled like a fencing; the
partition then waits for a member that leaves the ELR as soon as it registers.
"""

from __future__ import annotations

from protocol.controller import brokers
from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode, Refused
from protocol.messages.acls import AclOperation
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.records import UnregisterBrokerRecord
from protocol.metadata.authorizer import require_cluster


def unregister_broker(state: ControllerState, request: UnregisterBrokerRequest) -> ControllerResult:
    """Removes the registration; BROKER_ID_NOT_REGISTERED where there is none. Needs ALTER on the cluster."""
    require_cluster(state.image, request, AclOperation.ALTER)
    registration = state.image.brokers.get(request.broker_id)
    if registration is None:
        raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
    records = [
        *brokers.leave_for_unclean_shutdown(state, request.broker_id),
        UnregisterBrokerRecord(broker_id=request.broker_id, broker_epoch=registration.broker_epoch),
    ]
    return ControllerResult(UnregisterBrokerResponse(correlation_id=request.correlation_id), records)
