"""How a node refuses a message that it does not serve, or not from this sender.

Such a message is invalid input and breaks no invariant. The node answers a request with an error, so that the sender
need not wait for a timeout, and drops any other message. Both emit the trace event `refused` and change no state.

A broker's heartbeat to a controller that is not the active one any more is refused without a trace event: hosts leave
out heartbeats that renew what the controller knows ("Idle timers" in `protocol/contract.py`), and such a heartbeat
changes nothing at either end.
"""

from __future__ import annotations

from protocol.contract import Outbox
from protocol.errors import ErrorCode
from protocol.events.node import RequestRefused
from protocol.ids import NodeId
from protocol.messages.base import Message, Request
from protocol.messages.control import BrokerHeartbeatRequest, BrokerRegistrationRequest, BrokerRegistrationResponse
from protocol.messages.data import FetchPartitionResult, FetchRequest, FetchResponse


def refuse(out: Outbox, sender: NodeId, message: Message, error: ErrorCode) -> None:
    """Answers a request or a follower's fetch with `error`; drops any other message."""
    if not (isinstance(message, BrokerHeartbeatRequest) and error is ErrorCode.NOT_CONTROLLER):
        out.trace(RequestRefused(type(message).__name__, sender, error.name))
    if isinstance(message, BrokerRegistrationRequest):
        number, incarnation = message.correlation_id, message.incarnation_id
        out.send(sender, BrokerRegistrationResponse(correlation_id=number, error=error, incarnation_id=incarnation))
    elif isinstance(message, Request):
        out.send(sender, message.refusal(error))
    elif isinstance(message, FetchRequest):
        results = tuple(FetchPartitionResult.to(fetch, error=error) for fetch in message.partitions)
        out.send(sender, FetchResponse(partitions=results))
