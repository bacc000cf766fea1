"""The engine `ray`: every node an actor process, real disks, real kills, real time (`actors`).

The engine watches by polling: each poll of a node brings its new trace events and the outcomes of commands. A snapshot
of its state, which grows with the number of partitions, is asked for only where a question needs it. `run_until` polls
every `POLL_MS`, and less and less often while nothing is new, down to every `IDLE_POLL_MS`; it looks at the condition
in between. Outside it a question polls first, so that what stands now is what is answered. Trace events are in order of
time within what one poll of the cluster brings; across polls a node that answers late may come after others.

With `with_load` a load generator (`actors/load.py`) stands beside the spec's nodes; its commands go to it, all others
to the client.

Time is milliseconds since the cluster was made. A run cannot be repeated exactly: the operating system decides what
comes first. `trace_hash` identifies a run, and two runs of one scenario differ in it.
"""

from __future__ import annotations

import atexit
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from actors.clock import ClusterTime
from actors.cluster import ActorCluster, is_connected
from actors.damage import DamageKind as DamageKind
from actors.damage import damage_tails
from actors.nodes import NodeSnapshot, PollReport
from experiments.engines.port import (
    ClusterSpec,
    ClusterView,
    Engine,
    Loss,
    ReplicaView,
    TraceEvent,
    incarnation_began,
    incarnation_ended,
)
from experiments.engines.ray.recovery_manager import needs_recovery_manager
from experiments.engines.ray.session import ray_session
from protocol.contract import Trace
from protocol.errors import ProtocolInvariantError
from protocol.ids import FIRST_LOAD, RECOVERY_MANAGER, NodeId, TimeMs, TopicPartition, node_name
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import decode
from protocol.messages.commands import (
    AdminOutcome,
    Command,
    ConsumeOutcome,
    ProduceOutcome,
    SendOutcome,
    ShutdownCommand,
)
from protocol.messages.load import LoadCommand, LoadOutcome, ProbeCommand, ProbeOutcome
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.records import MetadataRecord
from protocol.nodes.quorum_view import QuorumView

POLL_MS = 20
IDLE_POLL_MS = 200
"""How often the cluster is polled while nothing happens, or nothing is waited for."""
_SLOWDOWN = 1.25
_OUTCOMES = (ProduceOutcome, SendOutcome, ConsumeOutcome, AdminOutcome, LoadOutcome, ProbeOutcome)
_TICK_WAIT_S = 0.05
_QUESTION_WAIT_S = 5.0


