"""Base classes of administration requests, and what clients request for themselves: metadata and producer ids.

Each request type has a response type with one `Result` per part of the request: an invalid part does not prevent the
others. The response is sent when the records of the request are committed. Invalid input gets an `ErrorCode` and
changes nothing (requirements G31-G33).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.messages.base import ClientRequest, Int16, Int32, Int64, Message, Response, field_values
from protocol.messages.batch import NO_PRODUCER_ID


class AdminRequest(ClientRequest, control=True):
    """Base of administration requests. Any node answers `read_only` ones, the active controller the others."""

    READ_ONLY: ClassVar[bool] = False

    def __init_subclass__(cls, *, read_only: bool = False, **marks: Any) -> None:
        cls.READ_ONLY = read_only
        super().__init_subclass__(**marks)

    def refusal(self, error: ErrorCode, message: str = "") -> AdminResponse:
        """The response to a request that is refused as a whole."""
        response = cast("type[AdminResponse]", self.response_type())
        return response(correlation_id=self.correlation_id, error=error, message=message)


class Result(Message):
    """The result for one part of a request; `message` describes the error."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""


class AdminResponse(Response, control=True):
    """Base of administration responses. `error` and `message` concern the whole request, `parts()` its parts."""

    message: str = ""

    def parts(self) -> Sequence[Result]:
        """The results of all parts in the order of the request: the items of the field that holds results."""
        values = field_values(self).values()
        return [item for value in values if isinstance(value, tuple) for item in value if isinstance(item, Result)]

    def failure(self) -> tuple[ErrorCode, str]:
        """The first error and its message, of the whole request or of a part; (NONE, "") if there is none."""
        whole = Result(error=self.error, message=self.message)
        failed = (item for item in (whole, *self.parts()) if item.error is not ErrorCode.NONE)
        first = next(failed, whole)
        return first.error, first.message


class PartitionMetadata(Message):
    """The leader of a partition."""

    partition: Int32
    leader: Int32 = NO_LEADER
    leader_epoch: Int32 = 0


class TopicMetadata(Message):
    """A topic with the leaders of its partitions."""

    name: str
    topic_id: str
    partitions: tuple[PartitionMetadata, ...]


class MetadataRequest(ClientRequest):
    """A client requests the leaders of the partitions of `topic` from a broker."""

    topic: str


class MetadataResponse(Response):
    """The requested topic, if it exists."""

    topics: tuple[TopicMetadata, ...] = ()


class InitProducerIdRequest(AdminRequest):
    """Requests a new, unique producer id from the active controller; a producer does so once (KIP-98)."""


class InitProducerIdResponse(AdminResponse):
    """A new producer id and its epoch."""

    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16 = -1
