"""The engine `ray`: every node is an actor process with a real disk, in real time; crashes are SIGKILL (`actors`).

The engine polls the nodes. A poll returns a node's new trace events and the outcomes of commands; a snapshot of its
state, which grows with the number of partitions, is requested only where a query needs one. `run_until` polls every
`POLL_MS`, and less often while nothing is new, down to every `IDLE_POLL_MS`; after each poll it evaluates the
condition. Outside `run_until` a query polls first, so it answers with the present state. The trace events of one poll
of the cluster are sorted by time; events of a node that answers a later poll may be older.

A run is not reproducible, since the operating system schedules its processes.
"""

from __future__ import annotations

import atexit
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Generic, Protocol, TypeVar

import ray

from actors.clock import UnixTime
from actors.cluster import ActorCluster, NodeCommand
from actors.failures import NodeFailedError, NodeNotRunningError
from actors.links import Link
from actors.nodes import NodeSnapshot, PollReport
from actors.placement import NoRayNodeError, PlacementError
from actors.storage import DamageKind as DamageKind
from actors.storage import DiskLossKind, Owner, apply_loss, is_disk_loss
from experiments.engines.port import (
    ClusterSpec,
    ClusterView,
    Engine,
    Loss,
    TraceEvent,
    enables_recovery,
    incarnation_ended,
)
from experiments.engines.ray.session import ray_session
from protocol.broker.context import ReplicaView
from protocol.errors import ProtocolInvariantError
from protocol.events.base import Trace
from protocol.events.host import IncarnationBegan
from protocol.events.registry import detail_of
from protocol.ids import (
    FIRST_LOAD,
    NO_EPOCH,
    RECOVERY_MANAGER,
    STORE,
    Epoch,
    NodeId,
    TimeMs,
    TopicPartition,
    node_name,
)
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import decode
from protocol.messages.commands import (
    AdminOutcome,
    Command,
    ConsumeOutcome,
    LoadCommand,
    LoadOutcome,
    ProbeCommand,
    ProbeOutcome,
    ProduceOutcome,
    SendOutcome,
    ShutdownCommand,
)
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.records import MetadataRecord
from protocol.messages.store import ExpireSessions
from protocol.quorum.describe import QuorumView
from protocol.v3.store.view import StoreView

POLL_MS = 20
IDLE_POLL_MS = 200
"""The longest time between two polls, while nothing happens or only time passes."""
_BACKOFF = 1.25
NODE_FAILURES = (NodeFailedError, NodeNotRunningError, PlacementError, NoRayNodeError)
"""The errors of an engine that has no room for its nodes, or whose nodes have ended by themselves."""
_OUTCOMES = (ProduceOutcome, SendOutcome, ConsumeOutcome, AdminOutcome, LoadOutcome, ProbeOutcome)
_POLL_WAIT_S = 0.05
_QUERY_WAIT_S = 5.0


class NodeCluster(Protocol):
    """What an engine needs of a cluster of actors: those of `ActorCluster` that it has started itself, or those of a
    cluster that runs already. The methods are described there.
    """

    run: str

    def start(self, node: NodeId) -> None: ...

    def crash(self, node: NodeId, kind: DiskLossKind, count: int) -> list[PollReport]: ...

    def lose_at_start(self, node: NodeId, kind: DiskLossKind, count: int) -> None: ...

    def damage(self, node: NodeId, kind: DamageKind, seed: str) -> int: ...

    def set_clock(self, node: NodeId, skew_ms: int) -> None: ...

    def is_running(self, node: NodeId) -> bool: ...

    def running(self) -> list[NodeId]: ...

    def pids(self) -> dict[NodeId, int]: ...

    def kill(self, node: NodeId) -> None: ...

    def signal(self, node: NodeId, number: int) -> None: ...

    def poll(self, wait_s: float) -> list[tuple[NodeId, PollReport]]: ...

    def snapshots(self, wait_s: float) -> list[tuple[NodeId, NodeSnapshot]]: ...

    def run_command(self, node: NodeId, name: NodeCommand, *arguments: object) -> None: ...

    def read_log(self, node: NodeId, partition: TopicPartition) -> list[bytes]: ...

    def read_metadata(self, controller: NodeId) -> bytes: ...

    def send(self, node: NodeId, message: Message) -> None: ...

    def set_links(self, links: Iterable[Link], up: bool) -> None: ...

    def slow_links(self, links: Iterable[Link], delay_ms: int) -> None: ...

    def heal_links(self) -> None: ...


ClusterT = TypeVar("ClusterT", bound=NodeCluster)


