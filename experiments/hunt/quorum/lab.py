"""Replicas of a metadata log alone, under a virtual clock: a network that loses, doubles and reorders, crashes that
keep or lose the disk, cuts and pauses. After every event the invariants are checked (`invariants.py`).

The laboratory knows of a replica what a host knows: inputs, effects, its disk. What it is, it is by its seed: the same
seed and the same calls give the same events, of which `trace_hash` is the hash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import md5
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimStorage
from experiments.hunt.quorum.invariants import INVARIANTS, Invariant
from experiments.hunt.quorum.properties import all_converge, newest_leader
from experiments.hunt.quorum.truth import Event, Truth, Value
from protocol.contract import CancelTimer, Outbox, Send, SetTimer
from protocol.errors import ProtocolInvariantError
from protocol.ids import DRIVER, FIRST_CONTROLLER, NodeId, TimeMs
from protocol.messages.base import Message, Request, Response
from protocol.messages.records import ProducerIdsRecord
from protocol.quorum import state_file
from protocol.quorum.context import QuorumConfig
from protocol.quorum.format import disk_uuid, format_voters
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet

CLUSTER = "lab"
BLANK_START, NOTHING = "start without a disk", "nothing"
_CRASHES = {"none": "crash", "all": "crash, the disk is lost"}
Observer = Callable[[Event], None]


class BrokenInvariantError(AssertionError):
    """`name: what was found`."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant, self.detail = invariant, detail


class _Due(NamedTuple):
    """A timer that was set with this number."""

    timer: str
    number: int


class _Arrival(NamedTuple):
    sender: NodeId
    message: Message


@dataclass(slots=True)
class Node:
    """A replica that runs."""

    replica: QuorumReplica
    out: Outbox
    life: int
    timers: dict[str, int] = field(default_factory=dict)
    paused_until_ms: TimeMs = 0


