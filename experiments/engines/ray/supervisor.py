"""The supervisor of a running cluster (`isray up`): starts the nodes, reports when they are ready, polls, and ends
them.

Ray ties actors to the job that created them and a private Ray to the process that started it, so a cluster ends with
this process, however that ends. SIGTERM, SIGINT and SIGHUP end it in good order.

Polling also fetches the trace events that nodes keep for an observer, so they do not pile up. A node that died is not
restarted, as a broker on a machine is not: the cluster shows failures and does not hide them. The supervisor records
the death in the state file and passes it to `report`. A user ends and restarts nodes by `isray node`; the supervisor
carries out its commands between two polls (`node_commands.py`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ray.exceptions import GetTimeoutError

from actors.cluster import ActorCluster, NodeFailedError, PlacementError
from actors.nodes import PollReport
from actors.storage import is_disk_loss
from experiments.engines.port import ClusterSpec, ClusterView, cluster_view
from experiments.engines.ray.cluster_state import (
    ClusterOptions,
    ClusterState,
    Status,
    claim,
    remove_state,
    socket_path,
    write_state,
)
from experiments.engines.ray.node_commands import (
    ALLOWED,
    NodeAction,
    NodeAnswer,
    NodeCommand,
    NodeRow,
    NodeServer,
    NodeState,
)
from experiments.engines.ray.recovery_manager import needs_recovery_manager
from experiments.engines.ray.session import RayStartError, ray_session
from protocol.config import ClusterConfig
from protocol.events.broker import StorageFailed
from protocol.ids import RECOVERY_MANAGER, NodeId, is_client, node_name
from protocol.messages.commands import ShutdownCommand

READY_WITHIN_S = 180.0
STOP_WITHIN_S = 60.0
POLL_S = 0.5
_STARTING_POLL_S = 0.05
_ANSWER_WITHIN_S = 1.0
_SETTLED = ("leader", "follower", "observer")
"""Quorum roles of controllers that know the leader."""

Report = Callable[[str], None]


class NotReadyError(RuntimeError):
    """The cluster did not become ready in time, or a node ended before."""


CLUSTER_FAILURES = (NotReadyError, NodeFailedError, PlacementError, RayStartError)
"""The errors of `run_cluster` that are not caused by the input."""


def disk_failure(report: PollReport) -> str:
    """The reason where a disk failure has ended the node, empty otherwise."""
    failures = [trace for _, trace in report.traces if isinstance(trace, StorageFailed) and trace.halted]
    return f"its disk has failed: {failures[0].reason}" if failures else ""


class Supervisor:
    """Starts and polls a cluster's nodes, and keeps its state file up to date; no other process writes that file."""

    def __init__(self, cluster: ActorCluster, spec: ClusterSpec, state: ClusterState, report: Report) -> None:
        self.state = state
        self._cluster = cluster
        self._spec = spec
        self._report = report
        self._unfenced: frozenset[NodeId] = frozenset()
        self._roles: dict[NodeId, str] = {}
        self._paused: set[NodeId] = set()
        self._stopping: set[NodeId] = set()

    def start(self) -> None:
        """Starts all nodes; returns when every broker is unfenced and every controller follows the active one;
        in `v3`, when a broker is controller and all are registered.
        NotReadyError where that is not so within `READY_WITHIN_S`, or a node ends.
        """
        for node in self._spec.node_ids:
            self._cluster.start(node)
        deadline_s = time.monotonic() + READY_WITHIN_S
        while missing := self._missing():
            if time.monotonic() > deadline_s:
                raise NotReadyError(f"not ready within {READY_WITHIN_S:.0f} s: {', '.join(map(node_name, missing))}")
            self.poll()
            self._read_snapshots()
            if self.state.dead:
                raise NotReadyError("; ".join(self.state.events))
            time.sleep(_STARTING_POLL_S)
        pids = {node_name(node): pid for node, pid in self._cluster.pids().items()}
        self._write(self.state.model_copy(update={"status": Status.READY, "pids": pids}))

    def poll(self) -> None:
        """Polls the nodes once, and records and reports those that have ended."""
        before = self._cluster.running()
        reasons: dict[NodeId, str] = {}
        try:
            reports = self._cluster.poll(_ANSWER_WITHIN_S)
            reasons = {node: reason for node, report in reports if (reason := disk_failure(report))}
            if needs_recovery_manager(self._cluster, reports):
                self._cluster.start(RECOVERY_MANAGER)
        except NodeFailedError as error:
            reasons[error.node] = str(error)
        ended = [node for node in before if not self._cluster.is_running(node)]
        for node in ended:
            reason = reasons.get(node, "its process has ended")
            if node not in self._stopping or node in reasons:
                text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {node_name(node)}: {reason}"
                self._report(text)
                self._write(self.state.with_event(text))
            self._ended(node)

    # -- the commands of isray node ------------------------------------------------------------------------------------

    def carry_out(self, command: NodeCommand) -> NodeAnswer:
        """Carries out a command, and records it as an event."""
        known = dict.fromkeys((*self._spec.node_ids, *self._cluster.running()))
        names = {node_name(node): node for node in known if not is_client(node)}
        if command.action is NodeAction.LIST:
            return NodeAnswer(rows=tuple(map(self._row, names.values())))
        if command.node not in names:
            return NodeAnswer(found=str(command.node), allowed=", ".join(names))
        node = names[command.node]
        state, allowed = self._node_state(node), ALLOWED[command.action]
        if state not in allowed:
            return NodeAnswer(found=f"{state} node {command.node}", allowed=f"a node that is {' or '.join(allowed)}")
        try:
            failure = self._act(node, command)
        except (NodeFailedError, GetTimeoutError) as error:
            failure = " ".join(str(error).split())
        except ProcessLookupError:
            failure = "its process has ended"
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {command.node}: isray node {command.action}"
        self._write(self.state.with_event(f"{text}{failure and f' failed: {failure}'}"))
        return NodeAnswer(rows=(self._row(node),), failure=failure)

    def _act(self, node: NodeId, command: NodeCommand) -> str:
        """Carries out a possible command; returns why it failed, or nothing."""
        cluster, pid = self._cluster, self.state.pids.get(node_name(node), 0)
        match command.action:
            case NodeAction.KILL:
                cluster.kill(node, pid)
                assert is_disk_loss(command.loss_kind)
                cluster.lose_at_start(node, command.loss_kind, command.loss_count)
                self._ended(node)
            case NodeAction.STOP:
                return self._stop(node)
            case NodeAction.START:
                cluster.start(node)
                self._began(node, cluster.pid(node))
            case NodeAction.PAUSE:
                cluster.signal(node, pid, signal.SIGSTOP)
                self._paused.add(node)
            case NodeAction.RESUME:
                cluster.signal(node, pid, signal.SIGCONT)
                self._paused.discard(node)
            case NodeAction.REPLACE_DISK:
                cluster.lose_at_start(node, "all", 0)
        return ""

    def _stop(self, node: NodeId) -> str:
        self._stopping.add(node)
        self._cluster.send(node, ShutdownCommand())
        deadline_s = time.monotonic() + STOP_WITHIN_S
        while self._cluster.is_running(node):
            if time.monotonic() > deadline_s:
                return f"its shutdown is not done within {STOP_WITHIN_S:.0f} s; it goes on"
            self.poll()
        return ""

    def resume_all(self) -> None:
        """Resumes the paused nodes, so that they can end."""
        for node in sorted(self._paused):
            self._cluster.signal(node, self.state.pids[node_name(node)], signal.SIGCONT)
        self._paused.clear()

    def _node_state(self, node: NodeId) -> NodeState:
        if not self._cluster.is_running(node):
            return NodeState.ENDED
        return NodeState.PAUSED if node in self._paused else NodeState.RUNNING

    def _row(self, node: NodeId) -> NodeRow:
        name, state = node_name(node), self._node_state(node)
        pid = None if state is NodeState.ENDED else self.state.pids.get(name)
        return NodeRow(node=name, state=state, pid=pid, directory=str(self._cluster.directory(node)))

    def _began(self, node: NodeId, pid: int) -> None:
        name = node_name(node)
        dead = tuple(other for other in self.state.dead if other != name)
        self._write(self.state.model_copy(update={"pids": self.state.pids | {name: pid}, "dead": dead}))

    def _ended(self, node: NodeId) -> None:
        self._paused.discard(node)
        self._stopping.discard(node)
        self._write(self.state.model_copy(update={"dead": (*self.state.dead, node_name(node))}))

    # -- readiness -----------------------------------------------------------------------------------------------------

    def _missing(self) -> list[NodeId]:
        """The brokers that are fenced, and the controllers that know no leader yet."""
        controllers = [node for node in self._spec.controller_ids if self._roles.get(node) not in _SETTLED]
        return controllers + [broker for broker in self._spec.broker_ids if broker not in self._unfenced]

    def _read_snapshots(self) -> None:
        for node, snapshot in self._cluster.snapshots(_ANSWER_WITHIN_S):
            if snapshot.quorum is not None:
                self._roles[node] = snapshot.quorum.role
                if snapshot.quorum.is_active:
                    self._unfenced = ClusterView(snapshot.partitions, snapshot.brokers).unfenced
            elif snapshot.store is not None and (view := cluster_view(snapshot.store)) is not None:
                self._unfenced = view.unfenced

    def _write(self, state: ClusterState) -> None:
        self.state = state
        write_state(state)


