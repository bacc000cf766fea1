"""Which requests of brokers the controller refuses before it decides anything: fields that no broker sends, and brokers
that it does not know. AlterPartition has a module of its own.

Errors are Kafka's. Where Kafka has none, since its types or its clients rule the value out, it is INVALID_REQUEST, or
INVALID_REGISTRATION for a registration.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.ids import is_broker
from protocol.messages.control import BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.metadata.image import MetadataImage


def registration_error(image: MetadataImage, request: BrokerRegistrationRequest, has_session: bool) -> ErrorCode:
    """NONE, or why the broker is not registered. `has_session`: a life of this broker is known and has not been silent
    for longer than its session timeout. A previous broker epoch is never wrong: any but the last one tells of an
    unclean shutdown (E21).
    """
    if not is_broker(request.broker_id) or not request.incarnation_id:
        return ErrorCode.INVALID_REGISTRATION
    known = image.brokers.get(request.broker_id)
    if known is None or known.incarnation_id == request.incarnation_id:
        return ErrorCode.NONE
    return ErrorCode.DUPLICATE_BROKER_REGISTRATION if not known.fenced and has_session else ErrorCode.NONE


def heartbeat_error(image: MetadataImage, request: BrokerHeartbeatRequest) -> ErrorCode:
    """NONE, or why the heartbeat does not count."""
    epoch = image.broker_epoch(request.broker_id)
    if epoch is None:
        return ErrorCode.BROKER_ID_NOT_REGISTERED
    if epoch != request.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE if request.current_metadata_offset >= 0 else ErrorCode.INVALID_REQUEST
