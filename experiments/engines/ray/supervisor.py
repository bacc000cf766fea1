"""The supervisor of a running cluster (`isray up`): starts the nodes, reports when they are ready, polls, and ends
them.

Ray ties actors to the job that created them and a private Ray to the process that started it, so a cluster ends with
this process, however that ends. SIGTERM, SIGINT and SIGHUP end it in good order. It also ends when it loses the control
store of Ray or its own Ray node; the state file then stays and says why, until `isray down` or the next `isray up` of
that name.

A broker, controller or store that died is not restarted, as one on a machine is not: the cluster shows failures and
does not hide them. Clients and the recovery manager, which have no disk, start again by themselves, on any live Ray
node. A user ends and restarts nodes by `isray node`; the supervisor carries out its commands between two polls
(`node_commands.py`). A start for which there is no Ray node, or that is undone by the loss of one, is tried again until
it succeeds or the user withdraws it.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ray.exceptions import GetTimeoutError

from actors.cluster import ActorCluster
from actors.machines import UnreachableError, is_alive, metrics_ports, own_node
from actors.nodes import PollReport
from actors.placement import NoRayNodeError, is_movable
from actors.processes import ProcessId
from actors.reading import READ_FAILURES
from actors.storage import is_disk_loss
from experiments.engines.clusters.cluster_state import (
    NOT_RECORDED,
    ClusterState,
    Status,
    write_properties,
    write_state,
)
from experiments.engines.clusters.launch import NotReadyError
from experiments.engines.clusters.node_commands import (
    DISK_ACTIONS,
    LINK_ACTIONS,
    LinkRow,
    NodeAction,
    NodeAnswer,
    NodeCommand,
    NodeRow,
    NodeState,
    link_refusal,
    links_of,
    refusal,
    state_refusal,
)
from experiments.engines.port import ClusterSpec, ClusterView, cluster_view
from experiments.engines.ray.engine import needs_recovery_manager
from experiments.engines.ray.session import (
    require_control_store,
)
from experiments.engines.ray.tap import ClusterTap
from protocol.events.broker import StorageFailed
from protocol.ids import NO_NODE, RECOVERY_MANAGER, NodeId, node_name
from protocol.messages.commands import ShutdownCommand

READY_WITHIN_S = 180.0
POLL_S = 0.5
START_AGAIN_S = 2.0
"""The time between two attempts to start a node."""
_STARTING_POLL_S = 0.05
_ANSWER_WITHIN_S = 1.0
_ENDED = "its process has ended"

Report = Callable[[str], None]


class RayLostError(RuntimeError):
    """The Ray node of the supervisor is lost."""


def _reason(last: PollReport | None, is_lost: bool) -> str:
    """Why a node has ended, in one line, by its last report and whether its Ray node is lost."""
    if last is not None and last.failure is not None:
        return f"failed: {' '.join(last.failure.split())}"
    for _, trace in () if last is None else last.traces:
        if isinstance(trace, StorageFailed) and trace.halted:
            return f"its disk has failed: {trace.reason}"
    return "its Ray node is lost" if is_lost else _ENDED


class Supervisor:
    """Starts and polls a cluster's nodes, and keeps its state file up to date."""

    def __init__(
        self,
        cluster: ActorCluster,
        spec: ClusterSpec,
        state: ClusterState,
        report: Report,
        tap: ClusterTap | None = None,
    ) -> None:
        self.state = state
        self._tap = tap
        self._cluster = cluster
        self._spec = spec
        self._report = report
        self._unfenced: frozenset[NodeId] = frozenset()
        self._listeners: dict[str, str] = {}
        self._roles: dict[NodeId, str] = {}
        self._paused: set[NodeId] = set()
        self._stopping: set[NodeId] = set()
        self._nodes = list(spec.node_ids)
        self._kept = {node for node in spec.node_ids if is_movable(node)}
        self._wanted: dict[NodeId, str] = {}
        self._reasons: dict[NodeId, str] = {}
        self._tried_s: dict[NodeId, float] = {}

    def start(self) -> None:
        """Starts all nodes; returns when every broker is unfenced and every controller follows the active one; in `v3`,
        when a broker is controller and all are registered. NotReadyError where that is not so within `READY_WITHIN_S`,
        or a node ends or finds no Ray node.
        """
        for node in self._spec.node_ids:
            self._start(node)
        deadline_s = time.monotonic() + READY_WITHIN_S
        while missing := self._missing():
            if time.monotonic() > deadline_s:
                raise NotReadyError(f"not ready within {READY_WITHIN_S:.0f} s: {', '.join(map(node_name, missing))}")
            self._poll_nodes()
            self._read_snapshots()
            if self._reasons or self._wanted:
                raise NotReadyError("; ".join(self.state.events))
            time.sleep(_STARTING_POLL_S)
        self._record_processes()
        ready = self.state.model_copy(update={"status": Status.READY, "listeners": self._listeners})
        self._write(ready)
        if ready.listeners:
            write_properties(ready)

    def _start(self, node: NodeId) -> None:
        self._cluster.start(node)
        self._record(lambda tap: tap.began(node))

    def poll(self, only_news: bool = True) -> None:
        """Polls the nodes once, unless `only_news` are wanted and there are none, and starts those that are to run. One
        of `RAY_FAILURES` where Ray is lost.
        """
        self._poll_nodes(only_news)
        self._start_wanted()
        self._record_processes()

    def _poll_nodes(self, only_news: bool = False) -> None:
        require_control_store(str(self.state.address))
        before = {node: self._cluster.process(node) for node in self._cluster.running()}
        reports = self._cluster.poll(_ANSWER_WITHIN_S, only_news)
        last = dict(reports)
        self._record(lambda tap: tap.reports(reports))
        ended = [node for node in before if not self._cluster.is_running(node)]
        if ended and not is_alive(own_node()):
            raise RayLostError("the Ray node of the supervisor is lost, and Ray ends all nodes with it")
        for node in ended:
            self._record_end(node, before[node], last.get(node))
        self._record(lambda tap: tap.mark())
        if needs_recovery_manager(self._cluster, reports):
            self._kept.add(RECOVERY_MANAGER)
            self._nodes += [RECOVERY_MANAGER] if RECOVERY_MANAGER not in self._nodes else []

    def _record_end(self, node: NodeId, process: ProcessId | None, last: PollReport | None) -> None:
        """Records why a node has ended. One whose start a lost Ray node has undone starts again."""
        is_expected = node in self._stopping
        self._paused.discard(node)
        self._stopping.discard(node)
        self._record(lambda tap: tap.ended(node, process, last))
        if last is not None and last.never_ran and not is_expected:
            self._wanted[node] = ""
            self._note(node, "its Ray node was lost before it had started; it starts again")
            return
        self._reasons[node] = reason = _reason(last, process is not None and not is_alive(process.ray_node))
        if not is_expected or reason != _ENDED:
            self._note(node, reason)

    def _start_wanted(self) -> None:
        """Starts the nodes that are to run, each again `START_AGAIN_S` after a failed attempt at the earliest."""
        for node in sorted(self._kept):
            if not self._cluster.is_running(node):
                self._wanted.setdefault(node, "")
        for node in list(self._wanted):
            now_s = time.monotonic()
            if now_s - self._tried_s.get(node, -math.inf) < START_AGAIN_S:
                continue
            self._tried_s[node] = now_s
            try:
                self._start(node)
            except NoRayNodeError as error:
                if self._wanted[node] != str(error):
                    self._note(node, f"waits for a Ray node: {error}")
                self._wanted[node] = str(error)
            else:
                del self._wanted[node]
                self._reasons.pop(node, None)

    def _record_processes(self) -> None:
        """Writes the processes of the running nodes to the state file if they have changed."""
        running = self._cluster.running()
        pids = {node_name(node): found.pid for node in running if (found := self._cluster.process(node)) is not None}
        if pids != self.state.pids:
            self._write(self.state.model_copy(update={"pids": pids, "metrics": tuple(metrics_ports())}))

    def _note(self, node: NodeId, text: str) -> None:
        """Records and reports an event of a node."""
        self._report(self._record_event(node_name(node), text))

    def _record_event(self, what: str, text: str) -> str:
        self._write(self.state.with_event(what, text))
        return self.state.events[-1]

    # -- the commands of isray node ------------------------------------------------------------------------------------

    def carry_out(self, command: NodeCommand) -> NodeAnswer:
        """Carries out a command, and records it as an event."""
        self.poll(only_news=False)
        names = {node_name(node): node for node in self._nodes}
        if command.action is NodeAction.LIST:
            return NodeAnswer(rows=tuple(map(self._row, names.values())))
        if refused := refusal(command, names):
            return refused
        if command.action in LINK_ACTIONS:
            return self._change_links(command, names)
        node = names[str(command.node)]
        state = self._node_state(node)
        if refused := state_refusal(command, state):
            return refused
        failure, damaged = "", 0
        try:
            if command.action in DISK_ACTIONS:
                damaged = self._act_on_disk(node, command)
            else:
                self._act(node, state, command)
        except (UnreachableError, ProcessLookupError, GetTimeoutError) as error:
            failure = str(error) if isinstance(error, UnreachableError) else _ENDED
            failure = "it does not answer" if isinstance(error, GetTimeoutError) else failure
        self._record_processes()
        self._record_event(node_name(node), f"isray node {command.action}{failure and f' failed: {failure}'}")
        return NodeAnswer(rows=(self._row(node),), failure=failure, damaged=damaged)

    def _change_links(self, command: NodeCommand, names: Mapping[str, NodeId]) -> NodeAnswer:
        """Carries out an action on links."""
        links = links_of(command, names, self._cluster.disturbed_links())
        rows = {(names[row.source], names[row.target]): row for row in self._link_rows()}
        if refused := link_refusal(command, [rows.get(link) for link in links]):
            return refused
        match command.action:
            case NodeAction.CUT | NodeAction.HEAL:
                self._cluster.set_links(links, up=command.action is NodeAction.HEAL)
            case NodeAction.SLOW:
                self._cluster.slow_links(links, command.delay_ms)
        if command.action is not NodeAction.LINKS:
            for source, target in links:
                self._record_event(node_name(source), f"isray net {command.action}, to {node_name(target)}")
        return NodeAnswer(links=self._link_rows())

    def _link_rows(self) -> tuple[LinkRow, ...]:
        return tuple(
            LinkRow(source=node_name(source), target=node_name(target), delay_ms=delay_ms)
            for (source, target), delay_ms in self._cluster.disturbed_links().items()
        )

    def _act(self, node: NodeId, state: NodeState, command: NodeCommand) -> None:
        cluster = self._cluster
        match command.action:
            case NodeAction.KILL:
                assert is_disk_loss(command.loss_kind)
                self._end(node, command.loss_kind)
                cluster.lose_at_start(node, command.loss_kind, command.loss_count)
            case NodeAction.STOP if state is NodeState.RUNNING:
                self._stopping.add(node)
                cluster.send(node, ShutdownCommand())
            case NodeAction.STOP:
                self._end(node)
            case NodeAction.START:
                if is_movable(node):
                    self._kept.add(node)
                self._wanted[node] = ""
                self._tried_s.pop(node, None)
                self._start_wanted()
            case NodeAction.PAUSE:
                cluster.signal(node, signal.SIGSTOP)
                self._paused.add(node)
            case NodeAction.RESUME:
                cluster.signal(node, signal.SIGCONT)
                self._paused.discard(node)

    def _act_on_disk(self, node: NodeId, command: NodeCommand) -> int:
        """Carries out an action on the disk of a node; returns the number of damaged logs."""
        cluster = self._cluster
        match command.action:
            case NodeAction.REPLACE_DISK:
                self._record_loss(node, "all")
                cluster.lose_at_start(node, "all", 0)
            case NodeAction.LOSE:
                assert is_disk_loss(command.loss_kind)
                self._record_loss(node, command.loss_kind)
                cluster.lose_at_start(node, command.loss_kind, command.loss_count)
            case NodeAction.FILL_DISK:
                cluster.run_command(node, "set_room", command.room_bytes)
            case NodeAction.FREE_DISK:
                cluster.run_command(node, "set_room", None)
            case NodeAction.CORRUPT_TAIL:
                self._end(node, "torn" if command.damage == "torn" else "corrupt")
                return cluster.damage(node, command.damage, command.seed)
        return 0

    def _end(self, node: NodeId, loss: str = "none") -> None:
        """Ends a node that runs, starts, or waits to start; it does not start again by itself."""
        if self._node_state(node) is NodeState.RUNNING:
            self._record(lambda tap: tap.drain(node))
        self._kept.discard(node)
        self._wanted.pop(node, None)
        self._paused.discard(node)
        self._reasons[node] = "isray node has ended it"
        if self._cluster.is_running(node):
            self._cluster.kill(node)
        self._record_loss(node, loss)

    def _record_loss(self, node: NodeId, kind: str) -> None:
        self._record(lambda tap: tap.lost(node, kind))

    def resume_all(self) -> None:
        """Resumes the paused nodes, so that they can end."""
        for node in sorted(self._paused):
            with suppress(UnreachableError, ProcessLookupError):
                self._cluster.signal(node, signal.SIGCONT)
        self._paused.clear()

    def finish_recording(self) -> None:
        """Completes the recording, if there is one; reports why that fails."""
        try:
            self._record(lambda tap: tap.finish())
        except READ_FAILURES as error:
            self._report(f"{NOT_RECORDED}: {' '.join(str(error).split()) or type(error).__name__}")

    def _record(self, act: Callable[[ClusterTap], None]) -> None:
        """Has the tap record something, if there is a recording. If its files cannot be written, as on a full disk, the
        recording ends at its last mark, which is an event; the cluster goes on.
        """
        try:
            if self._tap is not None:
                act(self._tap)
        except OSError as error:
            if error.errno is None:  # of Ray, such as GetTimeoutError
                raise
            self._tap = None
            self._report(self._record_event("recording", f"{NOT_RECORDED}: {error.strerror}"))

    def _node_state(self, node: NodeId) -> NodeState:
        if self._cluster.is_running(node):
            if self._cluster.process(node) is None:
                return NodeState.STARTING
            return NodeState.PAUSED if node in self._paused else NodeState.RUNNING
        if node not in self._wanted:
            return NodeState.ENDED
        return NodeState.WAITING if self._wanted[node] else NodeState.STARTING

    def _row(self, node: NodeId) -> NodeRow:
        process = self._cluster.process(node)
        row = NodeRow(
            node=node_name(node),
            state=self._node_state(node),
            directory=str(self._cluster.directory(node)),
            reason=self._wanted.get(node) or self._reasons.get(node, ""),
        )
        if process is None:
            return row
        return row.model_copy(update={"pid": process.pid, "host": process.host, "ray_node": process.ray_node})

    # -- readiness -----------------------------------------------------------------------------------------------------

    def _missing(self) -> list[NodeId]:
        """The brokers that are fenced, and the controllers that know no leader yet."""
        settled = {node for node, role in self._roles.items() if role in ("leader", "follower", "observer")}
        ready = settled | self._unfenced
        return [node for node in (*self._spec.controller_ids, *self._spec.broker_ids) if node not in ready]

    def _read_snapshots(self) -> None:
        for node, snapshot in self._cluster.snapshots(_ANSWER_WITHIN_S):
            if snapshot.quorum is not None:
                self._roles[node] = snapshot.quorum.role
                if snapshot.quorum.is_active:
                    self._unfenced = ClusterView(snapshot.partitions, snapshot.brokers).unfenced
                    found = sorted(snapshot.brokers.items())
                    self._listeners = {node_name(node): entry.endpoint for node, entry in found if entry.endpoint}
            elif snapshot.store is not None and snapshot.store.controller != NO_NODE:
                self._unfenced = cluster_view(snapshot.store).unfenced

    def _write(self, state: ClusterState) -> None:
        self.state = state
        write_state(state)
