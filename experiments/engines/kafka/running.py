"""Runs a cluster of Apache Kafka for as long as this process lasts (`isray up --engine kafka`): starts the processes,
carries out the commands of `isray node`, `isray net` and `isray status`, and ends the processes.

The state file, the socket and the commands are those of clusters on Ray (`experiments/engines/clusters`). What Kafka's
processes cannot do is refused by name. A process that ends by itself is not restarted, and its last lines are an event.
Clients of other processes reach the brokers at listeners of their own, which no cut link concerns: a link is one
between nodes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol, cast

from experiments.engines.clusters.cluster_state import (
    NOT_RECORDED,
    ClusterOptions,
    ClusterState,
    Status,
    claim,
    remove_state,
    socket_path,
    write_properties,
    write_state,
)
from experiments.engines.clusters.launch import NotReadyError
from experiments.engines.clusters.node_commands import (
    LINK_ACTIONS,
    BrokerReport,
    ClusterReport,
    LinkRow,
    NodeAction,
    NodeAnswer,
    NodeCommand,
    NodeRow,
    NodeServer,
    NodeState,
    link_refusal,
    links_of,
    refusal,
    state_refusal,
)
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.processes import NodeFailed, Program
from experiments.engines.port import ClusterSpec, ClusterView, Loss, LossKind
from experiments.support.errors import InputError
from experiments.support.processes import signals_handled
from protocol.errors import ProtocolInvariantError
from protocol.features import Generation
from protocol.ids import NO_LEADER, NodeId, is_broker, node_name

POLL_S = 0.1
READY_WITHIN_MS = 180_000
IMPOSSIBLE = frozenset({NodeAction.FILL_DISK, NodeAction.FREE_DISK, NodeAction.CORRUPT_TAIL, NodeAction.SLOW})
"""What only nodes on Ray do."""
ELR_FEATURE = "eligible.leader.replicas.version"
Report = Callable[[str], None]


class Recording(Protocol):
    """Writes the recording of a cluster; OSError where it cannot."""

    def mark(self) -> None:
        """Writes what is new."""

    def finish(self) -> None:
        """The cluster is about to end."""

    def close(self) -> None:
        """Nothing more comes."""


RecorderOf = Callable[[Path, str, KafkaEngine], Recording]
"""Makes the recording of a cluster: folder, name, and the engine."""


def run_kafka_cluster(
    options: ClusterOptions,
    spec: ClusterSpec,
    program: Program,
    ready: Callable[[ClusterState], None],
    report: Report,
    recorder_of: RecorderOf,
) -> None:
    """Runs a cluster until a signal ends it. Calls `ready` with its state once it is ready, and `report` with a line
    for each process that ends by itself. `recorder_of` makes the recording of `options.trace`. Call from the main
    thread.

    InputError where the name is taken or a process cannot be started, NotReadyError where the cluster does not become
    ready, or loses its metadata.
    """
    state = claim(options)
    try:
        stop = threading.Event()
        with closing(KafkaEngine(spec, program, with_listeners=True)) as engine, ExitStack() as stack:
            recording = None
            if options.trace is not None:
                recording = recorder_of(Path(options.trace), options.name, engine)
                stack.callback(recording.close)
            with signals_handled((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), lambda _: stop.set()):
                try:
                    _serve(KafkaSupervisor(engine, state, report, recording), stop, ready)
                except ProtocolInvariantError as error:
                    raise NotReadyError(str(error)) from error
    finally:
        remove_state(options.name)


def _serve(supervisor: KafkaSupervisor, stop: threading.Event, ready: Callable[[ClusterState], None]) -> None:
    """Starts the nodes, and carries out commands until a signal comes."""
    if not supervisor.start(stop.is_set):
        return
    with NodeServer(socket_path(supervisor.state.options.name), supervisor.carry_out) as commands:
        ready(supervisor.state)
        commands.timeout = POLL_S
        while not stop.is_set():
            commands.handle_request()
            supervisor.poll()
        supervisor.finish_recording()


class KafkaSupervisor:
    """Starts and watches the processes of a cluster, and keeps its state file up to date."""

    def __init__(
        self, engine: KafkaEngine, state: ClusterState, report: Report, recording: Recording | None = None
    ) -> None:
        self.state = state
        self._recording = recording
        self._engine = engine
        self._cluster = engine.cluster
        self._report = report
        self._running: set[NodeId] = set()
        self._expected: set[NodeId] = set()
        self._reasons: dict[NodeId, str] = {}
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._names = {node_name(node): node for node in self._cluster.nodes}

    def start(self, is_ended: Callable[[], bool]) -> bool:
        """Starts all nodes; returns True when every broker is unfenced, False once `is_ended`. NotReadyError where that
        is not so within `READY_WITHIN_MS`, NodeFailed where a process ends.
        """
        addresses = self._cluster.addresses
        servers = {node_name(node): f"127.0.0.1:{port}" for node, port in addresses.client_ports.items()}
        known = {"address": ",".join(servers.values()), "nodes": tuple(self._names), "listeners": servers}
        folder = str(self._cluster.folder)
        self._write(self.state.model_copy(update=known | {"folders": (folder,), "disks": folder}))
        for node in self._cluster.nodes:
            self._start(node)
        brokers = set(self._engine.spec.broker_ids)
        if not self._engine.run_until(lambda: is_ended() or self._engine.unfenced() >= brokers, READY_WITHIN_MS):
            missing = sorted(brokers - self._engine.unfenced())
            lines = self._cluster.last_lines(missing[0]) or "it printed nothing"
            names = ", ".join(map(node_name, missing))
            raise NotReadyError(
                f"not ready within {READY_WITHIN_MS // 1000} s: {names}; {node_name(missing[0])}: {lines}"
            )
        self._write(self.state.model_copy(update={"status": Status.READY, "pids": self._pids()}))
        write_properties(self.state)
        return not is_ended()

    def _start(self, node: NodeId) -> None:
        self._engine.start(node)
        self._running.add(node)
        self._reasons.pop(node, None)

    def poll(self) -> None:
        """Notices processes that have ended."""
        try:
            self._engine.view()
        except NodeFailed as error:
            self._note(error.node, error.what)
        for node in [node for node in self._running if not self._cluster.is_running(node)]:
            self._running.discard(node)
            if node in self._expected:
                self._expected.discard(node)
            elif node not in self._reasons:
                self._note(node, self._cluster.end_of(node))
                self._engine.crash(node, Loss())
        if (pids := self._pids()) != self.state.pids:
            self._write(self.state.model_copy(update={"pids": pids}))
        self._record(lambda recording: recording.mark())

    def finish_recording(self) -> None:
        """Completes the recording, if there is one, with the logs of the brokers that run or were paused."""
        if self._recording is not None:
            for node in filter(self._cluster.is_paused, self._cluster.nodes):
                self._engine.resume(node)
            self._record(lambda recording: recording.finish())

    def _record(self, act: Callable[[Recording], None]) -> None:
        """Has something recorded, if there is a recording, which ends at its last mark where its files cannot be
        written, as on a full disk. That is an event; the cluster goes on.
        """
        try:
            if self._recording is not None:
                act(self._recording)
        except (OSError, NodeFailed) as error:
            self._recording = None
            reason = error.strerror if isinstance(error, OSError) else error
            self._report(self._record_event("recording", f"{NOT_RECORDED}: {reason}"))

    def carry_out(self, command: NodeCommand) -> NodeAnswer:
        """Carries out a command, and records it as an event."""
        self.poll()
        if command.action in IMPOSSIBLE:
            possible = ", ".join(sorted(set(NodeAction) - IMPOSSIBLE))
            return NodeAnswer(found=f"{command.action} on a cluster of Apache Kafka", allowed=possible)
        if command.action is NodeAction.LIST:
            return NodeAnswer(rows=tuple(map(self._row, self._cluster.nodes)))
        if command.action is NodeAction.DESCRIBE:
            return NodeAnswer(rows=tuple(map(self._row, self._cluster.nodes)), report=self._describe())
        if refused := refusal(command, self._names):
            return refused
        if command.action in LINK_ACTIONS:
            return self._change_links(command)
        node = self._names[str(command.node)]
        if refused := state_refusal(command, self._node_state(node)):
            return refused
        failure = ""
        try:
            self._act(node, command)
        except NodeFailed as error:
            failure = error.what
        except InputError as error:
            return NodeAnswer(found=str(error.found), allowed=error.allowed)
        self._record_event(node_name(node), f"isray node {command.action}{failure and f' failed: {failure}'}")
        self.poll()
        return NodeAnswer(rows=(self._row(node),), failure=failure)

    def _act(self, node: NodeId, command: NodeCommand) -> None:
        engine = self._engine
        match command.action:
            case NodeAction.KILL | NodeAction.LOSE | NodeAction.REPLACE_DISK:
                kind = "all" if command.action is NodeAction.REPLACE_DISK else command.loss_kind
                try:
                    engine.crash(node, Loss(cast(LossKind, kind), command.loss_count))
                finally:
                    if command.action is NodeAction.KILL and not self._cluster.is_running(node):
                        self._reasons[node] = "isray node has ended it"
            case NodeAction.STOP:
                self._expected.add(node)
                engine.terminate(node)
            case NodeAction.START:
                self._start(node)
            case NodeAction.PAUSE:
                engine.pause(node)
            case NodeAction.RESUME:
                engine.resume(node)

    def _change_links(self, command: NodeCommand) -> NodeAnswer:
        """Carries out an action on links."""
        links = links_of(command, self._names, sorted(self._cut))
        rows = {(self._names[row.source], self._names[row.target]): row for row in self._link_rows()}
        if refused := link_refusal(command, [rows.get(link) for link in links]):
            return refused
        is_cut = command.action is NodeAction.CUT
        for source, target in links if command.action is not NodeAction.LINKS else ():
            self._engine.set_link(source, target, up=not is_cut)
            self._record_event(node_name(source), f"isray net {command.action}, to {node_name(target)}")
            (self._cut.add if is_cut else self._cut.discard)((source, target))
        return NodeAnswer(links=self._link_rows())

    def _link_rows(self) -> tuple[LinkRow, ...]:
        return tuple(LinkRow(source=node_name(source), target=node_name(it)) for source, it in sorted(self._cut))

    # -- what is known -------------------------------------------------------------------------------------------------

    def _describe(self) -> ClusterReport:
        """What the controllers have decided last, also while none of them is active."""
        quorum = self._engine.quorum()
        spec, active = self._engine.spec, self._engine.active_controller()
        view = self._engine.metadata.view()
        return ClusterReport(
            controller=NO_LEADER if active is None else active,
            roles={node: found.role for node, found in quorum.items()},
            voters=view.voters,
            brokers=broker_reports(view),
            features={ELR_FEATURE: int(spec.config.generation is Generation.KIP_966_ELR)},
        )

    def _node_state(self, node: NodeId) -> NodeState:
        if not self._cluster.is_running(node):
            return NodeState.ENDED
        return NodeState.PAUSED if self._cluster.is_paused(node) else NodeState.RUNNING

    def _row(self, node: NodeId) -> NodeRow:
        return NodeRow(
            node=node_name(node),
            state=self._node_state(node),
            pid=self._cluster.pids().get(node),
            directory=str(self._cluster.home(node)),
            reason=self._reasons.get(node, ""),
        )

    def _pids(self) -> dict[str, int]:
        return {node_name(node): pid for node, pid in self._cluster.pids().items()}

    def _note(self, node: NodeId, text: str) -> None:
        """Records and reports why a node has ended."""
        self._reasons[node] = text
        self._report(self._record_event(node_name(node), text))

    def _record_event(self, what: str, text: str) -> str:
        self._write(self.state.with_event(what, text))
        return self.state.events[-1]

    def _write(self, state: ClusterState) -> None:
        self.state = state
        write_state(state)


def broker_reports(view: ClusterView) -> tuple[BrokerReport, ...]:
    """The registered brokers of a view, in the order of their ids."""
    partitions = view.partitions.values()
    return tuple(
        BrokerReport(
            broker=broker,
            broker_epoch=found.broker_epoch,
            fenced=found.fenced,
            in_controlled_shutdown=found.in_controlled_shutdown,
            rack=found.rack,
            leads=sum(partition.leader == broker for partition in partitions),
            replicas=sum(broker in partition.replicas for partition in partitions),
        )
        for broker, found in sorted(view.brokers.items())
        if is_broker(broker)
    )