class PolledEngine(Engine, Generic[ClusterT]):
    """A cluster of actors that is polled. `close` closes `resources`. `keeps` selects the trace events that `traces`
    and `trace_hash` cover. `began_unix_ms` is the Unix time from which its times count.
    """

    name = "ray"

    def __init__(
        self, spec: ClusterSpec, cluster: ClusterT, resources: ExitStack, keeps: Callable[[Trace], bool]
    ) -> None:
        super().__init__()
        self.spec = spec
        self.cluster = cluster
        self._resources = resources
        self._keeps = keeps
        self._traces: list[TraceEvent] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._outcomes: dict[int, Message] = {}
        self._skews_ms: dict[NodeId, int] = {}
        self._snapshots: dict[NodeId, NodeSnapshot] = {}
        self._store_view = StoreView()
        self._polled_at_s = 0.0
        self._snapshots_at_s = 0.0
        self._judged = 0
        self._evaluating = False
        self._clock = UnixTime()
        self.began_unix_ms = self._clock.now_ms()
        atexit.register(self.close)

    def now_ms(self) -> TimeMs:
        return self.time_of(self._clock.now_ms())

    def time_of(self, unix_ms: TimeMs) -> TimeMs:
        """A time of the nodes, which is Unix time, as time of this engine, which counts from its creation."""
        return unix_ms - self.began_unix_ms

    def run_until(self, condition: Callable[[], bool], within_ms: int, fastest_ms: int = POLL_MS) -> bool:
        deadline_ms = self.now_ms() + within_ms
        poll_ms: float = fastest_ms
        while True:
            poll_ms = fastest_ms if self._poll(_POLL_WAIT_S) else min(poll_ms * _BACKOFF, IDLE_POLL_MS)
            self._expire_cache()
            self._evaluating = True
            try:
                if condition():
                    return True
                self._judged = len(self._traces)
            finally:
                self._evaluating = False
                self._expire_cache()
            left_ms = deadline_ms - self.now_ms()
            if left_ms <= 0:
                return False
            time.sleep(min(poll_ms, left_ms) / 1000)

    def run_for(self, duration_ms: int) -> None:
        self.run_until(lambda: False, duration_ms, IDLE_POLL_MS)

    def start(self, node: NodeId) -> None:
        self._act()
        self._pass_on(TraceEvent(self.now_ms(), node, IncarnationBegan()))
        self.cluster.start(node)

    def crash(self, node: NodeId, loss: Loss) -> None:
        """Sends SIGKILL to the node's process, if it runs. ValueError for a kind of loss that only sim has."""
        self._act()
        kind, count = self._disk_loss(loss)
        if self.cluster.is_running(node):
            self._record([(node, report) for report in self.cluster.crash(node, kind, count)])
        else:
            self.cluster.lose_at_start(node, kind, count)
        self._record_end(node, loss.kind)
        self._snapshots.pop(node, None)

    def _disk_loss(self, loss: Loss) -> tuple[DiskLossKind, int]:
        """A loss as `apply_loss` takes it now. ValueError for a kind that only the simulator has."""
        if not is_disk_loss(loss.kind):
            raise ValueError(f"a loss of the kind {loss.kind!r} is for the simulator only")
        if loss.kind == "unflushed" and loss.writeback_ms is not None:
            return "recent", self._clock.now_ms() - loss.writeback_ms
        return loss.kind, loss.count

    def _record_end(self, node: NodeId, kind: str) -> None:
        """Records the end of an incarnation; what its disk has lost is known only at the next start."""
        self._pass_on(incarnation_ended(self.now_ms(), node, kind, {} if kind == "none" else None))

    def terminate(self, node: NodeId) -> None:
        self._act()
        self.cluster.send(node, ShutdownCommand())

    def pause(self, node: NodeId) -> None:
        self._act()
        self.cluster.run_command(node, "pause")

    def resume(self, node: NodeId) -> None:
        self._act()
        self.cluster.run_command(node, "resume")

    def set_clock(self, node: NodeId, skew_ms: int) -> None:
        self.cluster.set_clock(node, skew_ms)
        self._skews_ms[node] = skew_ms

    def is_running(self, node: NodeId) -> bool:
        self._refresh_events()
        return self.cluster.is_running(node)

    def flush(self, broker: NodeId) -> None:
        self._act()
        self.cluster.run_command(broker, "flush")

    def set_room(self, node: NodeId, room_bytes: int | None) -> None:
        """Limits the growth of a running node's logs to `room_bytes` in all; None lifts the limit."""
        self._act()
        self.cluster.run_command(node, "set_room", room_bytes)

    def damage_tails(self, node: NodeId, kind: DamageKind, seed: str) -> int:
        """Damages the log ends of a node that does not run; returns the number of damaged logs."""
        self._record_end(node, "torn" if kind == "torn" else "corrupt")
        return self.cluster.damage(node, kind, seed)

    def expire_sessions(self, node: NodeId) -> None:
        self.cluster.send(STORE, ExpireSessions(node_id=node))

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        self._act()
        self.cluster.set_links([(source, target)], up)

    def heal_links(self) -> None:
        self._act()
        self.cluster.heal_links()

    def submit(self, command: Command) -> None:
        self._act()
        to_load = isinstance(command, LoadCommand | ProbeCommand)
        self.cluster.send(FIRST_LOAD if to_load else self.spec.client_ids[0], command)

    def outcome(self, command_id: int) -> Message | None:
        self._refresh_events()
        return self._outcomes.get(command_id)

    def take_outcomes(self) -> Mapping[int, Message]:
        """Returns and forgets the outcomes, by command id, that the polls so far have returned."""
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    def store_view(self) -> StoreView:
        self._refresh_snapshots()
        found = self._snapshots.get(STORE)
        if found is not None and found.store is not None:
            self._store_view = found.store
        return self._store_view

    def _quorum_view(self) -> ClusterView | None:
        snapshot = self._active_snapshot()
        if snapshot is None or snapshot.quorum is None:
            return None
        voters = tuple(key.id for key in snapshot.quorum.voters)
        return ClusterView(snapshot.partitions, snapshot.brokers, voters, controllers=snapshot.controllers)

    def quorum(self) -> Mapping[NodeId, QuorumView]:
        self._refresh_snapshots()
        return {node: found.quorum for node, found in self._snapshots.items() if found.quorum is not None}

    def _active_snapshot(self) -> NodeSnapshot | None:
        active = self.active_controller()
        return None if active is None else self._snapshots[active]

    def answering(self) -> set[NodeId]:
        """The running nodes whose processes are up and have answered a query."""
        self._refresh_snapshots()
        return set(self._snapshots)

    def metrics(self) -> Mapping[str, int]:
        snapshot = self._active_snapshot()
        return {} if snapshot is None else snapshot.metrics

    def broker_epoch(self, broker: NodeId) -> Epoch:
        self._refresh_snapshots()
        snapshot = self._snapshots.get(broker)
        return NO_EPOCH if snapshot is None else snapshot.broker_epoch

    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        self._refresh_snapshots()
        snapshot = self._snapshots.get(broker)
        return None if snapshot is None else snapshot.replicas.get(partition)

    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        """NodeNotRunningError where the broker does not run."""
        batches = []
        for frame in self.cluster.read_log(broker, partition):
            batch = decode(frame)
            if not isinstance(batch, RecordBatch):
                raise ProtocolInvariantError(f"{type(batch).__name__} in the log of {partition}")
            batches.append(batch)
        return batches

    def metadata_log(self) -> Sequence[MetadataRecord]:
        running = [node for node in self.spec.controller_ids if self.cluster.is_running(node)]
        logs = [unpack_records(self.cluster.read_metadata(controller)) for controller in running]
        return max(logs, key=len, default=())

    def traces(self) -> Sequence[TraceEvent]:
        self._refresh_events()
        return self._traces

    def record_to(self, sink: Callable[[TraceEvent], None]) -> Callable[[], None]:
        """As `Engine.record_to`; the sink receives also the events that `keeps` leaves out."""
        self._sinks.append(sink)
        return partial(self._sinks.remove, sink)

    def unjudged(self) -> Sequence[TraceEvent]:
        """As `Engine.unjudged`. A condition that holds ends its `run_until` somewhere among these events, so they are
        judged by the next condition, too, unless the experiment acts on the cluster in between.
        """
        return self._traces[self._judged :]

    def trace_hash(self) -> str:
        """A digest of the kept trace events in the order of their arrival."""
        self._refresh_events()
        return self._hash.hexdigest()

    def close(self) -> None:
        atexit.unregister(self.close)
        self._snapshots.clear()
        self._resources.close()

    def _act(self) -> None:
        """Begins an action of the experiment: what happened before it shows nothing of its effect."""
        self._judged = len(self._traces)
        self._expire_cache()

    def _expire_cache(self) -> None:
        """Has the next query poll again."""
        self._polled_at_s = self._snapshots_at_s = 0.0

    def _refresh_events(self) -> None:
        """Polls, unless `run_until` is evaluating its condition or the last poll is fresh."""
        if not self._evaluating and time.monotonic() - self._polled_at_s > POLL_MS / 1000:
            self._poll(_QUERY_WAIT_S)
            self._polled_at_s = time.monotonic()

    def _refresh_snapshots(self) -> None:
        """Requests snapshots, unless they are fresh; a condition is evaluated on one set of snapshots."""
        self._refresh_events()
        if (self._evaluating and self._snapshots_at_s) or time.monotonic() - self._snapshots_at_s <= POLL_MS / 1000:
            return
        self._snapshots.update(self.cluster.snapshots(_POLL_WAIT_S if self._evaluating else _QUERY_WAIT_S))
        self._snapshots_at_s = time.monotonic()

    def _poll(self, wait_s: float) -> bool:
        """Polls the cluster; returns whether any node reported anything."""
        reports = self.cluster.poll(wait_s)
        self._record(reports)
        for node in set(self._snapshots) - set(self.cluster.running()):
            del self._snapshots[node]
        return any(report.traces or report.outcomes or report.exited for _, report in reports)

    def _record(self, reports: Sequence[tuple[NodeId, PollReport]]) -> None:
        events: list[TraceEvent] = []
        for node, report in reports:
            for time_ms, trace in report.traces:
                event = TraceEvent(self.time_of(time_ms) - self._skews_ms.get(node, 0), node, trace)
                self._pass_on(event)
                if self._keeps(trace):
                    events.append(event)
            for outcome in map(decode, report.outcomes):
                if not isinstance(outcome, _OUTCOMES):
                    raise ProtocolInvariantError(f"{node_name(node)} reports {type(outcome).__name__}")
                self._outcomes[outcome.command_id] = outcome
        self._react_to(reports)
        for event in sorted(events, key=lambda event: event.time_ms):
            trace = event.trace
            self._hash.update(repr((event.time_ms, event.node, trace.kind, trace.about(), detail_of(trace))).encode())
            self._traces.append(event)
        for node, report in reports:
            if report.failure is not None:
                raise NodeFailedError(node, report.failure)

    def _react_to(self, reports: Sequence[tuple[NodeId, PollReport]]) -> None:
        """Called with the newest reports, before their events are kept."""


