"""What a node says to a message that it does not act upon.

A node serves certain messages, some of them only from certain senders. Everything else is input that is wrong, not a
broken invariant: a request is answered with an error, so that its sender need not wait; a message that nobody waits
for is dropped. Both are traced as `refused`, and change nothing.
"""

from __future__ import annotations

from protocol.contract import Outbox
from protocol.errors import ErrorCode
from protocol.events.node import RequestRefused
from protocol.ids import NodeId
from protocol.messages.base import Message, Request
from protocol.messages.control import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.data import (
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
)


def refuse(out: Outbox, sender: NodeId, message: Message, error: ErrorCode) -> None:
    """Answers a request, or a replica's fetch, with `error`; drops anything else."""
    out.trace(RequestRefused(type(message).__name__, sender, error.name))
    if isinstance(message, BrokerRegistrationRequest):
        number, incarnation = message.correlation_id, message.incarnation_id
        out.send(sender, BrokerRegistrationResponse(correlation_id=number, error=error, incarnation_id=incarnation))
    elif isinstance(message, Request):
        response = message.response_type()
        out.send(sender, response(correlation_id=message.correlation_id, error=error))
    elif isinstance(message, FetchRequest):
        results = tuple(FetchPartitionResult.to(fetch, error=error) for fetch in message.partitions)
        out.send(sender, FetchResponse(partitions=results))
