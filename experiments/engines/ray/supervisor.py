"""The supervisor of a running cluster (`isray up`): starts the nodes, reports when they are ready, polls, and ends
them.

Ray ties actors to the job that created them and a private Ray to the process that started it, so a cluster ends with
this process, however that ends. SIGTERM, SIGINT and SIGHUP end it in good order.

Polling also fetches the trace events that nodes keep for an observer, so they do not pile up. A node that died is not
restarted, as a broker on a machine is not: the cluster shows failures and does not hide them. The supervisor records
the death in the state file and passes it to `report`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from actors.cluster import ActorCluster, NodeFailedError, PlacementError
from actors.nodes import PollReport
from experiments.engines.port import ClusterSpec, ClusterView
from experiments.engines.ray.cluster_state import ClusterOptions, ClusterState, Status, claim, remove_state, write_state
from experiments.engines.ray.recovery_manager import needs_recovery_manager
from experiments.engines.ray.session import ray_session
from protocol.config import ClusterConfig
from protocol.events.broker import StorageFailed
from protocol.ids import RECOVERY_MANAGER, NodeId, node_name

READY_WITHIN_S = 180.0
POLL_S = 0.5
_STARTING_POLL_S = 0.05
_ANSWER_WITHIN_S = 1.0
_SETTLED = ("leader", "follower", "observer")
"""Quorum roles of controllers that know the leader."""

Report = Callable[[str], None]


class NotReadyError(RuntimeError):
    """The cluster did not become ready in time, or a node ended before."""


CLUSTER_FAILURES = (NotReadyError, NodeFailedError, PlacementError)
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

    def start(self) -> None:
        """Starts all nodes; returns when every broker is unfenced and every controller follows the active one.
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
            text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {node_name(node)}: {reason}"
            self._report(text)
            dead = (*self.state.dead, node_name(node))
            self._write(self.state.with_event(text).model_copy(update={"dead": dead}))

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
            cluster = ActorCluster(
                spec.member_ids, config, spec.seed, racks, voters=spec.first_voters, store=spec.store
            )
            try:
                folders = [str(folder) for folder in (session.folder, cluster.folder) if folder is not None]
                known = {"address": session.address, "namespace": cluster.run, "folders": tuple(folders)}
                state = state.model_copy(update=known | {"nodes": tuple(node_name(node) for node in spec.node_ids)})
                write_state(state)
                supervisor = Supervisor(cluster, spec, state, report)
                supervisor.start()
                with _stop_signals() as stop:
                    ready(supervisor.state)
                    while not stop.wait(POLL_S):
                        supervisor.poll()
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
