"""Producer ids (KIP-98), by which brokers recognise repeated batches of a producer."""

from __future__ import annotations

from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Int16, Int64
from protocol.messages.batch import NO_PRODUCER_ID


class InitProducerIdRequest(AdminRequest):
    """Requests a new, unique producer id from the active controller; a producer does so once."""


class InitProducerIdResponse(AdminResponse):
    """A new producer id and its epoch (KIP-98)."""

    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16 = -1
