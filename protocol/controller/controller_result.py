"""The result of an administration request: the response, and the records to commit before it is sent.

The parts of a request are decided on the state before the request; parts that conflict (the same topic or partition
twice) are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from protocol.controller.context import ControllerState
from protocol.controller.recovery_requests import Awaited
from protocol.errors import ErrorCode, Refused
from protocol.ids import TopicIdPartition
from protocol.messages.admin import AdminResponse
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import TopicImage
from protocol.metadata.partition import PartitionState

Name = TypeVar("Name", bound=Hashable)
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class ControllerResult:
    """With `awaited` the response is sent when those elections are over."""

    response: AdminResponse
    records: Sequence[MetadataRecord] = ()
    awaited: Awaited | None = None

    def validated(self, only: bool) -> ControllerResult:
        """The result; without its records where the request asks for validation `only`."""
        return ControllerResult(self.response) if only else self


Handler = Callable[[ControllerState, Any], ControllerResult]


def named_twice(names: Iterable[Name]) -> frozenset[Name]:
    return frozenset(name for name, count in Counter(names).items() if count > 1)


def require_once(name: Hashable, twice: Collection[Hashable]) -> None:
    """Raises Refused with INVALID_REQUEST for a name in `twice` (`named_twice`)."""
    if name in twice:
        raise Refused(ErrorCode.INVALID_REQUEST, "the request names this more than once")


def admitted(parts: Sequence[Part], admit: Callable[[Part], object]) -> list[tuple[Part, Refused | None]]:
    """The parts of a request, each with the Refused that `admit` has raised for it, None where it raised none."""
    checked: list[tuple[Part, Refused | None]] = []
    for part in parts:
        try:
            admit(part)
            checked.append((part, None))
        except Refused as refused:
            checked.append((part, refused))
    return checked


def topic_named(state: ControllerState, name: str) -> TopicImage:
    """The topic; raises Refused with UNKNOWN_TOPIC_OR_PARTITION where it does not exist."""
    topic = state.image.topic_named(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
    return topic


def partition_named(state: ControllerState, topic_name: str, index: int) -> tuple[TopicIdPartition, PartitionState]:
    """The partition; raises Refused with UNKNOWN_TOPIC_OR_PARTITION where it does not exist."""
    topic = topic_named(state, topic_name)
    partition = topic.partitions.get(index)
    if partition is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {topic_name}-{index}")
    return TopicIdPartition(topic.topic_id, index), partition
