"""The metadata of a cluster, read from the disks of its controllers: so they are known while no broker runs, too.

A batch counts as committed when the logs of a majority of the voters end at or behind it, and the newest batch of which
that is true is of the newest leader's epoch (Raft, section 5.4.2: batches of older epochs are committed by one of the
leader's own). Two logs with a batch of the same epoch that ends at the same offset are equal up to there. The voters
are those of the newest voter record in the leader's log, else those that the cluster was formatted with.

What has been seen as committed stays so; a log in which it is missing means that a majority of the disks was replaced,
and raises. A controller's role is what its quorum state says, a file that it writes before it acts in an epoch. A
process that was started after it had led resigns (KafkaRaftClient), though its file still names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.engines.kafka.metadata_records import Translator, leader_of, voters_of
from experiments.engines.kafka.segments import DiskBatch, DiskLog
from experiments.engines.port import ClusterView
from protocol.config import ClusterConfig
from protocol.contract import Outbox
from protocol.errors import ProtocolInvariantError
from protocol.events.base import Trace
from protocol.events.controller import ControllerStarted, MetadataCommitted
from protocol.ids import NO_LEADER, Epoch, NodeId, Offset, TopicIdPartition, TopicPartition
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.nodes.controller_log import trace_partition, trace_record
from protocol.quorum.describe import QuorumView
from protocol.quorum.election import Role
from protocol.quorum.voters import ReplicaKey

FOLDER = "__cluster_metadata-0"
LEADER_CHANGE, VOTERS = 2, 6
"""Types of control records."""
Emit = Callable[[NodeId, Trace], None]


@dataclass(frozen=True, slots=True)
class QuorumState:
    """A controller's quorum state on its disk; no leader is -1."""

    leader: NodeId = NO_LEADER
    epoch: Epoch = 0


def quorum_state(disk: Path) -> QuorumState:
    """The quorum state on a disk; the first one where none is written yet, or half of one."""
    try:
        found = json.loads((disk / FOLDER / "quorum-state").read_text())
    except (FileNotFoundError, ValueError):
        return QuorumState()
    return QuorumState(int(found["leaderId"]), int(found["leaderEpoch"]))


def newest_leader(disks: Iterable[Path]) -> NodeId:
    """The leader of the newest epoch that a controller's disk names, -1 for none."""
    newest = max(map(quorum_state, disks), key=lambda state: state.epoch, default=QuorumState())
    return newest.leader


def disk_uuid(disk: Path) -> str:
    """The directory id of a formatted disk, empty where it has none."""
    try:
        lines = (disk / "meta.properties").read_text().splitlines()
    except FileNotFoundError:
        return ""
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("directory.id=")), "")