class RayEngine(Engine):
    """See the module docstring. Runs on the Ray that this process is connected to; where it is to none, on the one at
    `address`, or else on a private one that ends with the engine (`experiments.engines.ray.session`, which must be
    called from the main thread).

    `homes` names Ray nodes for nodes that are not to be placed. `keeps` says which trace events are kept, for runs
    that are too long to keep all; the others are in no digest either.

    Raises InputError if the named cluster cannot be reached, `actors.cluster.PlacementError` if it has no room.
    """

    name = "ray"

    def __init__(
        self,
        spec: ClusterSpec,
        address: str | None = None,
        with_load: bool = False,
        homes: Mapping[NodeId, str] | None = None,
        keeps: Callable[[Trace], bool] = lambda trace: True,
    ) -> None:
        self.spec = spec
        self._keeps = keeps
        nodes = (*spec.member_ids, FIRST_LOAD) if with_load else spec.member_ids
        self._sink: Callable[[TraceEvent], None] = lambda event: None
        self._traces: list[TraceEvent] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._outcomes: dict[int, Message] = {}
        self._snapshots: dict[NodeId, NodeSnapshot] = {}
        self._asked_at_s = 0.0
        self._looked_at_s = 0.0
        self._deciding = False
        with ExitStack() as stack:
            if not is_connected():
                stack.enter_context(ray_session(address))
            self._cluster = ActorCluster(nodes, spec.config, spec.seed, homes=homes, voters=spec.first_voters)
            stack.callback(self._cluster.close)
            self._resources = stack.pop_all()
        self._time = ClusterTime(self._cluster.started_at_s)
        atexit.register(self.close)

    @property
    def run(self) -> str:
        """The name of this run: the actors' Ray namespace, the `run` tag of metrics, the folder of the nodes' disks."""
        return self._cluster.run

    @property
    def folder(self) -> Path:
        """The run's folder, which holds the nodes' disks, on every machine that has any."""
        return self._cluster.folder

    # -- time ----------------------------------------------------------------------------------------------------------

    def now_ms(self) -> TimeMs:
        return self._time.now_ms()

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        return self._run(condition, within_ms, POLL_MS, IDLE_POLL_MS)

    def run_for(self, duration_ms: int) -> None:
        self._run(lambda: False, duration_ms, IDLE_POLL_MS, IDLE_POLL_MS)

    def _run(self, condition: Callable[[], bool], within_ms: int, fastest_ms: int, slowest_ms: int) -> bool:
        deadline_ms = self.now_ms() + within_ms
        poll_ms: float = fastest_ms
        while True:
            poll_ms = fastest_ms if self._poll(_TICK_WAIT_S) else min(poll_ms * _SLOWDOWN, slowest_ms)
            self._changed()
            self._deciding = True
            try:
                if condition():
                    return True
            finally:
                self._deciding = False
                self._changed()
            left_ms = deadline_ms - self.now_ms()
            if left_ms <= 0:
                return False
            time.sleep(min(poll_ms, left_ms) / 1000)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def start(self, node: NodeId) -> None:
        self._changed()
        self._sink(incarnation_began(self.now_ms(), node))
        self._cluster.start(node)

    def crash(self, node: NodeId, loss: Loss) -> None:
        """SIGKILL of the node's process; the loss is applied before it starts again."""
        self._changed()
        self._record([(node, report) for report in self._cluster.crash(node, loss.kind, loss.count)])
        self._struck(node, loss.kind)
        self._snapshots.pop(node, None)

    def _struck(self, node: NodeId, kind: str) -> None:
        """Tells a recording what was done to a node; what that took from its disk shows only at the next start."""
        self._sink(incarnation_ended(self.now_ms(), node, kind, {} if kind == "none" else None))

    def terminate(self, node: NodeId) -> None:
        self._changed()
        self._cluster.send(node, ShutdownCommand())

    def pause(self, node: NodeId) -> None:
        self._changed()
        self._cluster.order(node, "pause")

    def resume(self, node: NodeId) -> None:
        self._changed()
        self._cluster.order(node, "resume")

    def is_running(self, node: NodeId) -> bool:
        self._look()
        return self._cluster.is_running(node)

    def flush(self, broker: NodeId) -> None:
        self._changed()
        self._cluster.order(broker, "flush")

    def move(self, node: NodeId, home: str) -> None:
        """The machine of a node that does not run is gone: its next life is on another Ray node, with an empty disk."""
        self._cluster.move(node, home)
        self._struck(node, "all")

    def silence(self, nodes: Collection[NodeId]) -> None:
        """The nodes that run take nothing from the present lives of these, until the next call (`ActorCluster`)."""
        self._cluster.silence(nodes)

    def set_room(self, node: NodeId, room_bytes: int | None) -> None:
        """Lets the logs of a running node grow by so many bytes before its disk is full; None lifts that."""
        self._changed()
        self._cluster.set_room(node, room_bytes)

    def damage_tails(self, node: NodeId, kind: DamageKind, seed: str) -> int:
        """Damages the ends of the logs of a node of this machine that does not run; of how many logs."""
        self._struck(node, "torn" if kind == "torn" else "corrupt")
        return damage_tails(self._cluster.directory(node), kind, Random(seed))

    def pids(self) -> Mapping[NodeId, int]:
        """The process id of every node that runs, each on its machine."""
        return self._cluster.pids()

    def directory(self, node: NodeId) -> Path:
        """Where the node's disk is, on its machine."""
        return self._cluster.directory(node)

    # -- links ---------------------------------------------------------------------------------------------------------

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        self._changed()
        self._cluster.set_links([(source, target)], up)

    def heal_links(self) -> None:
        self._changed()
        self._cluster.heal()

    # -- clients -------------------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        self._changed()
        to_load = isinstance(command, LoadCommand | ProbeCommand)
        self._cluster.send(FIRST_LOAD if to_load else self.spec.client_ids[0], command)

    def outcome(self, command_id: int) -> Message | None:
        self._look()
        return self._outcomes.get(command_id)

    def take_outcomes(self) -> Mapping[int, Message]:
        """The outcomes, by command id, that the polls so far have brought; they are forgotten."""
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    # -- observation ---------------------------------------------------------------------------------------------------

    def view(self) -> ClusterView | None:
        snapshot = self._active()
        if snapshot is None or snapshot.quorum is None:
            return None
        voters = tuple(key.id for key in snapshot.quorum.voters)
        return ClusterView(snapshot.partitions, snapshot.brokers, voters)

    def quorum(self) -> Mapping[NodeId, QuorumView]:
        self._look_at_state()
        return {node: found.quorum for node, found in self._snapshots.items() if found.quorum is not None}

    def _active(self) -> NodeSnapshot | None:
        active = self.active_controller()
        return None if active is None else self._snapshots[active]

    def metrics(self) -> Mapping[str, int]:
        snapshot = self._active()
        return {} if snapshot is None else snapshot.metrics

    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        self._look_at_state()
        snapshot = self._snapshots.get(broker)
        found = None if snapshot is None else snapshot.replicas.get(partition)
        if found is None:
            return None
        return ReplicaView(
            found.leads, found.leader_epoch, found.log_end_offset, found.high_watermark, found.maximal_isr
        )

    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        """NodeNotRunningError where the broker does not run."""
        batches = []
        for frame in self._cluster.read_log(broker, partition):
            batch = decode(frame)
            if not isinstance(batch, RecordBatch):
                raise ProtocolInvariantError(f"{type(batch).__name__} in the log of {partition}")
            batches.append(batch)
        return batches

    def metadata_log(self) -> Sequence[MetadataRecord]:
        running = [node for node in self.spec.controller_ids if self._cluster.is_running(node)]
        logs = [unpack_records(self._cluster.read_metadata(controller)) for controller in running]
        return max(logs, key=len, default=())

    def traces(self) -> Sequence[TraceEvent]:
        self._look()
        return self._traces

    def record_to(self, sink: Callable[[TraceEvent], None]) -> None:
        """See `Engine`; `keeps` leaves out nothing here."""
        self._sink = sink

    def trace_hash(self) -> str:
        """Digest of all trace events in the order in which they were recorded; differs from run to run."""
        self._look()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Ends all nodes, and the private Ray if there is one; safe to call again."""
        atexit.unregister(self.close)
        self._snapshots.clear()
        self._resources.close()

    # -- polling -------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Something was done to the cluster: what is known of it is old."""
        self._asked_at_s = self._looked_at_s = 0.0

    def _look(self) -> None:
        """Polls, unless a condition is being decided or the last poll is fresh."""
        if not self._deciding and time.monotonic() - self._asked_at_s > POLL_MS / 1000:
            self._poll(_QUESTION_WAIT_S)
            self._asked_at_s = time.monotonic()

    def _look_at_state(self) -> None:
        """Takes snapshots, unless they are fresh; one condition is decided on one set of them."""
        self._look()
        if (self._deciding and self._looked_at_s) or time.monotonic() - self._looked_at_s <= POLL_MS / 1000:
            return
        self._snapshots.update(self._cluster.look(_TICK_WAIT_S if self._deciding else _QUESTION_WAIT_S))
        self._looked_at_s = time.monotonic()

    def _poll(self, wait_s: float) -> bool:
        """Whether anything is new."""
        reports = self._cluster.poll(wait_s)
        self._record(reports)
        for node in set(self._snapshots) - set(self._cluster.running()):
            del self._snapshots[node]
        return any(report.traces or report.outcomes or report.exited for _, report in reports)

    def _record(self, reports: Sequence[tuple[NodeId, PollReport]]) -> None:
        events: list[TraceEvent] = []
        for node, report in reports:
            for time_ms, trace in report.traces:
                event = TraceEvent(time_ms, node, trace)
                self._sink(event)
                if self._keeps(trace):
                    events.append(event)
            for outcome in map(decode, report.outcomes):
                if not isinstance(outcome, _OUTCOMES):
                    raise ProtocolInvariantError(f"{node_name(node)} reports {type(outcome).__name__}")
                self._outcomes[outcome.command_id] = outcome
        if needs_recovery_manager(self._cluster, reports):
            self.start(RECOVERY_MANAGER)
        for event in sorted(events, key=lambda event: event.time_ms):
            trace = event.trace
            self._hash.update(repr((event.time_ms, event.node, trace.kind, trace.partition, trace.detail)).encode())
            self._traces.append(event)