class RayEngine(PolledEngine[ActorCluster]):
    """A cluster of actors, on the Ray that this process is connected to; otherwise on the one at `address`, otherwise
    on a private Ray that ends with the engine (`ray_session`, which must be called from the main thread).

    With `with_load` a load generator (`actors/load.py`) runs beside the nodes of the spec and receives the load
    commands; all other commands go to the client. `homes` places nodes on Ray nodes by id. `keeps` selects the trace
    events that `traces` and `trace_hash` cover, for runs that are too long to keep all of them. `former` is a retired
    cluster whose processes the nodes take over; `end` ends or retires the cluster when the engine is closed.

    InputError where the Ray at `address` cannot be reached, `actors.placement.PlacementError` where it has no room.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        address: str | None = None,
        with_load: bool = False,
        homes: Mapping[NodeId, str] | None = None,
        keeps: Callable[[Trace], bool] = lambda trace: True,
        former: ActorCluster | None = None,
        end: Callable[[ActorCluster], None] = lambda cluster: cluster.close(),
    ) -> None:
        nodes = (*spec.member_ids, FIRST_LOAD) if with_load else spec.member_ids
        with ExitStack() as stack:
            if not ray.is_initialized():
                stack.enter_context(ray_session(address))
            store = spec.store_settings if spec.store_ids else None
            racks = {broker: rack for broker in spec.broker_ids if (rack := spec.rack_of(broker)) is not None}
            cluster = ActorCluster(
                nodes, spec.config, spec.seed, racks, homes, voters=spec.first_voters, store=store, former=former
            )
            stack.callback(end, cluster)
            super().__init__(spec, cluster, stack.pop_all(), keeps)

    def pause(self, node: NodeId) -> None:
        """Pauses a node that runs, and stops its process by SIGSTOP; its last reports are taken in between."""
        self._act()
        self.cluster.pause(node)
        self._refresh_snapshots()
        self.cluster.stop_process(node)

    def resume(self, node: NodeId) -> None:
        self._act()
        self.cluster.resume(node)

    def move(self, node: NodeId, home: str) -> None:
        """Places the next incarnation of a node that does not run on another Ray node, with an empty disk."""
        self.cluster.move(node, home)
        self._record_end(node, "all")

    def lose(self, node: NodeId, loss: Loss) -> None:
        """Applies a loss to the disk of a node of this machine that does not run. ValueError as for `crash`."""
        kind, count = self._disk_loss(loss)
        apply_loss(self.cluster.directory(node), kind, count, Owner(self.cluster.run, node), _QUERY_WAIT_S)
        self._record_end(node, loss.kind)

    def _react_to(self, reports: Sequence[tuple[NodeId, PollReport]]) -> None:
        """Starts the recovery manager where these newest reports enable unclean recovery."""
        if needs_recovery_manager(self.cluster, reports):
            self.start(RECOVERY_MANAGER)


def needs_recovery_manager(cluster: ActorCluster, reports: Iterable[tuple[NodeId, PollReport]]) -> bool:
    """Whether these newest reports enable unclean recovery while no recovery manager runs."""
    enabled = any(enables_recovery(trace) for _, report in reports for _, trace in report.traces)
    return enabled and not cluster.is_running(RECOVERY_MANAGER)