class QuorumLab:
    """`size` replicas that may vote and some that never can; with `static` all of the former are voters by
    configuration, else the first is formatted as the one voter, and the others are observers until they are added.
    `cuts` are pairs (from, to) between which nothing arrives. Messages take up to `slowest_ms`; those of a pair arrive
    in the order in which they were sent, unless the network `reorders`. `asked` is the number of the operator's last
    request, and `answers` are those that it got.
    """

    def __init__(self, seed: str, size: int, *, static: bool = False, observers: int = 0) -> None:
        self.rng = Random(seed)
        self.now_ms: TimeMs = 0
        self.ids = tuple(range(FIRST_CONTROLLER, FIRST_CONTROLLER + size))
        self.observers = tuple(range(observers))
        self.static = static
        self.disks: dict[NodeId, SimStorage] = {node: SimStorage() for node in (*self.ids, *self.observers)}
        self.nodes: dict[NodeId, Node] = {}
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.loss = self.doubling = 0.0
        self.slowest_ms = 5
        self.reorders = False
        self.asked = 0
        self.answers: list[Response] = []
        self.events = 0
        base = frozenset(ReplicaKey(node, NO_UUID) for node in self.ids) if static else frozenset()
        self.truth = Truth(base, self.disks)
        self.invariants: list[Invariant] = [invariant(self.truth) for invariant in INVARIANTS]
        self.observing: list[Observer] = []
        self._heap: list[tuple[TimeMs, int, NodeId, int, _Due | _Arrival]] = []
        self._channels: dict[tuple[NodeId, NodeId], TimeMs] = {}
        self._numbers = 0
        self._lives = 0
        self._hash = md5(usedforsecurity=False)
        if not static:
            first = ReplicaKey(self.ids[0], disk_uuid(self.rng))
            format_voters(self.disks[first.id], CLUSTER, first, VoterSet.of([first]))

    # -- the world -----------------------------------------------------------------------------------------------------

    def start(self, *nodes: NodeId) -> None:
        for node in nodes:
            self._lives += 1
            out = Outbox()
            config = QuorumConfig(CLUSTER, voters=self.ids if self.static else (), bootstrap=self.ids)
            rng = Random(self.rng.random())
            replica = QuorumReplica(node, config, self.disks[node], rng, out, can_vote=node in self.ids)
            self.nodes[node] = Node(replica, out, self._lives)
            is_blank = self.disks[node].read_file(state_file.FILE) is None
            replica.start(self.now_ms)
            self.truth.running[node] = replica
            self._carry_out(node, BLANK_START if is_blank else "start")

    def crash(self, node: NodeId, loss: Loss | None = None) -> None:
        """The process ends, and the disk loses what it has not flushed, or with a loss of `all` everything."""
        loss = loss or Loss("unflushed")
        life = self.nodes.pop(node).life
        self.truth.running.pop(node, None)
        self.disks[node].apply_loss(loss)
        if loss.kind == "all":
            self.truth.lose(node)
        self._happened(Event(self.now_ms, node, life, None, _CRASHES.get(loss.kind, f"crash, {loss.kind} lost")))

    def shut_down(self, node: NodeId) -> None:
        """The process ends in good order."""
        self.nodes[node].replica.shut_down()
        self._carry_out(node, "shutdown")
        self.crash(node, Loss("none"))

    def cut(self, *nodes: NodeId) -> None:
        """These nodes hear of nobody and nobody of them."""
        others = set(self.disks) - set(nodes)
        self.cuts |= {pair for a in nodes for b in others for pair in ((a, b), (b, a))}

    def pause(self, node: NodeId, duration_ms: int) -> None:
        """The process stands still, and then has to do with all that came in the meantime."""
        self.nodes[node].paused_until_ms = self.now_ms + duration_ms

    def heal(self) -> None:
        self.cuts.clear()
        self.loss = self.doubling = 0.0
        self.slowest_ms = 5
        self.reorders = False
        for node in self.nodes.values():
            node.paused_until_ms = self.now_ms
        self.start(*(node for node in self.disks if node not in self.nodes))

    def ask(self, node: NodeId, request: Request) -> None:
        """A request of the operator, which ends with the process that it is to."""
        if node in self.nodes:
            self._push(self.now_ms + 1, node, self.nodes[node].life, _Arrival(DRIVER, request))

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
        self.now_ms, _, target, life, what = heappop(self._heap)
        node = self.nodes.get(target)
        if node is None or (life and life != node.life):
            return
        if node.paused_until_ms > self.now_ms:
            self._push(node.paused_until_ms, target, life, what)
        elif isinstance(what, _Due):
            if node.timers.get(what.timer) == what.number:
                del node.timers[what.timer]
                self._input(target, what.timer, lambda: node.replica.fire(self.now_ms, what.timer))
        elif (what.sender, target) not in self.cuts:
            sender, message = what
            self._input(target, message, lambda: node.replica.receive(self.now_ms, sender, message), sender)

    def _input(self, name: NodeId, cause: Message | str, act: Callable[[], bool], sender: NodeId | None = None) -> None:
        try:
            assert act(), f"{cause} was not taken"
            self._carry_out(name, cause, sender)
        except ProtocolInvariantError as error:
            raise BrokenInvariantError("NoIllegalState", str(error)) from error

    def _carry_out(self, name: NodeId, cause: Message | str, sender: NodeId | None = None) -> None:
        self.events += 1
        node = self.nodes[name]
        node.replica.settle(self.now_ms)
        sends = []
        for effect in node.out.drain():
            if isinstance(effect, Send):
                sends.append(effect)
                self._send(name, effect.to, effect.message)
            elif isinstance(effect, SetTimer):
                due = _Due(effect.name, self._numbers)
                node.timers[effect.name] = due.number
                self._push(max(effect.at_ms, self.now_ms), name, node.life, due)
            elif isinstance(effect, CancelTimer):
                node.timers.pop(effect.name, None)
        self._happened(Event(self.now_ms, name, node.life, node.replica, cause, sender, sends))

    def _send(self, source: NodeId, target: NodeId, message: Message) -> None:
        if target == DRIVER:
            assert isinstance(message, Response)
            self.answers.append(message)
            return
        if (source, target) in self.cuts or self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < self.doubling else 1):
            at_ms = self.now_ms + self.rng.randint(1, self.slowest_ms)
            if not self.reorders:
                at_ms = self._channels[source, target] = max(at_ms, self._channels.get((source, target), 0))
            self._push(at_ms, target, 0, _Arrival(source, message))

    def _push(self, at_ms: TimeMs, target: NodeId, life: int, what: _Due | _Arrival) -> None:
        self._numbers += 1
        heappush(self._heap, (at_ms, self._numbers, target, life, what))

    # -- what it does --------------------------------------------------------------------------------------------------

    @property
    def committed(self) -> list[Value]:
        return self.truth.committed

    @property
    def leader(self) -> QuorumReplica | None:
        """The running leader of the newest epoch."""
        return newest_leader(self.truth)

    def append(self) -> None:
        """A value of its own at every replica that thinks it leads."""
        for name, node in sorted(self.nodes.items()):
            if node.replica.is_leader and node.paused_until_ms <= self.now_ms:
                record = ProducerIdsRecord(next_producer_id=len(self.truth.sent) + 1)
                self.truth.sent.append(record.model_dump_json().encode())
                node.replica.append([record])
                self._carry_out(name, "append")

    def look_at(self, node: NodeId) -> None:
        """An event in which nothing happens."""
        self._carry_out(node, NOTHING)

    def is_settled(self) -> bool:
        """One leader, whom all others follow, everything committed everywhere."""
        return not all_converge(self.truth)

    # -- what is seen of it --------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        self.truth.look(event)
        self._note(event)
        for observe in self.observing:
            observe(event)
        for invariant in self.invariants:
            replica = event.replica
            wrong = invariant.gone(event) if replica is None else invariant.check(event, replica)
            if wrong:
                raise BrokenInvariantError(type(invariant).__name__, wrong)

    def _note(self, event: Event) -> None:
        cause, replica = event.cause, event.replica
        what = cause if isinstance(cause, str) else f"{type(cause).__name__} of {event.sender}"
        if replica is not None:
            what += f" {replica.role} {replica.epoch} {replica.high_watermark} {replica.log.end_offset}"
        self._hash.update(f"{event.now_ms} {event.node} {what} {[send.to for send in event.sends]}\n".encode())

    def trace_hash(self) -> str:
        """Of all events so far: 32 hexadecimal digits."""
        return self._hash.hexdigest()
