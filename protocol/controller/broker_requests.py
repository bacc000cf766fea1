"""Validation of registrations and heartbeats: invalid fields, and brokers or incarnations that are not registered. For
AlterPartition see `alter_partition.py`.

Errors are Kafka's. Where Kafka has none, since its types or clients exclude the value, the error is INVALID_REQUEST, or
INVALID_REGISTRATION for a registration.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.ids import is_broker
from protocol.messages.control import BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.metadata.image import MetadataImage


def registration_error(image: MetadataImage, request: BrokerRegistrationRequest, has_session: bool) -> ErrorCode:
    """NONE, or why the broker is not registered: INVALID_REGISTRATION for invalid fields,
    DUPLICATE_BROKER_REGISTRATION where another incarnation of the broker is unfenced and has an open session
    (`has_session`). Any previous broker epoch is valid: one other than the registered means an unclean shutdown (E21).
    """
    if not is_broker(request.broker_id) or not request.incarnation_id:
        return ErrorCode.INVALID_REGISTRATION
    known = image.brokers.get(request.broker_id)
    if known is None or known.incarnation_id == request.incarnation_id:
        return ErrorCode.NONE
    return ErrorCode.DUPLICATE_BROKER_REGISTRATION if not known.fenced and has_session else ErrorCode.NONE


def heartbeat_error(image: MetadataImage, request: BrokerHeartbeatRequest) -> ErrorCode:
    """NONE, or BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH, INVALID_REQUEST for an offset below 0."""
    epoch = image.broker_epoch(request.broker_id)
    if epoch is None:
        return ErrorCode.BROKER_ID_NOT_REGISTERED
    if epoch != request.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE if request.current_metadata_offset >= 0 else ErrorCode.INVALID_REQUEST
