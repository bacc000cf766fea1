"""What every trace event is: an immutable value of declared fields, with a kind and a sentence for people.

An event class declares `kind`, the name under which the event is recorded, and its fields, in the order in which they
are recorded: plain values (int, str, bool, None, or tuples of these), each annotated with its meaning. The docstring
says what has happened, `sentence` the same of one event, for transcripts of a run: its `words` with its fields.

Kinds, field names and their order are part of recordings and of the trace hash. The classes are not frozen, because
constructing a frozen dataclass takes three times as long and every append constructs an event; no code may assign to a
field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.ids import BrokerId, Epoch, NodeId, Offset, TopicPartition

LeaderEpoch = Annotated[Epoch, "leader epoch of the partition"]
LogEnd = Annotated[Offset, "log end offset"]
HighWatermark = Annotated[Offset, "high watermark"]
Leader = Annotated[BrokerId, "the leader, -1 where there is none"]
Sender = Annotated[NodeId, "the node that sent it"]
Reason = Annotated[str, "the reason, in words"]


class Trace:
    """Base of all trace events."""

    __slots__ = ()

    kind: ClassVar[str]
    words: ClassVar[str] = ""

    def about(self) -> TopicPartition | None:
        """The partition that the event is about, None for events about a node, a broker or a topic."""
        return None

    def sentence(self) -> str:
        """The event in words, without its time and node; empty where a transcript leaves it out."""
        return self.words.format(self)


@dataclass(slots=True)
class PartitionTrace(Trace):
    """Base of the events about one partition."""

    partition: TopicPartition

    def about(self) -> TopicPartition | None:
        return self.partition


def braces(brokers: Iterable[BrokerId]) -> str:
    """A set of brokers in words: `{0 2}`."""
    return "{" + " ".join(str(broker) for broker in brokers) + "}"
