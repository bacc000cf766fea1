"""Events that clients emit, and nodes of several kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import PartitionTrace, Sender, Trace
from protocol.ids import BrokerId, Offset


@dataclass(slots=True)
class RequestRefused(Trace):
    """A node refused a message that it does not serve, or not from this sender. A request gets the error."""

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


@dataclass(slots=True)
class ProduceCompleted(PartitionTrace):
    """A produce command has its outcome: acknowledged, failed, or unknown."""

    kind: ClassVar[str] = "produced"
    command_id: Annotated[int, "id of the command"]
    acks: Annotated[int, "acks of the producer: 0, 1, or -1 for all"]
    error: Annotated[str, "name of the error code, `NONE` where the records are acknowledged"]
    unknown: Annotated[bool, "whether the records may be in the log in spite of the error"]
    base_offset: Annotated[Offset, "offset of the first record, -1 where it is not known"]

    @property
    def is_acknowledged(self) -> bool:
        return self.error == "NONE"

    def sentence(self) -> str:
        return "" if self.is_acknowledged else f"a record for {self.partition} was refused: {self.error}"
