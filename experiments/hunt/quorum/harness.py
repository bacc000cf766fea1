"""Hosts replicas of a metadata log under a virtual clock: a network that loses, duplicates, delays and reorders
messages, crashes that keep or lose data on disk, partitions, and paused processes.

The harness treats a replica as a host does: inputs, effects, and a disk (`protocol/contract.py`). After every step it
updates the global view, calls the listeners and checks the safety invariants. The same seed and the same calls give the
same steps; `trace_hash` identifies them.
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
from experiments.hunt.quorum.global_view import GlobalView, ReplicaStep
from experiments.hunt.quorum.liveness import all_converge, newest_leader
from experiments.hunt.quorum.safety import SAFETY_INVARIANTS, SafetyInvariant
from protocol.contract import CancelTimer, Outbox, Send, SetTimer
from protocol.errors import ProtocolInvariantError
from protocol.ids import DRIVER, FIRST_CONTROLLER, NodeId, TimeMs
from protocol.messages.base import Message, Request, Response
from protocol.messages.codec import encode
from protocol.messages.records import ProducerIdsRecord
from protocol.quorum import state_file
from protocol.quorum.context import QuorumConfig
from protocol.quorum.format import disk_uuid, format_voters
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet

CLUSTER = "lab"
BLANK_START, NOTHING = "start without a disk", "nothing"
_CRASHES = {"none": "crash", "all": "crash, the disk is lost"}
Listener = Callable[[ReplicaStep], None]


class PropertyViolatedError(AssertionError):
    """A safety invariant or liveness property (`name`) does not hold; `detail` describes the violation."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name, self.detail = name, detail


class _DueTimer(NamedTuple):
    """A timer is due, if the newest setting of it still has this number."""

    timer: str
    number: int


class _Delivery(NamedTuple):
    """A message arrives."""

    sender: NodeId
    message: Message


@dataclass(slots=True)
class RunningReplica:
    """A running replica: `incarnation` is the number of its start, `timers` the newest setting of each timer."""

    replica: QuorumReplica
    out: Outbox
    incarnation: int
    timers: dict[str, int] = field(default_factory=dict)
    paused_until_ms: TimeMs = 0