def committed_end(logs: Mapping[NodeId, Sequence[DiskBatch]], voters: Sequence[NodeId]) -> tuple[NodeId, int]:
    """The controller with the newest log, and how many batches of it are committed (the theory is above)."""
    ends = {node: (log[-1].epoch, log[-1].next_offset) if log else (-1, 0) for node, log in logs.items()}
    newest = max(ends, key=ends.__getitem__)
    places = {(batch.next_offset, batch.epoch): place for place, batch in enumerate(logs[newest], 1)}
    held = []
    for voter in voters:
        equal = (places.get((batch.next_offset, batch.epoch), 0) for batch in reversed(logs.get(voter, ())))
        held.append(next((place for place in equal if place), 0))
    count = sorted(held, reverse=True)[len(held) // 2] if held else 0
    is_of_newest_epoch = count > 0 and logs[newest][count - 1].epoch == logs[newest][-1].epoch
    return newest, count if is_of_newest_epoch else 0


@dataclass(slots=True)
class MetadataLog:
    """`records` are the committed ones, `image` is their state. `emit` receives the trace events that an active
    controller of this project would report. `aliases` as in `Translator`.
    """

    disks: Mapping[NodeId, Path]
    config: ClusterConfig
    first_voters: tuple[ReplicaKey, ...]
    aliases: Mapping[str, str]
    emit: Emit
    records: list[MetadataRecord] = field(default_factory=list)
    image: MetadataImage = field(init=False)
    voters: tuple[ReplicaKey, ...] = field(init=False)
    led: Epoch = -1
    """The epoch of the newest leader whose first record is committed."""
    _translator: Translator = field(init=False)
    _logs: dict[NodeId, DiskLog] = field(init=False)
    _last: DiskBatch | None = None
    _committed: Offset = 0
    _leaders: dict[Epoch, NodeId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.image = MetadataImage(self.config)
        self.voters = self.first_voters
        self._translator = Translator(self.image, self.aliases)
        self._logs = {node: DiskLog(disk / FOLDER) for node, disk in self.disks.items()}

    def refresh(self) -> bool:
        """Replays what has been committed since the last call; returns whether there was anything."""
        have_changed = [log.refresh() for log in self._logs.values()]
        if not any(have_changed):
            return False
        logs = {node: log.batches for node, log in self._logs.items()}
        newest, count = committed_end(logs, [key.id for key in self.voters])
        batches = logs[newest]
        if self._last is not None and count:
            held = [batch for batch in batches if batch.next_offset == self._last.next_offset]
            if [batch.epoch for batch in held] != [self._last.epoch]:
                raise ProtocolInvariantError("committed metadata are gone: a majority of the disks was replaced")
        fresh = [batch for batch in batches[:count] if batch.next_offset > self._committed]
        for batch in fresh:
            self._replay(batch)
        return bool(fresh)

    def _replay(self, batch: DiskBatch) -> None:
        self._last, self._committed = batch, batch.next_offset
        if batch.is_control:
            for kind_of, value in batch.pairs():
                kind = int.from_bytes(kind_of[2:4], "big")
                if kind == LEADER_CHANGE:
                    self.led = batch.epoch
                    self._leaders[batch.epoch] = leader_of(value)
                    self.emit(self._leaders[batch.epoch], ControllerStarted(len(self.records)))
                elif kind == VOTERS:
                    self.voters = voters_of(value)
            return
        begin = len(self.records)
        out, changed = Outbox(), dict[TopicIdPartition, None]()
        for _, value in batch.pairs():
            for record in self._translator.records(value):
                self.image.replay(record)
                delta = self.image.take_delta()
                self.records.append(record)
                changed |= delta.partitions
                trace_record(out, self.image, record, delta)
        if len(self.records) == begin:
            return
        for key in changed:
            trace_partition(out, self.image, key)
        leader = self._leaders.get(batch.epoch, NO_LEADER)
        self.emit(leader, MetadataCommitted(begin, len(self.records)))
        for effect in out.drain():
            assert isinstance(effect, Trace)
            self.emit(leader, effect)

    def state_of(self, partition: TopicPartition) -> PartitionState | None:
        """The committed state of a partition."""
        topic = self.image.topic_named(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def is_held_without(self, node: NodeId) -> bool:
        """Whether another disk than that of `node` has all that is committed."""
        others = (log.batches for other, log in self._logs.items() if other != node)
        return any(batch.next_offset == self._committed for batches in others for batch in reversed(batches))

    def view(self) -> ClusterView:
        """The committed state."""
        image = self.image
        partitions = {image.name_of(key): state for key, state in image.partitions()}
        voters = tuple(key.id for key in self.voters)
        return ClusterView(partitions, dict(image.brokers), voters, controllers=tuple(image.controllers))

    def quorum(self, running: Mapping[NodeId, Epoch]) -> Iterator[tuple[NodeId, QuorumView]]:
        """The views of the running controllers, each with the epoch that its disk had when it was started."""
        voters = {key.id for key in self.voters}
        for node, began in running.items():
            state = quorum_state(self.disks[node])
            is_leader = state.leader == node and state.epoch > began
            is_active = is_leader and self.led >= state.epoch
            role = "observer" if node not in voters else _role(node, state, is_leader, is_active).value
            yield node, QuorumView(role, disk_uuid(self.disks[node]), state.epoch, is_active, self.voters)


def _role(node: NodeId, state: QuorumState, is_leader: bool, is_active: bool) -> Role:
    """A leader whose first record is not committed is a candidate, as on the other engines."""
    if is_leader:
        return Role.LEADER if is_active else Role.CANDIDATE
    if state.leader == node:
        return Role.RESIGNED
    return Role.UNATTACHED if state.leader == NO_LEADER else Role.FOLLOWER
