"""Events that nodes of several kinds emit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import Sender, Trace
from protocol.ids import BrokerId


@dataclass(slots=True)
class RequestRefused(Trace):
    """A node refused a message that it does not serve, or that the sender is not allowed to send. A request is answered
    with the error. Emitted by any node.
    """

    kind: ClassVar[str] = "refused"
    message: Annotated[str, "type of the message"]
    sender: Sender
    error: Annotated[str, "name of the error code"]


@dataclass(slots=True)
class LogInfoRequested(Trace):
    """The recovery manager asked a broker about the logs of partitions, in one request."""

    kind: ClassVar[str] = "log_info_asked"
    broker: Annotated[BrokerId, "the broker that is asked"]
    partitions: Annotated[int, "number of partitions in the request"]
