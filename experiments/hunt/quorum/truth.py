"""What invariants look at: the world of the laboratory as somebody sees it who sees everything at once.

`Truth` follows the logs on all disks, those of replicas that are down too, and what has been committed: the first
replica whose high watermark passes a record commits it for all. It reads disks and high watermarks, and works out
voters by itself, so that what is wrong in a replica is not wrong here as well.

A disk that is lost is remembered as it was (`lost`). Its uuid never comes back, so what it has promised stays promised:
a leader may count a fetch that was sent before the loss.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from experiments.engines.sim.disk import SimLog, SimStorage
from protocol.contract import Send
from protocol.ids import METADATA_LOG, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import AddVoterRecord, RemoveVoterRecord
from protocol.messages.records import MetadataRecord
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import NO_UUID, ReplicaKey

Value = tuple[Epoch, bytes]
"""What two logs must have at an offset: the epoch of the record, and what it says."""
Disk = tuple[NodeId, int]
"""A node, and how many disks it has lost before this one."""
Voters = frozenset[ReplicaKey]
VoterChange = AddVoterRecord | RemoveVoterRecord
_ALL = 2**62


@dataclass(slots=True)
class Event:
    """One input of a replica, with what it sent in answer to it: a message from `sender`, or the name of a timer, or
    what befell it. `replica` is none where it does not run any more.
    """

    now_ms: TimeMs
    node: NodeId
    life: int
    replica: QuorumReplica | None
    cause: Message | str
    sender: NodeId | None = None
    sends: Sequence[Send] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """A replica in `epoch` was the first whose high watermark reached `end_offset`, by one of these sets of voters:
    with the changes that it appended in the same event, or without.
    """

    epoch: Epoch
    end_offset: Offset
    sets: frozenset[Voters]


@lru_cache(maxsize=4096)
def records_of(payload: bytes) -> tuple[MetadataRecord, ...]:
    return tuple(unpack_records(payload))


@lru_cache(maxsize=4096)
def _texts_of(payload: bytes) -> tuple[bytes, ...]:
    return tuple(record.model_dump_json().encode() for record in records_of(payload))


def voters_after(voters: Voters, change: VoterChange) -> Voters:
    """Whom a change leaves; who is added takes the place of a voter of the same id."""
    key = ReplicaKey(change.voter_id, change.voter_uuid)
    if isinstance(change, RemoveVoterRecord):
        return voters - {key}
    return frozenset({voter for voter in voters if voter.id != key.id} | {key})


def is_same(voter: ReplicaKey, replica: ReplicaKey) -> bool:
    """Whether a voter is this replica, by its key or where it has no uuid by its id."""
    return voter in (replica, ReplicaKey(replica.id, NO_UUID))


def is_counted(replica: ReplicaKey, voters: Voters) -> bool:
    return any(is_same(voter, replica) for voter in voters)


def majority(voters: Voters) -> int:
    return len(voters) // 2 + 1


class History:
    """Sets of voters, each from the offset of the change that made it; the first from the beginning."""

    __slots__ = ("_offsets", "_sets")

    def __init__(self, base: Voters) -> None:
        self._offsets: list[Offset] = [-1]
        self._sets: list[Voters] = [base]

    @property
    def latest(self) -> Voters:
        return self._sets[-1]

    @property
    def last_change(self) -> Offset:
        """Its offset, -1 where there is none."""
        return self._offsets[-1]

    def below(self, end_offset: Offset) -> Voters:
        """The voters by the records below `end_offset`."""
        return self._sets[bisect_right(self._offsets, end_offset - 1) - 1]

    def since(self, offset: Offset) -> set[Voters]:
        """The set below `offset`, and all that came after it."""
        return {self.below(offset), *self._sets[bisect_right(self._offsets, offset - 1) :]}

    def add(self, offset: Offset, change: VoterChange) -> None:
        self._offsets.append(offset)
        self._sets.append(voters_after(self.latest, change))


class Copy:
    """The log on one disk: its values from `start` to `end`, the changes of the voters in it and what they make of
    `base`, the voters where it starts. Everything below `matched` is what has been committed.
    """

    def __init__(self) -> None:
        self.start: Offset = 0
        self.values: list[Value] = []
        self.changes: dict[Offset, VoterChange] = {}
        self.history = History(frozenset())
        self.matched: Offset = 0
        self.flushed: Offset = 0
        self._last: RecordBatch | None = None

    @property
    def end(self) -> Offset:
        return self.start + len(self.values)

    @property
    def durable(self) -> Offset:
        """Everything below is what has been committed, and would outlive the machine."""
        return min(self.matched, self.flushed)

    def values_from(self, offset: Offset) -> list[Value]:
        return self.values[max(0, offset - self.start) :]

    def look(self, log: SimLog, committed: History) -> None:
        """Takes up what has become of the log since it was last looked at."""
        self.flushed = log.flushed_offset
        last = self._last
        if last is not None and log.start_offset < self.end <= log.end_offset:
            [held] = log.read(self.end - 1, 1)
            if held is last:
                self._drop_before(log.start_offset)
                self._take(log.read(self.end, _ALL) if self.end < log.end_offset else ())
                return
        self.start = self.matched = log.start_offset
        self.values, self.changes, self._last = [], {}, None
        self.history = History(committed.below(self.start))
        self._take(log.read(self.start, _ALL))

    def _drop_before(self, start: Offset) -> None:
        if start > self.start:
            del self.values[: start - self.start]
            self.start = start

    def _take(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            self._last = batch
            self.values += [(batch.leader_epoch, text) for text in _texts_of(batch.payload)]
            for offset, record in enumerate(records_of(batch.payload), batch.base_offset):
                if isinstance(record, VoterChange):
                    self.changes[offset] = record
                    self.history.add(offset, record)

    def match(self, committed: Sequence[Value]) -> None:
        """Compares what was not compared so far."""
        known = min(self.end, len(committed))
        self.matched = min(max(self.matched, self.start), len(committed))
        while self.matched < known and self.values[self.matched - self.start] == committed[self.matched]:
            self.matched += 1


@dataclass(slots=True)
class Truth:
    """See the module docstring. `base` are the voters of an empty log; `running` and `disks` are the laboratory's own;
    `committed_by` says for each epoch how far its leader has committed; `sent` are the values that have been written,
    each of them once.
    """

    base: Voters
    disks: Mapping[NodeId, SimStorage]
    running: dict[NodeId, QuorumReplica] = field(default_factory=dict)
    committed: list[Value] = field(default_factory=list)
    committed_by: dict[Epoch, Offset] = field(default_factory=dict)
    copies: dict[NodeId, Copy] = field(default_factory=dict)
    keys: dict[NodeId, ReplicaKey] = field(default_factory=dict)
    lost: dict[ReplicaKey, Copy] = field(default_factory=dict)
    losses: Counter[NodeId] = field(default_factory=Counter)
    changes: dict[Offset, VoterChange] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    new_commit: Commit | None = None
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(self.base)

    @property
    def voters(self) -> Voters:
        """By all that has been committed."""
        return self.history.latest

    def look(self, event: Event) -> None:
        """Takes up what an event has changed."""
        self.new_commit = None
        node, replica = event.node, event.replica
        copy = self.copies.setdefault(node, Copy())
        former_end = copy.end
        copy.look(self.disks[node].open_log(METADATA_LOG), self.history)
        if replica is not None:
            if replica.key.uuid:
                self.keys[node] = replica.key
            self._commit(replica, copy, former_end)
        copy.match(self.committed)

    def _commit(self, replica: QuorumReplica, copy: Copy, former_end: Offset) -> None:
        first, end = len(self.committed), min(replica.high_watermark, copy.end)
        if end <= first or copy.start > first:
            return
        sets = frozenset({copy.history.below(max(former_end, end)), copy.history.latest})
        self.new_commit = Commit(replica.epoch, end, sets)
        self.committed += copy.values[first - copy.start : end - copy.start]
        self.committed_by[replica.epoch] = end
        for offset in range(first, end):
            if offset in copy.changes:
                self.changes[offset] = copy.changes[offset]
                self.history.add(offset, copy.changes[offset])
        for other in (*self.copies.values(), *self.lost.values()):
            other.match(self.committed)

    def lose(self, node: NodeId) -> None:
        """The disk of a node that does not run is lost."""
        self.losses[node] += 1
        copy, key = self.copies.pop(node, None), self.keys.pop(node, None)
        if key is not None and copy is not None:
            self.lost[key] = copy

    def disk(self, node: NodeId) -> Disk:
        return node, self.losses[node]

    def copies_of(self, voter: ReplicaKey) -> list[Copy]:
        """The log of a voter, and of one that is known by its id alone those of all disks that it has had."""
        if voter.uuid != NO_UUID:
            is_here = self.keys.get(voter.id) == voter
            return [self.copies[voter.id]] if is_here else [self.lost[voter]] if voter in self.lost else []
        here = [self.copies[voter.id]] if voter.id in self.copies else []
        return here + [copy for key, copy in self.lost.items() if key.id == voter.id]

    def is_on_a_disk(self, voter: ReplicaKey) -> bool:
        """Whether a voter's disk is there, be the voter up or down."""
        return voter.id in self.keys and is_same(voter, self.keys[voter.id])

    def sets_in_use(self) -> set[Voters]:
        """The voters by which somebody may count: the committed ones, and those that some disk has beyond them."""
        found = {self.voters}
        for copy in self.copies.values():
            found |= copy.history.since(len(self.committed))
        return found
