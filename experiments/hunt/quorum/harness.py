"""The quorum alone on the simulator (`experiments/engines/sim/cluster.py`): its replicas as nodes of a cluster that has
nothing else, with messages that outlive the process to which they were sent, faults of all links at once, requests of
an operator, and the safety invariants, which are checked after every input of a replica. The same seed and the same
calls give the same steps; `trace_hash` identifies them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import md5
from itertools import permutations
from random import Random
from typing import Literal
from zlib import crc32

from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.disk import SimStorage
from experiments.engines.sim.network import Disturbance, NetworkModel
from experiments.engines.sim.recorder import Change, Recorder
from experiments.hunt.quorum.global_view import GlobalView, ReplicaStep
from experiments.hunt.quorum.liveness import all_converge, newest_leader
from experiments.hunt.quorum.safety import SAFETY_INVARIANTS, SafetyInvariant
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox, Send
from protocol.errors import ProtocolInvariantError
from protocol.ids import DRIVER, NodeId, TimeMs, is_controller
from protocol.messages.base import Message, Request, Response
from protocol.messages.codec import encode
from protocol.messages.records import ProducerIdsRecord
from protocol.quorum import state_file
from protocol.quorum.context import QuorumConfig
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.state_file import disk_uuid, format_voters
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet

CLUSTER = "lab"
BLANK_START, NOTHING = "start without a disk", "nothing"
JITTER_MS = 4
_CRASHES = {"none": "crash", "all": "crash, the disk is lost"}
Listener = Callable[[ReplicaStep], None]
Effects = Literal["lose", "duplicate", "reorder"]


class PropertyViolatedError(AssertionError):
    """A safety invariant or liveness property (`name`) does not hold; `detail` describes the violation."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name, self.detail = name, detail