class QuorumHarness:
    """A simulated quorum of `size` controllers and some brokers (`observers`, which never vote). With `static` all
    controllers are voters by configuration; else the first is formatted as the only voter, and the others are observers
    until they are added.

    Callers may change these between steps: `cuts`, the pairs (from, to) between which messages are lost; `loss` and
    `duplication`, probabilities per message; `max_latency_ms`; and `reorders`, without which messages of a pair arrive
    in the order sent. `last_request_id` is the operator's last correlation id, `responses` are those it received.
    """

    def __init__(self, seed: str, size: int, *, static: bool = False, observers: int = 0) -> None:
        self.rng = Random(seed)
        self.now_ms: TimeMs = 0
        self.ids = tuple(range(FIRST_CONTROLLER, FIRST_CONTROLLER + size))
        self.observers = tuple(range(observers))
        self.static = static
        self.disks: dict[NodeId, SimStorage] = {node: SimStorage() for node in (*self.ids, *self.observers)}
        self.nodes: dict[NodeId, RunningReplica] = {}
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.loss = self.duplication = 0.0
        self.max_latency_ms = 5
        self.reorders = False
        self.last_request_id = 0
        self.responses: list[Response] = []
        self.events = 0
        base = frozenset(ReplicaKey(node, NO_UUID) for node in self.ids) if static else frozenset()
        self.view = GlobalView(base, self.disks)
        self.invariants: list[SafetyInvariant] = [invariant(self.view) for invariant in SAFETY_INVARIANTS]
        self.listeners: list[Listener] = []
        self._heap: list[tuple[TimeMs, int, NodeId, int, _DueTimer | _Delivery]] = []
        self._channels: dict[tuple[NodeId, NodeId], TimeMs] = {}
        self._numbers = 0
        self._incarnations = 0
        self._hash = md5(usedforsecurity=False)
        if not static:
            first = ReplicaKey(self.ids[0], disk_uuid(self.rng))
            format_voters(self.disks[first.id], CLUSTER, first, VoterSet.of([first]), now_ms=0)

    # -- faults and time -----------------------------------------------------------------------------------------------

    def start(self, *nodes: NodeId) -> None:
        """Starts a new incarnation of each node on its disk."""
        for node in nodes:
            self._incarnations += 1
            out = Outbox()
            config = QuorumConfig(CLUSTER, voters=self.ids if self.static else (), bootstrap=self.ids)
            rng = Random(self.rng.random())
            replica = QuorumReplica(node, config, self.disks[node], rng, out, can_vote=node in self.ids)
            self.nodes[node] = RunningReplica(replica, out, self._incarnations)
            is_blank = self.disks[node].read_file(state_file.FILE) is None
            replica.start(self.now_ms)
            self.view.running[node] = replica
            self._run_effects(node, BLANK_START if is_blank else "start")

    def crash(self, node: NodeId, loss: Loss | None = None) -> None:
        """Ends the process. The disk loses what `loss` says, by default all unflushed data; with `all`, everything."""
        loss = loss or Loss("unflushed")
        incarnation = self.nodes.pop(node).incarnation
        self.view.running.pop(node, None)
        self.disks[node].apply_loss(loss)
        if loss.kind == "all":
            self.view.lose(node)
        self._record_step(
            ReplicaStep(self.now_ms, node, incarnation, None, _CRASHES.get(loss.kind, f"crash, {loss.kind} lost"))
        )

    def shut_down(self, node: NodeId) -> None:
        """Ends the process after a controlled shutdown, without loss of data."""
        self.nodes[node].replica.shut_down()
        self._run_effects(node, "shutdown")
        self.crash(node, Loss("none"))

    def cut(self, *nodes: NodeId) -> None:
        """Partitions these nodes from all other nodes, in both directions."""
        others = set(self.disks) - set(nodes)
        self.cuts |= {pair for a in nodes for b in others for pair in ((a, b), (b, a))}

    def pause(self, node: NodeId, duration_ms: int) -> None:
        """Pauses the process; it then receives all messages and timers of the meantime."""
        self.nodes[node].paused_until_ms = self.now_ms + duration_ms

    def heal(self) -> None:
        """Ends all faults and starts every node that is down."""
        self.cuts.clear()
        self.loss = self.duplication = 0.0
        self.max_latency_ms = 5
        self.reorders = False
        for node in self.nodes.values():
            node.paused_until_ms = self.now_ms
        self.start(*(node for node in self.disks if node not in self.nodes))

    def submit(self, node: NodeId, request: Request) -> None:
        """Sends a request of the operator to a running node; it is lost if that process ends first."""
        if node in self.nodes:
            self._push(self.now_ms + 1, node, self.nodes[node].incarnation, _Delivery(DRIVER, request))

    def run_for(self, duration_ms: int) -> None:
        """Advances the virtual time."""
        self.run_until(lambda: False, duration_ms)

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Advances the virtual time until `condition()` holds, at most `within_ms`; returns whether it holds."""
        until_ms = self.now_ms + within_ms
        while not condition():
            if not self._heap or self._heap[0][0] > until_ms:
                self.now_ms = until_ms
                return condition()
            self._step()
        return True

    def _step(self) -> None:
        self.now_ms, _, target, incarnation, what = heappop(self._heap)
        node = self.nodes.get(target)
        if node is None or (incarnation and incarnation != node.incarnation):
            return
        if node.paused_until_ms > self.now_ms:
            self._push(node.paused_until_ms, target, incarnation, what)
        elif isinstance(what, _DueTimer):
            if node.timers.get(what.timer) == what.number:
                del node.timers[what.timer]
                self._process(target, what.timer, lambda: node.replica.fire(self.now_ms, what.timer))
        elif (what.sender, target) not in self.cuts:
            sender, message = what
            self._process(target, message, lambda: node.replica.receive(self.now_ms, sender, message), sender)

    def _process(
        self, name: NodeId, cause: Message | str, act: Callable[[], bool], sender: NodeId | None = None
    ) -> None:
        try:
            assert act(), f"{cause} was not taken"
            self._run_effects(name, cause, sender)
        except ProtocolInvariantError as error:
            raise PropertyViolatedError("NoIllegalState", str(error)) from error

    def _run_effects(self, name: NodeId, cause: Message | str, sender: NodeId | None = None) -> None:
        self.events += 1
        node = self.nodes[name]
        node.replica.settle(self.now_ms)
        sends = []
        for effect in node.out.drain():
            if isinstance(effect, Send):
                sends.append(effect)
                self._send(name, effect.to, effect.message)
            elif isinstance(effect, SetTimer):
                due = _DueTimer(effect.name, self._numbers)
                node.timers[effect.name] = due.number
                self._push(max(effect.at_ms, self.now_ms), name, node.incarnation, due)
            elif isinstance(effect, CancelTimer):
                node.timers.pop(effect.name, None)
        self._record_step(ReplicaStep(self.now_ms, name, node.incarnation, node.replica, cause, sender, sends))

    def _send(self, source: NodeId, target: NodeId, message: Message) -> None:
        if target == DRIVER:
            assert isinstance(message, Response)
            self.responses.append(message)
            return
        if (source, target) in self.cuts or self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < self.duplication else 1):
            at_ms = self.now_ms + self.rng.randint(1, self.max_latency_ms)
            if not self.reorders:
                at_ms = self._channels[source, target] = max(at_ms, self._channels.get((source, target), 0))
            self._push(at_ms, target, 0, _Delivery(source, message))

    def _push(self, at_ms: TimeMs, target: NodeId, incarnation: int, what: _DueTimer | _Delivery) -> None:
        self._numbers += 1
        heappush(self._heap, (at_ms, self._numbers, target, incarnation, what))

    # -- observing and appending ---------------------------------------------------------------------------------------

    @property
    def leader(self) -> QuorumReplica | None:
        """The running leader of the newest epoch."""
        return newest_leader(self.view)

    def append(self) -> None:
        """Appends a new value at every replica that considers itself the leader and is not paused."""
        for name, node in sorted(self.nodes.items()):
            if node.replica.is_leader and node.paused_until_ms <= self.now_ms:
                record = ProducerIdsRecord(next_producer_id=len(self.view.sent) + 1)
                self.view.sent.append(encode(record))
                node.replica.append(self.now_ms, [record])
                self._run_effects(name, "append")

    def observe(self, node: NodeId) -> None:
        """A step without an input, so that listeners and invariants see the replica."""
        self._run_effects(node, NOTHING)

    def is_settled(self) -> bool:
        """Whether every node runs and follows one leader, and every replica has committed its whole log."""
        return not all_converge(self.view)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _record_step(self, step: ReplicaStep) -> None:
        self.view.update(step)
        self._hash_step(step)
        for observe in self.listeners:
            observe(step)
        for invariant in self.invariants:
            replica = step.replica
            violation = invariant.check_stopped(step) if replica is None else invariant.check(step, replica)
            if violation:
                raise PropertyViolatedError(type(invariant).__name__, violation)

    def _hash_step(self, step: ReplicaStep) -> None:
        cause, replica = step.cause, step.replica
        what = cause if isinstance(cause, str) else f"{type(cause).__name__} of {step.sender}"
        if replica is not None:
            what += f" {replica.role} {replica.epoch} {replica.high_watermark} {replica.log.end_offset}"
        self._hash.update(f"{step.now_ms} {step.node} {what} {[send.to for send in step.sends]}\n".encode())

    def trace_hash(self) -> str:
        """The hash of all steps so far: 32 hexadecimal digits."""
        return self._hash.hexdigest()
