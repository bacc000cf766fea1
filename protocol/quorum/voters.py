"""Voter sets, and the history of voter sets in a metadata log (KIP-853).

A voter set is a value. Control records of the log change it by one voter at a time. A replica uses the set of the last
such record in its log, committed or not (D8). Majorities of two sets that differ by one voter always overlap, so two
sets that are in use at the same time cannot elect two leaders. Truncation of a record restores the set before it (D9).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

from protocol.ids import NodeId, Offset
from protocol.messages.quorum import AddVoterRecord, ControlRecord, Endpoint, RemoveVoterRecord
from protocol.values import immutable

NO_UUID = ""


class ReplicaKey(NamedTuple):
    """Identifies a replica of the metadata log: node id, and uuid of its disk (Kafka's directory id; KIP-853, D4)."""

    id: NodeId
    uuid: str

    def __str__(self) -> str:
        return f"{self.id}:{self.uuid}"


@lru_cache(maxsize=4_096)
def replica_key(node: NodeId, uuid: str) -> ReplicaKey:
    """A cached `ReplicaKey`, for every fetch: a cache hit is cheaper than building the tuple."""
    return ReplicaKey(node, uuid)


def matches_voter(voter: ReplicaKey, replica: ReplicaKey) -> bool:
    """Whether a voter key refers to this replica. A voter key without a uuid matches any disk of that node id."""
    return voter.id == replica.id and voter.uuid in (NO_UUID, replica.uuid)


@immutable
class VoterSet:
    """The voters and their endpoints; node ids are unique. Keys are sorted."""

    endpoints: Mapping[ReplicaKey, tuple[Endpoint, ...]] = field(default_factory=dict)

    @staticmethod
    def of(keys: Iterable[ReplicaKey]) -> VoterSet:
        return VoterSet(dict.fromkeys(sorted(keys), ()))

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        return tuple(self.endpoints)

    def __contains__(self, key: ReplicaKey) -> bool:
        return key in self.endpoints

    def __len__(self) -> int:
        return len(self.endpoints)

    @property
    def majority(self) -> int:
        return len(self.endpoints) // 2 + 1

    def key_of(self, node: NodeId) -> ReplicaKey | None:
        for key in self.endpoints:
            if key.id == node:
                return key
        return None

    def with_voter(self, key: ReplicaKey, endpoints: tuple[Endpoint, ...] = ()) -> VoterSet:
        others = [item for item in self.endpoints.items() if item[0].id != key.id]
        return VoterSet(dict(sorted([*others, (key, endpoints)])))

    def after(self, record: ControlRecord) -> VoterSet:
        """The set after a control record; this one if the record changes no voter."""
        if isinstance(record, AddVoterRecord):
            return self.with_voter(ReplicaKey(record.voter_id, record.voter_uuid), record.endpoints)
        if isinstance(record, RemoveVoterRecord):
            removed = ReplicaKey(record.voter_id, record.voter_uuid)
            return VoterSet({voter: where for voter, where in self.endpoints.items() if voter != removed})
        return self

    def to_records(self) -> list[AddVoterRecord]:
        return [
            AddVoterRecord.unchecked(voter_id=key.id, voter_uuid=key.uuid, endpoints=where)
            for key, where in self.endpoints.items()
        ]


class VoterHistory:
    """The voter sets after the control records of a log, whose `base` is a snapshot's or static; `latest` is in use."""

    __slots__ = ("_base", "_offsets", "_sets", "latest")

    def __init__(self, base: VoterSet) -> None:
        self._base = base
        self._offsets: list[Offset] = []
        self._sets: list[VoterSet] = []
        self.latest = base

    @property
    def last_change(self) -> Offset:
        """The offset of the last change in the log, -1 if there is none."""
        return self._offsets[-1] if self._offsets else -1

    def before(self, end_offset: Offset) -> VoterSet:
        index = bisect_right(self._offsets, end_offset - 1)
        return self._sets[index - 1] if index else self._base

    def append(self, offset: Offset, record: ControlRecord) -> None:
        """Applies the control record at `offset`, which is above all earlier ones."""
        changed = self.latest.after(record)
        if changed is not self.latest:
            self._offsets.append(offset)
            self._sets.append(changed)
            self.latest = changed

    def truncate(self, end_offset: Offset) -> None:
        while self._offsets and self._offsets[-1] >= end_offset:
            self._offsets.pop()
            self._sets.pop()
        self.latest = self._sets[-1] if self._sets else self._base

    def forget_before(self, start_offset: Offset) -> None:
        """Folds the changes below `start_offset` into the base set."""
        self._base = self.before(start_offset)
        index = bisect_right(self._offsets, start_offset - 1)
        del self._offsets[:index], self._sets[:index]
