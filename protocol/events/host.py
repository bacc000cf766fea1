"""Events that the host of a node, its storage or the engine emits, not the node itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import Reason, Sender, Trace
from protocol.ids import Offset, TopicPartition


@dataclass(slots=True)
class RecordsDropped(Trace):
    """Opening a log after a crash dropped a torn or damaged end. Emitted by the storage, before the node starts."""

    kind: ClassVar[str] = "records_dropped"
    path: Annotated[str, "the file"]
    end_offset: Annotated[Offset, "log end offset after it"]
    size: Annotated[int, "bytes that were dropped"]
    reason: Reason


@dataclass(slots=True)
class MessageMalformed(Trace):
    """Bytes that a peer sent were no message, and were dropped. Emitted by the host on Ray."""

    kind: ClassVar[str] = "malformed"
    sender: Sender
    reason: Reason


@dataclass(slots=True)
class TracesDropped(Trace):
    """The host on Ray dropped the oldest trace events of the node, because no observer fetched them in time."""

    kind: ClassVar[str] = "traces_dropped"
    count: Annotated[int, "number of events that were dropped"]


@dataclass(slots=True)
class EventsLost(Trace):
    """The node's process has ended, and its last trace events with it. Only recordings have it; no trace hash does."""

    kind: ClassVar[str] = "events_lost"
    words: ClassVar[str] = "the last events before its end are not known"


@dataclass(slots=True)
class IncarnationBegan(Trace):
    """The engine started the node. Only recordings have it; no trace hash does."""

    kind: ClassVar[str] = "life_began"


@dataclass(slots=True)
class IncarnationEnded(Trace):
    """The engine killed the node, or changed its disk. Only recordings have it; no trace hash does."""

    kind: ClassVar[str] = "life_ended"
    loss: Annotated[str, "what the disk lost: kind of `experiments.engines.port.Loss`"]
    lost: Annotated[
        tuple[tuple[TopicPartition, int], ...] | None,
        "partition and number of lost records, for each partition that lost any; null where the engine cannot know",
    ]
