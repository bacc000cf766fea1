"""Administration: what a client asks, in general.

Each request has a response type of its own, with one `Result` per thing that was asked for: one that is wrong does
not keep the others from being done. A response is sent when the records that the request made are committed. Wrong
input is answered with an `ErrorCode` and changes nothing (requirements G31-G33). The requests themselves: `topics.py`,
`partitions.py`, `configs.py`, `cluster.py`, `acls.py`; `quorum.py` has those about the metadata log's replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.messages.base import ClientRequest, Int32, Message, Response


class AdminRequest(ClientRequest):
    """Base of administration requests. `READ_ONLY` ones are answered by brokers and controllers alike, from the
    metadata that they have.
    """

    CONTROL: ClassVar[bool] = True
    READ_ONLY: ClassVar[bool] = False


class Result(Message):
    """What became of one thing that was asked for. `message` says in a few words what was wrong."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""


class AdminResponse(Response):
    """`error` and `message` concern the request as a whole; `results` are its parts."""

    CONTROL: ClassVar[bool] = True

    message: str = ""

    def parts(self) -> Sequence[Result]:
        """The results of all parts, in the order of the request; response types override it."""
        return ()

    def failure(self) -> tuple[ErrorCode, str]:
        """The first error, of the whole or of a part, with its message; (NONE, "") if all went well."""
        whole = Result(error=self.error, message=self.message)
        failed = (item for item in (whole, *self.parts()) if item.error is not ErrorCode.NONE)
        first = next(failed, whole)
        return first.error, first.message


class PartitionMetadata(Message):
    """A partition as clients need it."""

    partition: Int32
    leader: Int32 = NO_LEADER
    leader_epoch: Int32 = 0


class TopicMetadata(Message):
    name: str
    topic_id: str
    partitions: tuple[PartitionMetadata, ...]


class MetadataRequest(ClientRequest):
    """A client asks a broker who leads what; `topic` names the one that it is interested in."""

    topic: str


class MetadataResponse(Response):
    topics: tuple[TopicMetadata, ...] = ()