class ReplicaNode:
    """A replica of the metadata log as a node (`contract.Node`); `incarnation` is the number of its start."""

    def __init__(
        self, node_id: NodeId, config: QuorumConfig, storage: SimStorage, rng: Random, incarnation: int
    ) -> None:
        self.node_id = node_id
        self.out = Outbox()
        self.incarnation = incarnation
        self.replica = QuorumReplica(node_id, config, storage, rng, self.out, can_vote=is_controller(node_id))

    def start(self, now_ms: TimeMs) -> list[Effect]:
        self.replica.start(now_ms)
        return self.settle(now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        assert self.replica.receive(now_ms, sender, message), f"{message} was not taken"
        return self.settle(now_ms)

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        assert self.replica.fire(now_ms, name), f"{name} was not taken"
        return self.settle(now_ms)

    def settle(self, now_ms: TimeMs) -> list[Effect]:
        """Ends an input: what the replica does because of it."""
        self.replica.settle(now_ms)
        return self.out.drain()


class QuorumHarness(Recorder):
    """A simulated quorum of `size` controllers and some brokers (`observers`, which never vote). With `static` all
    controllers are voters by configuration; else the first is formatted as the only voter, and the others are observers
    until they are added, or with `joins` add themselves. `last_request_id` is the operator's last correlation id,
    `responses` are those that it received.
    """

    def __init__(self, seed: str, size: int, *, static: bool = False, observers: int = 0, joins: bool = False) -> None:
        spec = ClusterSpec(observers, size, ClusterConfig(), crc32(seed.encode()), voters=())
        model = NetworkModel(jitter_ms=JITTER_MS)
        self.cluster = SimCluster(
            spec, model, elide_idle=False, keep_traces=False, build=lambda node: self.build(node), outlives_process=True
        )
        self.cluster.recorder = self
        self.cluster.on_event = self._after_input
        self.cluster.on_outcome = self._take_response
        self.ids, self.observers, self.static, self.joins = spec.controller_ids, spec.broker_ids, static, joins
        self.disks = {node: self.cluster.disks[node] for node in (*self.ids, *self.observers)}
        self.nodes: dict[NodeId, ReplicaNode] = {}
        self.last_request_id = 0
        self.responses: list[Response] = []
        self.events = 0
        base = frozenset(ReplicaKey(node, NO_UUID) for node in self.ids) if static else frozenset()
        self.view = GlobalView(base, self.disks)
        self.invariants: list[SafetyInvariant] = [invariant(self.view) for invariant in SAFETY_INVARIANTS]
        self.listeners: list[Listener] = []
        self._cause: Message | str = NOTHING
        self._sender: NodeId | None = None
        self._sends: list[Send] = []
        self._paused_until_ms: dict[NodeId, TimeMs] = {}
        self._disturbances: list[Disturbance] = []
        self._incarnations = 0
        self._hash = md5(usedforsecurity=False)
        if not static:
            first = ReplicaKey(self.ids[0], disk_uuid(Random(f"{seed}/disk")))
            format_voters(self.disks[first.id], CLUSTER, first, VoterSet.of([first]), now_ms=0)

    @property
    def now_ms(self) -> TimeMs:
        return self.cluster.now_ms

    def build(self, node: NodeId, kind: type[ReplicaNode] = ReplicaNode) -> ReplicaNode:
        """The node factory: a new incarnation of a replica, on its disk."""
        self._incarnations += 1
        voters = self.ids if self.static else ()
        config = QuorumConfig(CLUSTER, voters=voters, bootstrap=self.ids, joins=self.joins)
        rng = Random(f"{self.cluster.spec.seed}/{self._incarnations}")
        return kind(node, config, self.disks[node], rng, self._incarnations)

    def start(self, *nodes: NodeId) -> None:
        for node in nodes:
            is_blank = self.disks[node].read_file(state_file.FILE) is None
            self._cause = BLANK_START if is_blank else "start"
            self.cluster.start(node)

    def crash(self, node: NodeId, loss: Loss | None = None) -> None:
        """Ends the process. The disk loses what `loss` says, by default all unflushed data; with `all`, everything."""
        loss = loss or Loss("unflushed")
        incarnation = self.nodes.pop(node).incarnation
        self._paused_until_ms.pop(node, None)
        self.view.running.pop(node, None)
        self.cluster.crash(node, loss)
        if loss.kind == "all":
            self.view.lose(node)
        cause = _CRASHES.get(loss.kind, f"crash, {loss.kind} lost")
        self._record_step(ReplicaStep(self.now_ms, node, incarnation, None, cause))

    def shut_down(self, node: NodeId) -> None:
        """Ends the process after a controlled shutdown, without loss of data."""
        self.nodes[node].replica.shut_down()
        self.observe(node, "shutdown")
        self.crash(node, Loss("none"))

    @property
    def cuts(self) -> frozenset[tuple[NodeId, NodeId]]:
        """The pairs (from, to) between which messages are lost."""
        return frozenset(self.cluster.network.cuts())

    @cuts.setter
    def cuts(self, pairs: set[tuple[NodeId, NodeId]] | frozenset[tuple[NodeId, NodeId]]) -> None:
        for source, target in sorted(self.cuts ^ pairs):
            self.cluster.set_link(source, target, (source, target) not in pairs)

    def cut(self, *nodes: NodeId) -> None:
        """Partitions these nodes from all other nodes, in both directions."""
        others = set(self.disks) - set(nodes)
        self.cuts |= {pair for a in nodes for b in others for pair in ((a, b), (b, a))}

    def disturb(self, loss: float = 0.0, duplication: float = 0.0, latest_ms: int | None = None) -> None:
        """Replaces the disturbance of all links: probabilities per message, and how much later messages may come."""
        for former in self._disturbances:
            self.cluster.clear_disturbance(former)
        late_ms = JITTER_MS if latest_ms is None else latest_ms
        chances: dict[Effects, float] = {"lose": loss, "duplicate": duplication, "reorder": latest_ms is not None}
        self._disturbances = [
            Disturbance(source, target, effect, round(1_000 * chance), late_ms)
            for source, target in permutations(sorted(self.disks), 2)
            for effect, chance in chances.items()
            if chance
        ]
        for disturbance in self._disturbances:
            self.cluster.disturb_link(disturbance)

    def pause(self, node: NodeId, duration_ms: int) -> None:
        """Pauses the process; it then receives all messages and timers of the meantime."""
        if not self.is_paused(node):
            self.cluster.pause(node)
        self._paused_until_ms[node] = until_ms = self.now_ms + duration_ms
        self.cluster.call_at(until_ms, partial(self._resume, node, until_ms))

    def _resume(self, node: NodeId, until_ms: TimeMs) -> None:
        if self._paused_until_ms.get(node) == until_ms:
            del self._paused_until_ms[node]
            self.cluster.resume(node)

    def is_paused(self, node: NodeId) -> bool:
        return node in self._paused_until_ms

    def heal(self) -> None:
        """Ends all faults and starts every node that is down."""
        self.cuts = frozenset()
        self.disturb()
        for node, until_ms in sorted(self._paused_until_ms.items()):
            self._resume(node, until_ms)
        self.start(*(node for node in self.disks if node not in self.nodes))

    def submit(self, node: NodeId, request: Request) -> None:
        """Sends a request of the operator to a running node; it is lost if that process ends first."""
        if node in self.nodes:
            arrive = partial(self._arrive, node, self.nodes[node].incarnation, request)
            self.cluster.call_at(self.now_ms + 1, arrive)

    def _arrive(self, node: NodeId, incarnation: int, request: Request) -> None:
        if node not in self.nodes or self.nodes[node].incarnation != incarnation:
            return
        if self.is_paused(node):
            self.cluster.call_at(self._paused_until_ms[node], partial(self._arrive, node, incarnation, request))
            return
        self._cause, self._sender = request, DRIVER
        self.cluster.command(node, request)

    def run_for(self, duration_ms: int) -> None:
        self.run_until(lambda: False, duration_ms)

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Advances the virtual time until `condition()` holds, at most `within_ms`; returns whether it holds."""
        until_ms = self.now_ms + within_ms
        try:
            while not condition():
                if not self.cluster.step(until_ms):
                    return condition()
        except ProtocolInvariantError as error:
            raise PropertyViolatedError("NoIllegalState", str(error)) from error
        return True

    @property
    def leader(self) -> QuorumReplica | None:
        return newest_leader(self.view)

    def append(self) -> None:
        """Appends a new value at every replica that considers itself the leader and is not paused."""
        for name, node in sorted(self.nodes.items()):
            if node.replica.is_leader and not self.is_paused(name):
                record = ProducerIdsRecord(next_producer_id=len(self.view.sent) + 1)
                self.view.sent.append(encode(record))
                node.replica.append(self.now_ms, [record])
                self.observe(name, "append")

    def observe(self, node: NodeId, cause: str = NOTHING) -> None:
        """A step without an input, so that listeners and invariants see the replica."""
        self._cause = cause
        self.cluster.carry_out(node, self.nodes[node].settle(self.now_ms))

    def is_settled(self) -> bool:
        """Whether every node runs and follows one leader, and every replica has committed its whole log."""
        return not all_converge(self.view)

    def sent(
        self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message, arrivals: Sequence[TimeMs]
    ) -> None:
        self._sends.append(Send(target, message))

    def _take_response(self, message: Message) -> None:
        assert isinstance(message, Response)
        self.responses.append(message)
        self._sends.append(Send(DRIVER, message))

    def delivered(self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message) -> None:
        self._cause, self._sender = message, source

    def fired(self, time_ms: TimeMs, node: NodeId, timer: str) -> None:
        self._cause = timer

    def changed(self, time_ms: TimeMs, change: Change, node: NodeId, peer: NodeId | None, detail: str) -> None:
        if change == "started":
            found = self.cluster.nodes[node]
            assert isinstance(found, ReplicaNode)
            self.nodes[node], self.view.running[node] = found, found.replica

    def _after_input(self, now_ms: TimeMs, node: NodeId) -> None:
        self.events += 1
        running = self.nodes[node]
        cause, sender, sends = self._cause, self._sender, self._sends
        self._cause, self._sender, self._sends = NOTHING, None, []
        self._record_step(ReplicaStep(now_ms, node, running.incarnation, running.replica, cause, sender, sends))

    def _record_step(self, step: ReplicaStep) -> None:
        self.view.update(step)
        cause, replica = step.cause, step.replica
        what = cause if isinstance(cause, str) else f"{type(cause).__name__} of {step.sender}"
        if replica is not None:
            what += f" {replica.role} {replica.epoch} {replica.high_watermark} {replica.log.end_offset}"
        self._hash.update(f"{step.now_ms} {step.node} {what} {[send.to for send in step.sends]}\n".encode())
        for observe in self.listeners:
            observe(step)
        for invariant in self.invariants:
            for violation in invariant.check_stopped(step) if replica is None else invariant.check(step, replica):
                raise PropertyViolatedError(type(invariant).__name__, violation)

    def trace_hash(self) -> str:
        """The hash of all steps so far: 32 hexadecimal digits."""
        return self._hash.hexdigest()
