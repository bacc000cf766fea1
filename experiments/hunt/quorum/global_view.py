"""The whole quorum at once: what is committed, the log on every disk, and the voter sets.

A record is committed as soon as the high watermark of any replica passes it. The view reads disks, including those of
replicas that are down, and high watermarks, and derives the voters itself. A lost disk is kept as it was (`lost`). Its
uuid is never used again, so its promises stay valid: a leader may count a fetch that was sent before the loss.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from experiments.check.quorum_rules import matches
from experiments.engines.sim.disk import SimLog, SimStorage
from protocol.contract import Send
from protocol.ids import METADATA_LOG, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import encode
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import AddVoterRecord, RemoveVoterRecord
from protocol.messages.records import MetadataRecord
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import NO_UUID, ReplicaKey

Value = tuple[Epoch, bytes]
"""What two logs must have in common at an offset: the epoch of the record, and its content."""
Disk = tuple[NodeId, int]
"""A node, and the number of disks that it had lost before this one."""
Voters = frozenset[ReplicaKey]
VoterChange = AddVoterRecord | RemoveVoterRecord
_ALL = 2**62


@dataclass(slots=True)
class ReplicaStep:
    """One input of a replica and the messages that it sent in response. `cause` is a message from `sender`, the name of
    a timer, or a fault; `replica` is None once the process has ended.
    """

    now_ms: TimeMs
    node: NodeId
    incarnation: int
    replica: QuorumReplica | None
    cause: Message | str
    sender: NodeId | None = None
    sends: Sequence[Send] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """The replica in `epoch` was the first whose high watermark reached `end_offset`. It counted by one of `sets`: the
    voter set with or without the changes that it appended in the same step.
    """

    epoch: Epoch
    end_offset: Offset
    sets: frozenset[Voters]


@lru_cache(maxsize=4096)
def decode_records(payload: bytes) -> tuple[MetadataRecord, ...]:
    return tuple(unpack_records(payload))


@lru_cache(maxsize=4096)
def _encoded_records(payload: bytes) -> tuple[bytes, ...]:
    return tuple(encode(record) for record in decode_records(payload))


def is_voter_of(replica: ReplicaKey, voters: Voters) -> bool:
    """Whether a replica is one of these voters."""
    return any(matches(voter, replica) for voter in voters)


def list_keys(keys: Iterable[ReplicaKey]) -> str:
    """Replica keys as text, for violations."""
    return ", ".join(map(str, sorted(keys))) or "none"


class VoterSets:
    """The voter sets of a log, from the offset of each change on. Independent of `protocol.quorum.voters`."""

    __slots__ = ("_offsets", "_sets")

    def __init__(self, base: Voters) -> None:
        self._offsets: list[Offset] = [-1]
        self._sets: list[Voters] = [base]

    @property
    def latest(self) -> Voters:
        """The voter set after the last change."""
        return self._sets[-1]

    @property
    def last_change(self) -> Offset:
        """The offset of the last change, -1 if there is none."""
        return self._offsets[-1]

    def below(self, end_offset: Offset) -> Voters:
        """The voter set after the records below `end_offset`."""
        return self._sets[bisect_right(self._offsets, end_offset - 1) - 1]

    def since(self, offset: Offset) -> set[Voters]:
        """The voter set after the records below `offset`, and all later ones."""
        return {self.below(offset), *self._sets[bisect_right(self._offsets, offset - 1) :]}

    def add(self, offset: Offset, change: VoterChange) -> None:
        """Applies the change at `offset`; an added voter replaces the voter with the same id."""
        key = ReplicaKey(change.voter_id, change.voter_uuid)
        others = frozenset(voter for voter in self.latest if voter.id != key.id)
        self._offsets.append(offset)
        self._sets.append(others | {key} if isinstance(change, AddVoterRecord) else self.latest - {key})


@dataclass(slots=True, eq=False)
class LogCopy:
    """A copy of the log on one disk: the values from `start` to `end`, the changes of the voters in it and the voter
    sets they lead to. Everything below `matched` equals the committed values.
    """

    start: Offset = 0
    values: list[Value] = field(default_factory=list)
    changes: dict[Offset, VoterChange] = field(default_factory=dict)
    history: VoterSets = field(default_factory=lambda: VoterSets(frozenset()))
    matched: Offset = 0
    flushed: Offset = 0
    _last: RecordBatch | None = None

    @property
    def end(self) -> Offset:
        return self.start + len(self.values)

    @property
    def durable(self) -> Offset:
        """The offset below which the log equals the committed values and is flushed."""
        return min(self.matched, self.flushed)

    def update(self, log: SimLog, committed: VoterSets) -> None:
        self.flushed = log.flushed_offset
        last = self._last
        if last is not None and log.start_offset < self.end <= log.end_offset:
            [held] = log.read(self.end - 1, 1)
            if held is last:
                dropped = max(0, log.start_offset - self.start)
                del self.values[:dropped]
                self.start += dropped
                self._take(log.read(self.end, _ALL) if self.end < log.end_offset else ())
                return
        self.start = self.matched = log.start_offset
        self.values, self.changes, self._last = [], {}, None
        self.history = VoterSets(committed.below(self.start))
        self._take(log.read(self.start, _ALL))

    def _take(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            self._last = batch
            self.values += [(batch.leader_epoch, text) for text in _encoded_records(batch.payload)]
            for offset, record in enumerate(decode_records(batch.payload), batch.base_offset):
                if isinstance(record, VoterChange):
                    self.changes[offset] = record
                    self.history.add(offset, record)

    def match(self, committed: Sequence[Value]) -> None:
        """Compares the values above `matched` with the committed ones."""
        known = min(self.end, len(committed))
        self.matched = min(max(self.matched, self.start), len(committed))
        while self.matched < known and self.values[self.matched - self.start] == committed[self.matched]:
            self.matched += 1


@dataclass(slots=True)
class GlobalView:
    """The state of all disks and all commits. `base` is the voter set of an empty log; `running` and `disks` belong to
    the harness; `committed_by` is the end offset that the leader of each epoch has committed; `sent` holds every value
    that was appended, each once; `new_commit` is the commit of the last step.
    """

    base: Voters
    disks: Mapping[NodeId, SimStorage]
    running: dict[NodeId, QuorumReplica] = field(default_factory=dict)
    committed: list[Value] = field(default_factory=list)
    committed_by: dict[Epoch, Offset] = field(default_factory=dict)
    copies: dict[NodeId, LogCopy] = field(default_factory=dict)
    keys: dict[NodeId, ReplicaKey] = field(default_factory=dict)
    lost: dict[ReplicaKey, LogCopy] = field(default_factory=dict)
    losses: Counter[NodeId] = field(default_factory=Counter)
    changes: dict[Offset, VoterChange] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    new_commit: Commit | None = None
    history: VoterSets = field(init=False)

    def __post_init__(self) -> None:
        self.history = VoterSets(self.base)

    @property
    def voters(self) -> Voters:
        return self.history.latest

    def update(self, step: ReplicaStep) -> None:
        self.new_commit = None
        node, replica = step.node, step.replica
        copy = self.copies.setdefault(node, LogCopy())
        former_end = copy.end
        copy.update(self.disks[node].open_log(METADATA_LOG), self.history)
        if replica is not None:
            if replica.key.uuid:
                self.keys[node] = replica.key
            self._commit(replica, copy, former_end)
        copy.match(self.committed)

    def _commit(self, replica: QuorumReplica, copy: LogCopy, former_end: Offset) -> None:
        first, end = len(self.committed), min(replica.high_watermark, copy.end)
        if end <= first or copy.start > first:
            return
        sets = frozenset({copy.history.below(max(former_end, end)), copy.history.latest})
        self.new_commit = Commit(replica.epoch, end, sets)
        self.committed += copy.values[first - copy.start : end - copy.start]
        self.committed_by[replica.epoch] = end
        for offset in filter(copy.changes.__contains__, range(first, end)):
            self.changes[offset] = copy.changes[offset]
            self.history.add(offset, copy.changes[offset])
        for other in (*self.copies.values(), *self.lost.values()):
            other.match(self.committed)

    def lose(self, node: NodeId) -> None:
        """Records the loss of the disk of a node that does not run."""
        self.losses[node] += 1
        copy, key = self.copies.pop(node, None), self.keys.pop(node, None)
        if key is not None and copy is not None:
            self.lost[key] = copy

    def disk(self, node: NodeId) -> Disk:
        return node, self.losses[node]

    def copies_of(self, voter: ReplicaKey) -> list[LogCopy]:
        """The logs that a voter key refers to: one, or without a uuid those of all disks that the node has had."""
        if voter.uuid != NO_UUID:
            is_here = self.keys.get(voter.id) == voter
            return [self.copies[voter.id]] if is_here else [self.lost[voter]] if voter in self.lost else []
        here = [self.copies[voter.id]] if voter.id in self.copies else []
        return here + [copy for key, copy in self.lost.items() if key.id == voter.id]

    def has_disk(self, voter: ReplicaKey) -> bool:
        """Whether the disk of a voter is intact, whether the voter runs or not."""
        return voter.id in self.keys and matches(voter, self.keys[voter.id])

    def sets_in_use(self) -> set[Voters]:
        """The voter sets that a replica may be using: the committed one, and all later ones on any disk."""
        found = {self.voters}
        for copy in self.copies.values():
            found |= copy.history.since(len(self.committed))
        return found
