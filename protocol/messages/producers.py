"""Producer ids: the identity under which a producer's batches are told apart from their own repetitions."""

from __future__ import annotations

from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Int16, Int64
from protocol.messages.batch import NO_PRODUCER_ID


class InitProducerIdRequest(AdminRequest):
    """Asks for an id that nobody else has or will have; a producer asks once in its life."""


class InitProducerIdResponse(AdminResponse):
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16 = -1
