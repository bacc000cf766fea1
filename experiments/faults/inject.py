"""Faults, carried out on a simulated cluster: each one's beginning and its healing half, at their times.

Faults overlap. What several of them keep in a state (a node down, a node still, a direction cut, a disk full) is over
when the last of them is. A node that has ended although no fault keeps it down, be it that its disk was full or that
its controlled shutdown outlived the fault, is started again by a supervisor that looks every `SUPERVISE_MS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import alter_config, reassign
from experiments.engines.port import Loss
from experiments.engines.sim.network import Disturbance
from experiments.faults.atlas import granted
from experiments.faults.schema import (
    ClockSkew,
    Configure,
    Crash,
    Cut,
    Disturb,
    Fault,
    FullDisk,
    HeartbeatLoss,
    MessageKind,
    Pause,
    PowerLoss,
    Reassign,
    Restart,
    SlowDisk,
    VoterChange,
    loss_of,
)
from experiments.faults.voters import QuorumOperator
from experiments.story.chapter import Chapter
from protocol.contract import Trace
from protocol.ids import NodeId, TimeMs, is_controller
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.commands import AdminCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.data import FetchRenewal, FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
)
from protocol.messages.recovery import (
    CancelRecoveries,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    RecoverPartitions,
    RecoveryResults,
)

SUPERVISE_MS = 500
_KINDS: Mapping[MessageKind | None, tuple[type[Message], ...]] = {
    None: (),
    "registrations": (BrokerRegistrationRequest, BrokerRegistrationResponse),
    "heartbeats": (BrokerHeartbeatRequest, BrokerHeartbeatResponse),
    "proposals": (AlterPartitionRequest, AlterPartitionResponse),
    "metadata": (QuorumFetchRequest, QuorumFetchResponse, FetchSnapshotRequest, FetchSnapshotResponse),
    "fetches": (FetchRequest, FetchRenewal, FetchResponse),
    "produce": (ProduceRequest, ProduceResponse),
    "recoveries": (
        RecoverPartitions,
        CancelRecoveries,
        RecoveryResults,
        GetReplicaLogInfoRequest,
        GetReplicaLogInfoResponse,
    ),
}
_WRITES = frozenset({"appended", "fetched"})


class _Holds:
    """Who keeps which node in a state."""

    def __init__(self) -> None:
        self._holders: dict[NodeId, set[object]] = {}

    def add(self, node: NodeId, holder: object) -> None:
        self._holders.setdefault(node, set()).add(holder)

    def drop(self, node: NodeId, holder: object) -> None:
        self._holders.get(node, set()).discard(holder)

    def clear(self, node: NodeId) -> None:
        self._holders.pop(node, None)

    def __contains__(self, node: NodeId) -> bool:
        return bool(self._holders.get(node))


class Injector:
    """Carries out the faults of one run. `topic_configs` are the configs with which the topics were created;
    `next_id` numbers the administration commands. `chapters` tells what was done, `done` counts beginnings by kind,
    and `withheld` the losses that the atlas did not grant; it is not asked of brokers unless the run is to stay
    `within_tolerance`.
    """

    def __init__(
        self,
        engine: CheckedEngine,
        topic_configs: Mapping[str, Mapping[str, object]],
        next_id: Callable[[], int],
        within_tolerance: bool = True,
    ) -> None:
        self.chapters: list[Chapter] = []
        self.done: Counter[str] = Counter()
        self.withheld = 0
        self._engine = engine
        self._cluster = engine.cluster
        self._configs = topic_configs
        self._next_id = next_id
        self._withholds = within_tolerance
        self._down, self._still, self._full = _Holds(), _Holds(), _Holds()
        self._cuts: Counter[tuple[NodeId, NodeId]] = Counter()
        self.operator = QuorumOperator(engine, self._administer)
        self._slow: dict[NodeId, dict[int, int]] = {}
        self._stalls = 0
        self._begins: dict[type, Callable[[int, Any], None]] = {
            Crash: self._crash,
            PowerLoss: self._power_loss,
            Pause: lambda number, fault: self._pause(fault.node, number),
            Restart: self._restart,
            Cut: self._cut,
            Disturb: self._disturb,
            HeartbeatLoss: self._disturb,
            SlowDisk: self._slow_disk,
            FullDisk: self._fill,
            ClockSkew: lambda number, fault: self._skew(fault.node, fault.skew_ms),
            Reassign: lambda number, fault: self._administer(reassign(fault.topic, fault.partition, fault.replicas)),
            Configure: lambda number, fault: self._administer(alter_config(fault.topic, fault.config)),
            VoterChange: lambda number, fault: self._change_vote(fault.node, 1),
        }
        self._heals: dict[type, Callable[[int, Any], None]] = {
            Crash: self._let_up,
            PowerLoss: self._let_up,
            Pause: lambda number, fault: self._resume(fault.node, number),
            Restart: self._let_up,
            Cut: self._mend,
            Disturb: self._calm,
            HeartbeatLoss: self._calm,
            SlowDisk: self._hasten_disk,
            FullDisk: self._make_room,
            ClockSkew: lambda number, fault: self._skew(fault.node, 0),
            Reassign: lambda number, fault: self._administer(reassign(fault.topic, fault.partition, None)),
            Configure: self._configure_back,
            VoterChange: lambda number, fault: self._change_vote(fault.node, -1),
        }

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Has all of these begin and heal at their times, and the supervisor look after nodes from now on."""
        for number, fault in enumerate(faults):
            self._cluster.call_at(fault.at_ms, partial(self._begin, number, fault))
            self._cluster.call_at(fault.end_ms, partial(self._heal, number, fault))
        self._supervise()

    def _begin(self, number: int, fault: Fault) -> None:
        self._tell(f"fault {number} begins: {described(fault)}")
        self.done[fault.kind] += 1
        self._begins[type(fault)](number, fault)

    def _heal(self, number: int, fault: Fault) -> None:
        self._tell(f"fault {number} ends: {fault.kind}")
        self._heals[type(fault)](number, fault)

    def _tell(self, text: str) -> None:
        self.chapters.append(Chapter(text, len(self._cluster.traces)))

    # -- processes -----------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        for node in self._engine.spec.node_ids:
            self._start(node)
        if len(self._engine.spec.controller_ids) > 1:
            self.operator.look()
        self._cluster.call_at(self._cluster.now_ms + SUPERVISE_MS, self._supervise)

    def _start(self, node: NodeId) -> None:
        if not self._engine.is_running(node) and node not in self._down and node not in self._full:
            self._engine.start(node)

    def _kill(self, node: NodeId, asked: Loss) -> None:
        """Ends a process, or what is left on the machine of one that has ended."""
        is_judged = self._withholds or is_controller(node)
        loss = granted(asked, node, self._engine.suite.truth, self.operator) if is_judged else asked
        if loss != asked:
            self.withheld += 1
            self._tell(f"node {node} keeps what it has: more would be beyond tolerance")
        self._still.clear(node)
        self._engine.crash(node, loss)

    def _crash(self, number: int, fault: Crash) -> None:
        self._down.add(fault.node, number)
        if self._engine.is_running(fault.node):
            self._kill(fault.node, fault.loss)

    def _power_loss(self, number: int, fault: PowerLoss) -> None:
        for node in sorted(fault.rack):
            self._down.add(node, number)
            self._kill(node, loss_of("unflushed"))

    def _restart(self, number: int, fault: Restart) -> None:
        self._down.add(fault.node, number)
        if self._engine.is_running(fault.node) and not self._engine.is_paused(fault.node):
            self._engine.terminate(fault.node)

    def _let_up(self, number: int, fault: Crash | PowerLoss | Restart) -> None:
        for node in sorted(fault.nodes):
            self._down.drop(node, number)
            self._start(node)

    def _skew(self, node: NodeId, skew_ms: int) -> None:
        if self._engine.is_running(node):
            self._kill(node, loss_of("nothing"))
        self._cluster.set_clock(node, skew_ms)
        self._start(node)

    # -- stillness -----------------------------------------------------------------------------------------------------

    def _pause(self, node: NodeId, holder: object) -> None:
        if self._engine.is_running(node):
            self._still.add(node, holder)
            if not self._engine.is_paused(node):
                self._engine.pause(node)

    def _resume(self, node: NodeId, holder: object) -> None:
        self._still.drop(node, holder)
        if node not in self._still and self._engine.is_paused(node):
            self._engine.resume(node)

    # -- disks ---------------------------------------------------------------------------------------------------------

    def _fill(self, number: int, fault: FullDisk) -> None:
        self._full.add(fault.node, number)
        self._cluster.disks[fault.node].set_full(True)

    def _make_room(self, number: int, fault: FullDisk) -> None:
        self._full.drop(fault.node, number)
        if fault.node not in self._full:
            self._cluster.disks[fault.node].set_full(False)
            self._start(fault.node)

    def _slow_disk(self, number: int, fault: SlowDisk) -> None:
        if self._observe not in self._cluster.trace_observers:
            self._cluster.trace_observers.append(self._observe)
        self._slow.setdefault(fault.node, {})[number] = fault.write_ms

    def _hasten_disk(self, number: int, fault: SlowDisk) -> None:
        del self._slow[fault.node][number]

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        slow = self._slow.get(node)
        if slow and trace.kind in _WRITES:
            self._cluster.call_at(now_ms, partial(self._stall, node, max(slow.values())))

    def _stall(self, node: NodeId, duration_ms: int) -> None:
        self._stalls += 1
        holder = ("write", self._stalls)
        self._pause(node, holder)
        self._cluster.call_at(self._cluster.now_ms + duration_ms, partial(self._resume, node, holder))

    # -- links ---------------------------------------------------------------------------------------------------------

    def _cut(self, number: int, fault: Cut) -> None:
        for link in _directions(fault):
            self._cuts[link] += 1
            self._engine.set_link(*link, False)

    def _mend(self, number: int, fault: Cut) -> None:
        for link in _directions(fault):
            self._cuts[link] -= 1
            if not self._cuts[link]:
                self._engine.set_link(*link, True)

    def _disturb(self, number: int, fault: Disturb | HeartbeatLoss) -> None:
        for disturbance in self._disturbances(fault):
            self._cluster.disturb_link(disturbance)

    def _calm(self, number: int, fault: Disturb | HeartbeatLoss) -> None:
        for disturbance in self._disturbances(fault):
            self._cluster.calm_link(disturbance)

    def _disturbances(self, fault: Disturb | HeartbeatLoss) -> Iterator[Disturbance]:
        if isinstance(fault, HeartbeatLoss):
            for controller in self._engine.spec.controller_ids:
                yield Disturbance(fault.node, controller, "lose", only=_KINDS["heartbeats"])
                yield Disturbance(controller, fault.node, "lose", only=_KINDS["heartbeats"])
            return
        only = _KINDS[fault.only]
        for source in fault.source:
            for target in fault.target:
                yield Disturbance(source, target, fault.effect, fault.per_mille, fault.delay_ms, only)

    # -- administration ------------------------------------------------------------------------------------------------

    def _administer(self, request: AdminRequest) -> int:
        number = self._next_id()
        self._engine.submit(AdminCommand(command_id=number, request=request))
        return number

    def _change_vote(self, node: NodeId, count: int) -> None:
        self.operator.voteless[node] = self.operator.voteless.get(node, 0) + count
        self.operator.look()

    def _configure_back(self, number: int, fault: Configure) -> None:
        before = self._configs[fault.topic]
        self._administer(alter_config(fault.topic, {name: before.get(name) for name in fault.config}))


def _directions(fault: Cut) -> list[tuple[NodeId, NodeId]]:
    forth = [(source, target) for source in fault.source for target in fault.target]
    return forth if fault.one_way else forth + [(target, source) for source, target in forth]


def described(fault: Fault) -> str:
    """A fault on one line, without its times."""
    fields = fault.model_dump(exclude={"at_ms", "duration_ms", "kind"}, exclude_defaults=True)
    details = ", ".join(f"{name} {value}" for name, value in fields.items())
    return f"{fault.kind} ({details}) for {fault.duration_ms} ms"
