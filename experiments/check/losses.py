"""What has become of acknowledged records, counted by record and by the acks that their producer asked for.

A record is *lost* if the log of the present leader does not hold it and does not begin behind it. What a log begins
behind was *deleted by retention*: not lost, but not there either, and after the wrong time where a clock was wrong.
While a partition has no leader whose log can be read, all of its records are *undecided*: a log may come back. With
acks=all a loss breaks a promise unless more failed than the promise allows; with acks=1 nothing is promised, and the
client was told all the same that the record is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from protocol.ids import Offset, TimeMs, TopicPartition

Acks = Literal["1", "all"]
ALL: Final[Acks] = "all"
_ACKS: Final[tuple[Acks, ...]] = ("1", ALL)


class LostRange(NamedTuple):
    """Lost records: `size` of them from the offset `first` on, acknowledged at `at_ms` (-1: not known)."""

    partition: TopicPartition
    acks: Acks
    first: Offset
    size: int
    at_ms: TimeMs


@dataclass(slots=True)
class Losses:
    """Numbers of acknowledged records by acks; `ranges` are the lost ones, where it is known which these are; `reasons`
    say why records are undecided.
    """

    lost: Counter[Acks] = field(default_factory=Counter)
    undecided: Counter[Acks] = field(default_factory=Counter)
    deleted: Counter[Acks] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    ranges: list[LostRange] = field(default_factory=list)

    def add_lost(self, lost: LostRange) -> None:
        """Counts lost records, which become one range with the last ones if they were acknowledged with them."""
        self.lost[lost.acks] += lost.size
        last = self.ranges[-1] if self.ranges else None
        if last is not None and lost == last._replace(first=last.first + last.size, size=lost.size):
            self.ranges[-1] = last._replace(size=last.size + lost.size)
        else:
            self.ranges.append(lost)

    def add(self, other: Losses) -> None:
        self.lost.update(other.lost)
        self.undecided.update(other.undecided)
        self.deleted.update(other.deleted)
        self.ranges += other.ranges
        self.reasons += [reason for reason in other.reasons if reason not in self.reasons]

    @property
    def lost_acked(self) -> int | None:
        """Lost records that were acknowledged with acks=all; None while it is undecided for any of them."""
        return None if self.undecided[ALL] else self.lost[ALL]

    def document(self) -> dict[str, object]:
        """The keys of JSON results. A number is None while it is undecided for any record that it could count."""
        return {
            "lost_acked": self.lost_acked,
            "lost_by_acks": {acks: None if self.undecided[acks] else self.lost[acks] for acks in _ACKS},
            "undecided": self.undecided.total(),
            "deleted_by_retention": None if self.undecided else self.deleted.total(),
        }

    def words(self) -> str:
        """The numbers, to stand behind "acknowledged records lost: "; by acks where any lost record had acks=1."""
        lost, undecided = self.lost.total(), self.undecided.total()
        text = "unknown" if undecided and not lost else str(lost)
        if self.lost["1"]:
            text += f" ({', '.join(f'acks={acks}: {self.lost[acks]}' for acks in _ACKS)})"
        if undecided:
            text += f", undecided: {undecided} ({'; '.join(self.reasons)})"
        if self.deleted:
            text += f", deleted by retention: {self.deleted.total()}"
        return text


def total(losses: Iterable[Losses]) -> Losses:
    found = Losses()
    for item in losses:
        found.add(item)
    return found