def run_cluster(
    options: ClusterOptions, config: ClusterConfig, ready: Callable[[ClusterState], None], report: Report
) -> None:
    """Runs a cluster until a signal ends it. Calls `ready` with its state once it is ready, and `report` with a line
    for each node that ends. Call from the main thread.

    InputError where the name is taken or the Ray cannot be reached; one of `CLUSTER_FAILURES` where the cluster does
    not become ready.
    """
    state = claim(options)
    try:
        with ray_session(options.address) as session:
            spec = ClusterSpec(options.brokers, options.controllers, config)
            racks = dict(enumerate(options.racks))
            store = spec.store_settings if spec.store_ids else None
            cluster = ActorCluster(spec.member_ids, config, spec.seed, racks, voters=spec.first_voters, store=store)
            try:
                folders = [str(folder) for folder in (session.folder, cluster.folder) if folder is not None]
                known = {"address": session.address, "namespace": cluster.run, "folders": tuple(folders)}
                state = state.model_copy(update=known | {"nodes": tuple(node_name(node) for node in spec.node_ids)})
                write_state(state)
                supervisor = Supervisor(cluster, spec, state, report)
                supervisor.start()
                path = socket_path(options.name)
                with _stop_signals() as stop, NodeServer(path, supervisor.carry_out) as commands:
                    ready(supervisor.state)
                    while not stop.is_set():
                        commands.serve_one(POLL_S)
                        supervisor.poll()
                    supervisor.resume_all()
            finally:
                cluster.close()
    finally:
        remove_state(options.name)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM, SIGINT and SIGHUP set during the block."""
    stop = threading.Event()

    def set_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, set_stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
