"""Replicas of a metadata log alone, under a virtual clock: a network that loses, doubles and reorders, crashes that
keep or lose the disk, cuts, changes of the voters, and what must hold after every event.

Invariants, named as in the published model of KRaft with reconfiguration:

    OneLeaderPerEpoch      no epoch has two leaders
    NoLogDivergence        logs agree on everything below their high watermarks
    LeaderHasAllAckedValues  who becomes leader has everything that was ever committed
    NeverTwoUncommittedChanges  at most one change of the voters in a leader's log is not committed
    HighWatermarkMonotone  within a life it never goes back
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from experiments.engine import Loss
from experiments.sim.disk import SimStorage
from protocol.contract import CancelTimer, Outbox, Send, SetTimer
from protocol.ids import DRIVER, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import ControlRecord, QuorumRequest, QuorumResponse
from protocol.messages.records import ProducerIdsRecord
from protocol.quorum.context import QuorumConfig
from protocol.quorum.election import Role
from protocol.quorum.format import format_first_voter
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

CLUSTER = "lab"
Value = tuple[Epoch, bytes]


class BrokenInvariantError(AssertionError):
    """`name: what was found`."""


@dataclass(slots=True)
class Node:
    """A replica that runs."""

    replica: QuorumReplica
    out: Outbox
    life: int
    timers: dict[str, int] = field(default_factory=dict)
    high_watermark: Offset = 0
    led: Epoch = -1


class QuorumLab:
    """`size` replicas; with `static` all of them are voters by configuration, else the first is formatted as the one
    voter and the others are observers until they are added.
    """

    def __init__(self, seed: str, size: int, *, static: bool = False, observers: int = 0) -> None:
        self.rng = Random(seed)
        self.now_ms: TimeMs = 0
        self.ids = tuple(range(1000, 1000 + size))
        self.observers = tuple(range(observers))
        self.static = static
        self.disks: dict[NodeId, SimStorage] = {node: SimStorage() for node in (*self.ids, *self.observers)}
        self.nodes: dict[NodeId, Node] = {}
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.loss = self.doubling = 0.0
        self.slowest_ms = 5
        self.answers: list[QuorumResponse] = []
        self.committed: list[Value] = []
        self.leaders: dict[Epoch, ReplicaKey] = {}
        self.events = 0
        self._heap: list[tuple[TimeMs, int, NodeId, int, tuple[NodeId, Message] | str]] = []
        self._sequence = 0
        self._lives = 0
        self._sent = 0
        if not static:
            format_first_voter(self.disks[1000], CLUSTER, ReplicaKey(1000, f"{self.rng.getrandbits(128):032x}"))

    # -- the world -----------------------------------------------------------------------------------------------------

    def start(self, *nodes: NodeId) -> None:
        for node in nodes:
            self._lives += 1
            out = Outbox()
            config = QuorumConfig(CLUSTER, voters=self.ids if self.static else (), bootstrap=self.ids)
            rng = Random(self.rng.random())
            can_vote = node in self.ids
            replica = QuorumReplica(node, config, self.disks[node], rng, out, can_vote=can_vote)
            self.nodes[node] = Node(replica, out, self._lives)
            replica.start(self.now_ms)
            self._carry_out(node)

    def crash(self, node: NodeId, loss: Loss | None = None) -> None:
        del self.nodes[node]
        self.disks[node].apply_loss(loss or Loss("unflushed"))

    def cut(self, *nodes: NodeId) -> None:
        """These nodes hear of nobody and nobody of them."""
        others = set(self.disks) - set(nodes)
        self.cuts |= {pair for a in nodes for b in others for pair in ((a, b), (b, a))}

    def heal(self) -> None:
        self.cuts.clear()
        self.loss = self.doubling = 0.0
        self.slowest_ms = 5
        self.start(*(node for node in self.disks if node not in self.nodes))

    def ask(self, node: NodeId, request: QuorumRequest) -> None:
        """A request of the operator."""
        self._push(self.now_ms + 1, node, 0, (DRIVER, request))

    def run_for(self, duration_ms: int) -> None:
        self.run_until(lambda: False, duration_ms)

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Whether the condition came true."""
        until_ms = self.now_ms + within_ms
        while not condition():
            if not self._heap or self._heap[0][0] > until_ms:
                self.now_ms = until_ms
                return condition()
            self._step()
        return True

    def _step(self) -> None:
        self.now_ms, number, target, life, what = heappop(self._heap)
        node = self.nodes.get(target)
        if node is None or (life and life != node.life):
            return
        if isinstance(what, str):
            if node.timers.get(what) != number:
                return
            del node.timers[what]
            assert node.replica.fire(self.now_ms, what)
        else:
            sender, message = what
            if (sender, target) in self.cuts:
                return
            assert node.replica.receive(self.now_ms, sender, message)
        self._carry_out(target)

    def _carry_out(self, name: NodeId) -> None:
        self.events += 1
        node = self.nodes[name]
        node.replica.settle(self.now_ms)
        for effect in node.out.drain():
            if isinstance(effect, Send):
                self._send(name, effect.to, effect.message)
            elif isinstance(effect, SetTimer):
                node.timers[effect.name] = self._push(max(effect.at_ms, self.now_ms), name, node.life, effect.name)
            elif isinstance(effect, CancelTimer):
                node.timers.pop(effect.name, None)
        self.check(name)

    def _send(self, source: NodeId, target: NodeId, message: Message) -> None:
        if target == DRIVER:
            assert isinstance(message, QuorumResponse)
            self.answers.append(message)
            return
        if (source, target) in self.cuts or self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < self.doubling else 1):
            self._push(self.now_ms + self.rng.randint(1, self.slowest_ms), target, 0, (source, message))

    def _push(self, at_ms: TimeMs, target: NodeId, life: int, what: tuple[NodeId, Message] | str) -> int:
        self._sequence += 1
        heappush(self._heap, (at_ms, self._sequence, target, life, what))
        return self._sequence

    # -- what it does --------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> QuorumReplica | None:
        """The running leader of the newest epoch."""
        leading = [node.replica for node in self.nodes.values() if node.replica.is_leader]
        return max(leading, key=lambda replica: replica.epoch, default=None)

    def append(self) -> None:
        """A value of its own at every replica that thinks it leads."""
        for name, node in sorted(self.nodes.items()):
            if node.replica.is_leader:
                self._sent += 1
                node.replica.append([ProducerIdsRecord(next_producer_id=self._sent)])
                self._carry_out(name)

    def is_settled(self) -> bool:
        """One leader, whom all others follow, everything committed everywhere, nobody waiting for anything."""
        leader = self.leader
        if leader is None or len(self.nodes) < len(self.disks):
            return False
        end = leader.log.end_offset
        return all(
            node.replica.epoch == leader.epoch
            and node.replica.high_watermark == node.replica.log.end_offset == end
            and node.replica.role in (Role.LEADER, Role.FOLLOWER)
            for node in self.nodes.values()
        )

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self, name: NodeId) -> None:
        node = self.nodes[name]
        replica = node.replica
        if replica.high_watermark < node.high_watermark:
            raise BrokenInvariantError(
                f"HighWatermarkMonotone: {name}: {replica.high_watermark} after {node.high_watermark}"
            )
        if replica.high_watermark > node.high_watermark:
            self._check_committed(name, node)
        if replica.is_leader and node.led != replica.epoch:
            node.led = replica.epoch
            self._check_new_leader(replica)
        if replica.is_leader:
            changes = self._changes_above(replica)
            if len(changes) > 1:
                raise BrokenInvariantError(f"NeverTwoUncommittedChanges: {name}: {changes}")

    def _check_committed(self, name: NodeId, node: Node) -> None:
        replica = node.replica
        first = max(node.high_watermark, replica.log.start_offset)
        for batch in replica.read(first, 2**62):
            values = _values(batch)
            known = self.committed[batch.base_offset : batch.next_offset]
            if known and known != values:
                raise BrokenInvariantError(f"NoLogDivergence: {name} at {batch.base_offset}: {values}, not {known}")
            if not known:
                if batch.base_offset != len(self.committed):
                    raise BrokenInvariantError(f"NoLogDivergence: {name} commits {batch.base_offset} unknown to all")
                self.committed += values
        node.high_watermark = replica.high_watermark

    def _check_new_leader(self, replica: QuorumReplica) -> None:
        other = self.leaders.setdefault(replica.epoch, replica.key)
        if other != replica.key:
            raise BrokenInvariantError(f"OneLeaderPerEpoch: {replica.epoch}: {other} and {replica.key}")
        if replica.log.end_offset < len(self.committed):
            raise BrokenInvariantError(f"LeaderHasAllAckedValues: {replica.key} lacks {len(self.committed)}")
        for batch in replica.log.read(replica.log.start_offset, 2**62):
            values = _values(batch)
            known = self.committed[batch.base_offset : batch.next_offset]
            if known and known != values[: len(known)]:
                raise BrokenInvariantError(f"LeaderHasAllAckedValues: {replica.key} has {values}, not {known}")

    def _changes_above(self, replica: QuorumReplica) -> Sequence[ControlRecord]:
        found = []
        if replica.log.voters.last_change >= len(self.committed):
            for batch in replica.log.read(len(self.committed), 2**62):
                records = [record for record in unpack_records(batch.payload) if isinstance(record, ControlRecord)]
                found += [record for record in records if type(record).__name__ != "LeaderChangeRecord"]
        return found


def _values(batch: RecordBatch) -> list[Value]:
    """The records of a batch, each as what two logs must have at its offset."""
    records = unpack_records(batch.payload)
    return [(batch.leader_epoch, record.model_dump_json().encode()) for record in records]
