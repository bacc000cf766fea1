"""The engine `kafka`: the nodes of a scenario are processes of a real Apache Kafka (`processes.py`).

What the controllers have decided is read from the metadata log on their disks (`metadata_log.py`), replicas from the
brokers' logs on their disks (`disk_replicas.py`); or, where the life cycle says so, both by requests to the brokers
(`protocol_state.py`). `run_until` looks every `POLL_MS`. Trace events are those of the committed metadata, with the
time at which they were seen; Kafka's nodes report none of their own.

A crash is SIGKILL, which the page cache survives. What is `unflushed` is what the broker has not written down as
flushed in its checkpoint of recovery points, which it does every `CHECKPOINT_MS` here: a loss of it cuts the log files
there, while the process is dead. The metadata log of a controller is flushed before it counts, so it loses nothing.
`all` is an empty disk, formatted again.

A process that ends by itself before its broker was ever unfenced, or its controller took part, ends the run with its
last lines.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence

from experiments.engines.admin_requests import delete_topic
from experiments.engines.kafka.client import KafkaClient
from experiments.engines.kafka.disk_replicas import DiskReplicas
from experiments.engines.kafka.links import host_name
from experiments.engines.kafka.metadata_log import MetadataLog, newest_leader, quorum_state
from experiments.engines.kafka.processes import NodeFailed, ProcessCluster, Program
from experiments.engines.kafka.properties import ALIASES, CHECKPOINT_MS, CONTROLLER, first_voters
from experiments.engines.kafka.protocol_state import ProtocolState
from experiments.engines.kafka.segments import DiskLog, partition_folders, recovery_points, truncate
from experiments.engines.port import ClusterSpec, ClusterView, Engine, Loss, TraceEvent, incarnation_ended
from experiments.support.errors import InputError
from protocol.broker.context import ReplicaView
from protocol.events.base import Trace
from protocol.events.host import IncarnationBegan
from protocol.events.registry import detail_of
from protocol.ids import Epoch, NodeId, Offset, TimeMs, TopicPartition, is_broker, is_controller
from protocol.messages.base import Message, changed
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import AdminCommand, Command
from protocol.messages.quorum import AddVoterRequest, Endpoint
from protocol.messages.records import MetadataRecord
from protocol.quorum.describe import QuorumView
from protocol.quorum.election import Role
from protocol.v3.store.view import StoreView

POLL_MS = 50
FRESH_S = 0.02
"""For how long what was read is not read again."""
FLUSH_INTERVAL = "log.flush.interval.ms"
FLUSH_WITHIN_MS = 30_000
READY_WITHIN_MS = 60_000
LOSSES = ("none", "unflushed", "records", "all")


class KafkaEngine(Engine):
    """A cluster of processes of `program`, formatted, none of which runs. `with_listeners` others write, too, and logs
    have digests in the place of their records. InputError as for `ProcessCluster`.
    """

    name = "kafka"

    def __init__(
        self, spec: ClusterSpec, program: Program, *, with_links: bool = True, with_listeners: bool = False
    ) -> None:
        super().__init__()
        self.spec = spec
        self._began_s = time.monotonic()
        self._traces: list[TraceEvent] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._started: dict[NodeId, Epoch] = {}
        self._unproven: set[NodeId] = set()
        self._read_s = 0.0
        self._view: ClusterView | None = None
        self._judged = 0
        self._is_closed = False
        self.cluster = ProcessCluster(spec, program, with_links=with_links, with_listeners=with_listeners)
        self._brokers = {node: self.cluster.address(node) for node in spec.broker_ids}
        self._disks = {node: self.cluster.disk(node) for node in spec.controller_ids if node in self.cluster.nodes}
        self.client = self._new_client()
        self.metadata: MetadataLog | ProtocolState
        self._replicas: DiskReplicas | ProtocolState
        if program.life_cycle.state == "protocol":
            self.metadata = self._replicas = ProtocolState(self._brokers, spec.controller_ids[0])
            return
        voters = first_voters(spec, self.cluster.uuids)
        self.metadata = metadata = MetadataLog(self._disks, spec.config, voters, ALIASES, self._emit)
        self._digests = with_listeners
        self._replicas = DiskReplicas(self.cluster, metadata, digests=self._digests)

    def _new_client(self) -> KafkaClient:
        controllers = {node: self.cluster.address(node) for node in self._disks}
        return KafkaClient(self._brokers, controllers, self.spec.config, lambda: newest_leader(self._disks.values()))

    def begin_again(self) -> bool:
        """Makes the cluster ready for another scenario: no link is cut, all nodes run, no topic exists, the client is a
        new one. Returns whether that was so within `READY_WITHIN_MS`. Configs of the cluster, voters and features stay
        as they are. NodeFailed for a node that does not start.
        """
        self.heal_links()
        for node in self.cluster.nodes:
            if self.cluster.is_paused(node):
                self.resume(node)
            elif not self.is_running(node):
                self.start(node)
        self.client.close()
        self.client = self._new_client()
        if not self.run_until(self._is_whole, READY_WITHIN_MS):
            return False
        assert self._view is not None
        topics = {partition.topic for partition in self._view.partitions}
        for number, topic in enumerate(sorted(topics)):
            self.submit(AdminCommand(command_id=-1 - number, request=delete_topic(topic)))
        if not self.run_until(self._is_empty, READY_WITHIN_MS):
            return False
        if isinstance(self.metadata, MetadataLog):
            self._replicas = DiskReplicas(self.cluster, self.metadata, digests=self._digests)
        self._traces.clear()
        self._judged = 0
        return True

    def _is_whole(self) -> bool:
        """Whether every controller follows an active one, or is it, and every broker is unfenced."""
        following = {node for node, found in self.quorum().items() if found.role in (Role.LEADER, Role.FOLLOWER)}
        return following >= set(self._disks) and self.unfenced() >= set(self._brokers)

    def _is_empty(self) -> bool:
        """Whether no topic exists, on no disk either."""
        assert self._view is not None
        return not self._view.partitions and not any(partition_folders(self.cluster.disk(it)) for it in self._brokers)

    # -- time ----------------------------------------------------------------------------------------------------------

    def now_ms(self) -> TimeMs:
        return round((time.monotonic() - self._began_s) * 1000)

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        deadline_ms = self.now_ms() + within_ms
        while True:
            if self._is_closed:
                raise InputError("a cluster", "", "closed", "one that runs")
            self._refresh()
            if condition():
                return True
            self._judged = len(self._traces)
            left_ms = deadline_ms - self.now_ms()
            if left_ms <= 0:
                return False
            time.sleep(min(POLL_MS, left_ms) / 1000)

    def run_for(self, duration_ms: int) -> None:
        self.run_until(lambda: False, duration_ms)

    def unjudged(self) -> Sequence[TraceEvent]:
        return self._traces[self._judged :]

    def _refresh(self, *, now: bool = False) -> None:
        """Reads the metadata log, and notices processes that have ended by themselves."""
        if time.monotonic() - self._read_s < FRESH_S and not now:
            return
        if self.metadata.refresh() or self._view is None:
            self._view = self.metadata.view()
        self._read_s = time.monotonic()
        for node in sorted(self._unproven):
            if self.cluster.exit_code(node):
                self._unproven.discard(node)
                raise NodeFailed(node, self.cluster.end_of(node))
            if self._takes_part(node):
                self._unproven.discard(node)

    def _takes_part(self, node: NodeId) -> bool:
        """Whether a controller listens (it writes its quorum state before), or a broker is unfenced."""
        if is_controller(node):
            return self.cluster.is_listening(node)
        assert self._view is not None
        return node in self._view.unfenced

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def start(self, node: NodeId) -> None:
        if node not in self.cluster.nodes:
            return
        self._pass_on(TraceEvent(self.now_ms(), node, IncarnationBegan()))
        self._started[node] = quorum_state(self.cluster.disk(node)).epoch if is_controller(node) else 0
        self._unproven.add(node)
        self.cluster.start(node)

    def crash(self, node: NodeId, loss: Loss) -> None:
        """SIGKILL. A loss of unflushed records waits first until the broker has written down what it has flushed.
        ValueError for a kind of loss that only the simulator has, InputError for one after which no controller
        would have all metadata.
        """
        if loss.kind not in LOSSES or loss.writeback_ms is not None:
            raise ValueError(f"a loss of the kind {loss.kind!r} is for the simulator only")
        if loss.kind == "all" and is_controller(node) and not self.metadata.is_held_without(node):
            found = "the only disk with all that the controllers have committed"
            raise InputError(f"node {node}", "", found, "a controller whose metadata another one has, too")
        if loss.kind in ("unflushed", "records") and self.cluster.is_running(node):
            time.sleep(2 * CHECKPOINT_MS / 1000)
        self.cluster.kill(node)
        self._unproven.discard(node)
        self._refresh(now=True)
        lost = self._lose(node, loss)
        self._pass_on(incarnation_ended(self.now_ms(), node, loss.kind, lost))

    def _lose(self, node: NodeId, loss: Loss) -> dict[TopicPartition, int]:
        """Applies a loss to the disk of a node that does not run; returns the numbers of records lost."""
        disk = self.cluster.disk(node)
        folders = partition_folders(disk) if is_broker(node) and loss.kind != "none" else {}
        flushed, lost = recovery_points(disk), dict[TopicPartition, int]()
        for partition, folder in folders.items():
            log = DiskLog(folder)
            log.refresh()
            if loss.kind == "all":
                lost[partition] = log.end_offset
                continue
            kept = flushed.get(partition, 0)
            if loss.kind == "records":
                kept = max(kept, log.end_offset - loss.count)
            lost[partition] = truncate(folder, kept)
        if loss.kind == "all":
            self.cluster.wipe(node)
        return lost

    def terminate(self, node: NodeId) -> None:
        self._unproven.discard(node)
        self.cluster.stop(node)

    def pause(self, node: NodeId) -> None:
        self.cluster.pause(node)

    def resume(self, node: NodeId) -> None:
        self.cluster.resume(node)

    def is_running(self, node: NodeId) -> bool:
        return self.cluster.is_running(node) or node not in self.cluster.nodes

    def last_lines(self, node: NodeId) -> str:
        return self.cluster.last_lines(node)

    def set_clock(self, node: NodeId, skew_ms: int) -> None:
        raise NotImplementedError("a process of Kafka has the clock of its machine")

    def flush(self, broker: NodeId) -> None:
        """No request flushes; a broker whose `log.flush.interval.ms` is short does, and the config is removed again.
        InputError where the logs are not flushed within `FLUSH_WITHIN_MS`.
        """
        self.client.configure_broker(broker, {FLUSH_INTERVAL: "1"})
        are_flushed = self.run_until(lambda: self._is_flushed(broker), FLUSH_WITHIN_MS)
        self.client.configure_broker(broker, {FLUSH_INTERVAL: None})
        if not are_flushed:
            found = f"logs that are not flushed after {FLUSH_WITHIN_MS // 1000} s"
            raise InputError(f"node {broker}", "", found, "a broker that flushes, of topics without flush.ms")

    def _is_flushed(self, broker: NodeId) -> bool:
        """Whether the broker has written down that all its logs are flushed to their ends."""
        disk = self.cluster.disk(broker)
        flushed, ends = recovery_points(disk), dict[TopicPartition, Offset]()
        for partition, folder in partition_folders(disk).items():
            log = DiskLog(folder)
            log.refresh()
            ends[partition] = log.end_offset
        return all(flushed.get(partition, 0) >= end for partition, end in ends.items())

    def expire_sessions(self, node: NodeId) -> None:
        raise NotImplementedError("releases of Kafka from 4.0 on have no store")

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        self.cluster.set_link(source, target, up)

    def heal_links(self) -> None:
        if self.cluster.links is not None:
            self.cluster.links.heal()

    # -- clients -------------------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """A voter that is added has the endpoint of this cluster where the request names none."""
        if isinstance(command, AdminCommand) and isinstance(command.request, AddVoterRequest):
            node = command.request.voter_id
            endpoint = Endpoint(name=CONTROLLER, host=host_name(node), port=self.cluster.addresses.ports[node])
            if not command.request.endpoints:
                command = changed(command, request=changed(command.request, endpoints=(endpoint,)))
        self.client.submit(command)

    def outcome(self, command_id: int) -> Message | None:
        return self.client.outcome(command_id)

    # -- state ---------------------------------------------------------------------------------------------------------

    def quorum(self) -> Mapping[NodeId, QuorumView]:
        self._refresh()
        running = {node: began for node, began in self._started.items() if is_controller(node)}
        running = {node: began for node, began in running.items() if self.cluster.is_running(node)}
        return dict(self.metadata.quorum(running))

    def _quorum_view(self) -> ClusterView | None:
        return None if self.active_controller() is None else self._view

    def store_view(self) -> StoreView:
        return StoreView()

    def metrics(self) -> Mapping[str, int]:
        """None: scenarios that expect the controller's metrics are refused."""
        return {}

    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        """As `DiskReplicas` or `ProtocolState`, by the life cycle's `state`."""
        self._refresh()
        return self._replicas.replica(broker, partition)

    def holds(self, broker: NodeId, partition: TopicPartition) -> bool:
        """As in `Engine`, without a request where the broker's disk can be read."""
        return self._replicas.holds(broker, partition)

    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        return self._replicas.log(broker, partition)

    def metadata_log(self) -> Sequence[MetadataRecord]:
        return self.metadata.records

    # -- trace events --------------------------------------------------------------------------------------------------

    def _emit(self, node: NodeId, trace: Trace) -> None:
        event = TraceEvent(self.now_ms(), node, trace)
        self._traces.append(event)
        self._hash.update(repr((event.time_ms, node, trace.kind, trace.about(), detail_of(trace))).encode())
        self._pass_on(event)

    def traces(self) -> Sequence[TraceEvent]:
        return self._traces

    def record_to(self, sink: Callable[[TraceEvent], None]) -> Callable[[], None]:
        self._sinks.append(sink)
        return lambda: self._sinks.remove(sink)

    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        """Ends the processes; a run of another thread ends with InputError."""
        self._is_closed = True
        self.cluster.close()
        self.client.close()
