"""What a group's committed offsets may be, by what its members were told: the rules for `Committed` and `OffsetShown`.

The coordinator keeps one offset of a group and partition, that of the last commit that it has carried out. A member
sends commits of rising offsets, one after the other. So the coordinator shows the last one that it has acknowledged,
or one whose outcome the member does not know: that one may be carried out at any later time, for its request may still
be on its way. Anything else is wrong: none or an earlier one (the commit has been lost), or one that was never sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from protocol.ids import NO_OFFSET, Offset, TimeMs, TopicPartition


class Committed(NamedTuple):
    """A member of `group` has sent a commit, each with a higher offset than the one before, or knows its outcome."""

    group: str
    partition: TopicPartition
    offset: Offset
    result: Literal["sent", "acknowledged", "unknown"]
    at_ms: TimeMs = -1


class OffsetShown(NamedTuple):
    """The coordinator has shown the committed offset of a group, NO_OFFSET for none. It was asked when the operations
    before this one had taken place.
    """

    group: str
    partition: TopicPartition
    offset: Offset
    at_ms: TimeMs = -1


class GroupCommits:
    """The commits of one group and partition."""

    def __init__(self) -> None:
        self._acknowledged = NO_OFFSET
        self._open: set[Offset] = set()
        self._shown: list[Offset] = []

    def committed(self, commit: Committed) -> None:
        if commit.result == "sent":
            self._open.add(commit.offset)
        elif commit.result == "acknowledged":
            self._open.discard(commit.offset)
            self._acknowledged = max(self._acknowledged, commit.offset)

    def shown(self, offset: Offset) -> str:
        """What is wrong with a committed offset that is shown now; nothing in most cases."""
        self._shown.append(offset)
        if offset in (self._acknowledged, *self._open):
            return ""
        if offset < self._acknowledged:
            return f"although the commit of {self._acknowledged} was acknowledged before"
        return "which no member has committed"

    def beyond(self, end: Offset) -> Iterator[Offset]:
        """The committed offsets that were shown and are behind the end of the log."""
        yield from (offset for offset in dict.fromkeys(self._shown) if offset > end)
