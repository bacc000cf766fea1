"""Who votes, and since which offset of the log.

A voter set is a value. It changes by control records of the log, one voter at a time, and a replica goes by the newest
that it has, committed or not (D8): a majority of the set before and one of the set after always share a member where
the two differ by one, so no two leaders can be elected by sets that both are in use. What is truncated never was: the
set before it counts again (D9).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.ids import NodeId, Offset
from protocol.messages.quorum import AddVoterRecord, ControlRecord, Endpoint, RemoveVoterRecord

NO_UUID = ""


class ReplicaKey(NamedTuple):
    """A replica of the metadata log: its id, and the uuid of its disk (D4)."""

    id: NodeId
    uuid: str

    def __str__(self) -> str:
        return f"{self.id}:{self.uuid}"


def is_meant(voter: ReplicaKey, replica: ReplicaKey) -> bool:
    """Whether what is said of a voter is of this replica: one that is known by its id alone is whatever disk it has."""
    return voter.id == replica.id and voter.uuid in (NO_UUID, replica.uuid)


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters and where they listen; no two have the same id."""

    endpoints: Mapping[ReplicaKey, tuple[Endpoint, ...]] = field(default_factory=dict)

    @staticmethod
    def of(keys: Iterable[ReplicaKey]) -> VoterSet:
        return VoterSet(dict.fromkeys(sorted(keys), ()))

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        """Sorted."""
        return tuple(self.endpoints)

    def __contains__(self, key: ReplicaKey) -> bool:
        return key in self.endpoints

    def __len__(self) -> int:
        return len(self.endpoints)

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self.endpoints) // 2 + 1

    def key_of(self, node: NodeId) -> ReplicaKey | None:
        """The voter of this id."""
        return next((key for key in self.endpoints if key.id == node), None)

    def with_voter(self, key: ReplicaKey, endpoints: tuple[Endpoint, ...] = ()) -> VoterSet:
        """With this voter, in place of the one that has its id."""
        others = [item for item in self.endpoints.items() if item[0].id != key.id]
        return VoterSet(dict(sorted([*others, (key, endpoints)])))

    def without_voter(self, key: ReplicaKey) -> VoterSet:
        return VoterSet({voter: where for voter, where in self.endpoints.items() if voter != key})

    def after(self, record: ControlRecord) -> VoterSet:
        """The set that a control record leaves."""
        if isinstance(record, AddVoterRecord):
            return self.with_voter(ReplicaKey(record.voter_id, record.voter_uuid), record.endpoints)
        if isinstance(record, RemoveVoterRecord):
            return self.without_voter(ReplicaKey(record.voter_id, record.voter_uuid))
        return self

    def to_records(self) -> list[AddVoterRecord]:
        """What a snapshot holds of it (D7)."""
        return [
            AddVoterRecord(voter_id=key.id, voter_uuid=key.uuid, endpoints=where)
            for key, where in self.endpoints.items()
        ]


class VoterHistory:
    """The voter sets of a log, each by the offset of the record that made it."""

    __slots__ = ("_base", "_offsets", "_sets")

    def __init__(self, base: VoterSet) -> None:
        self._base = base
        self._offsets: list[Offset] = []
        self._sets: list[VoterSet] = []

    @property
    def latest(self) -> VoterSet:
        return self._sets[-1] if self._sets else self._base

    @property
    def last_change(self) -> Offset:
        """The offset of the newest change, -1 where none is in the log."""
        return self._offsets[-1] if self._offsets else -1

    def before(self, end_offset: Offset) -> VoterSet:
        """The set by the records below `end_offset`."""
        index = bisect_right(self._offsets, end_offset - 1)
        return self._sets[index - 1] if index else self._base

    def append(self, offset: Offset, record: ControlRecord) -> None:
        """A control record stands at `offset`, behind all others."""
        changed = self.latest.after(record)
        if changed is not self.latest:
            self._offsets.append(offset)
            self._sets.append(changed)

    def truncate(self, end_offset: Offset) -> None:
        """Records at and behind `end_offset` are gone."""
        while self._offsets and self._offsets[-1] >= end_offset:
            self._offsets.pop()
            self._sets.pop()

    def forget_before(self, start_offset: Offset) -> None:
        """Records below `start_offset` are gone, but what they did remains."""
        self._base = self.before(start_offset)
        index = bisect_right(self._offsets, start_offset - 1)
        del self._offsets[:index], self._sets[:index]
