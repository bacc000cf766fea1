"""Which heartbeats of brokers the controller accepts."""

from __future__ import annotations

import pytest

from protocol.controller.brokers import heartbeat_error
from protocol.errors import ErrorCode
from protocol.messages.control import BrokerHeartbeatRequest
from tests.unit.protocol.node_helpers import ControllerBench, registrations


@pytest.mark.covers("G8", "B20")
@pytest.mark.parametrize(
    ("broker", "later_epoch", "offset", "error"),
    [
        (0, 0, 0, ErrorCode.NONE),
        (0, 0, 7, ErrorCode.NONE),
        (0, 0, -1, ErrorCode.INVALID_REQUEST),
        (0, 1, 7, ErrorCode.STALE_BROKER_EPOCH),
        (0, -1, 7, ErrorCode.STALE_BROKER_EPOCH),
        (9, 0, 7, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ],
)
def test_a_heartbeat_is_of_the_registered_incarnation_and_names_an_offset(
    broker: int, later_epoch: int, offset: int, error: ErrorCode
) -> None:
    """A broker that has not replayed anything yet names offset 0."""
    image = ControllerBench(*registrations()).state.image
    request = BrokerHeartbeatRequest(
        correlation_id=1,
        broker_id=broker,
        broker_epoch=(image.broker_epoch(broker) or 0) + later_epoch,
        current_metadata_offset=offset,
    )
    assert heartbeat_error(image, request) is error
