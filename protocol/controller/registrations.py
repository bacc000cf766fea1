"""Registrations that an operator ends: a broker that is not coming back is forgotten.

The broker leaves every ISR and every ELR, as if it had shut down uncleanly: there is no epoch left against which it
could prove a clean shutdown, so nothing that it holds can count again before it has caught up (E20, E26). It is
remembered in the last known ELR, and stays the last known leader where it was. Its replicas stay assigned: taking
them away is a reassignment. Below the metadata version that brings ELR it stays where it is the last of an ISR (K4).

A broker that is alive all the same learns of it from the metadata log or its next heartbeat, and registers anew.

Departure from Kafka's code: there the broker is meant to leave the ELR and stays in it, because its removal is not
told apart from a fencing; the partition then waits for a member whose registration, when it comes, takes it out.
"""

from __future__ import annotations

from protocol.controller import brokers
from protocol.controller.context import ControllerState
from protocol.controller.planning import Plan
from protocol.errors import ErrorCode, Refused
from protocol.messages.acls import AclOperation
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.records import UnregisterBrokerRecord
from protocol.metadata.authorizer import require_cluster


def unregister_broker(state: ControllerState, request: UnregisterBrokerRequest) -> Plan:
    """BROKER_ID_NOT_REGISTERED for a broker that is not, fenced or unfenced."""
    require_cluster(state.image, request, AclOperation.ALTER)
    registration = state.image.brokers.get(request.broker_id)
    if registration is None:
        raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
    records = [
        *brokers.leave_for_unclean_shutdown(state, request.broker_id),
        UnregisterBrokerRecord(broker_id=request.broker_id, broker_epoch=registration.broker_epoch),
    ]
    return Plan(UnregisterBrokerResponse(correlation_id=request.correlation_id), records)
