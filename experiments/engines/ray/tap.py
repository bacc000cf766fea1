"""What the supervisor of a cluster hands to a recorder: the events of all nodes, the metadata log, the calls of users
to the client, and in the end the logs.

`ClusterTap` is fed with what the supervisor learns between two of its polls, so a node that is killed, starts again or
gets another disk is in the recording as it happened. Whoever ends a node by command gets its last reports first; where
a process is killed otherwise, its last events are lost, which is an event of the recording, too.

The metadata log is read while the cluster runs, record by record, since its controllers may drop what a snapshot
covers. A *mark* is a moment at which all that was written so far belongs together: no event speaks of metadata that
have not been written yet.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from actors.caller_log import CallerCall as CallerCall
from actors.caller_log import RecordsRead as RecordsRead
from actors.caller_log import Run
from actors.caller_log import SendBegan as SendBegan
from actors.caller_log import SendEnded as SendEnded
from actors.clock import UnixTime
from actors.cluster import ActorCluster
from actors.nodes import NodeSnapshot, PollReport
from actors.processes import ProcessId
from actors.reading import new_metadata, runs
from experiments.engines.port import TraceEvent, cluster_view, incarnation_ended
from protocol.broker.context import ReplicaView
from protocol.events.broker import MetadataPublished
from protocol.events.controller import ControllerStarted, MetadataCommitted
from protocol.events.host import EventsLost, IncarnationBegan
from protocol.ids import NO_LEADER, BrokerId, NodeId, Offset, TimeMs, TopicPartition, is_broker, is_client
from protocol.messages.records import MetadataRecord
from protocol.metadata.partition import PartitionState

SETTLED_WITHIN_S = 20.0
_WAIT_S, _RETRY_S = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class FinalLogs:
    """The logs of the running in-sync replicas of a partition from `start` on; equal below `settled`, which is the high
    watermark of `leader`. They are read as they are iterated, each once.
    """

    partition: TopicPartition
    leader: BrokerId
    replicas: Mapping[BrokerId, Iterable[Run]]
    start: Offset
    settled: Offset


class ClusterRecorder(Protocol):
    """Writes a recording of a cluster; all times are Unix time."""

    def event(self, event: TraceEvent) -> None:
        """A trace event of a node."""

    def call(self, call: CallerCall) -> None:
        """A call of a user to the client."""

    def forget_client(self) -> None:
        """The client has ended: what it has not answered has an unknown outcome."""

    def metadata(self, records: Sequence[MetadataRecord]) -> None:
        """The next records of the metadata log."""

    def mark(self, now_ms: TimeMs) -> None:
        """What was written so far belongs together."""

    def finish(self, finals: Iterable[FinalLogs]) -> None:
        """The cluster is about to end."""

    def close(self) -> None:
        """Nothing more comes; without `finish` the recording ends at its last mark."""


class ClusterTap:
    """Passes what happens to the nodes of a cluster on to a recorder."""

    def __init__(self, cluster: ActorCluster, recorder: ClusterRecorder) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._clock = UnixTime()
        self._written: Offset = 0
        self._seen: Offset = 0

    def began(self, node: NodeId) -> None:
        """A node starts."""
        self._recorder.event(TraceEvent(self._clock.now_ms(), node, IncarnationBegan()))

    def reports(self, reports: Iterable[tuple[NodeId, PollReport]]) -> None:
        """Records what nodes have reported."""
        for node, report in reports:
            for time_ms, trace in report.traces:
                if isinstance(trace, MetadataCommitted):
                    self._seen = max(self._seen, trace.end_offset)
                elif isinstance(trace, MetadataPublished | ControllerStarted):
                    self._seen = max(self._seen, trace.next_offset)
                self._recorder.event(TraceEvent(time_ms, node, trace))
            for call in report.calls:
                self._recorder.call(call)

    def drain(self, node: NodeId) -> None:
        """Records the last reports of a node that is about to be killed; afterwards it does nothing more."""
        last = self._cluster.last_reports(node, _WAIT_S)
        self.reports((node, report) for report in last)
        if not last:
            self._lost_events(node)

    def ended(self, node: NodeId, process: ProcessId | None, last: PollReport | None) -> None:
        """Records that a node has ended by itself. A page cache outlives its process, but not its machine."""
        if last is not None and (last.exited or last.never_ran):
            if is_client(node):
                self._recorder.forget_client()
            return
        if last is None:
            self._lost_events(node)
        is_here = process is None or process.host == socket.gethostname()
        self.lost(node, "none" if is_here else "all")

    def lost(self, node: NodeId, kind: str) -> None:
        """Records that a node was killed, or that its disk has changed, by the kind of the loss."""
        if is_client(node):
            self._recorder.forget_client()
        self._recorder.event(incarnation_ended(self._clock.now_ms(), node, kind, {} if kind == "none" else None))

    def _lost_events(self, node: NodeId) -> None:
        self._recorder.event(TraceEvent(self._clock.now_ms(), node, EventsLost()))

    def mark(self) -> None:
        """Reads what is new of the metadata log; marks what was recorded where no event is ahead of it."""
        if self._written < self._seen:
            records = new_metadata(self._cluster, self._written, _WAIT_S)
            self._recorder.metadata(records)
            self._written += len(records)
        if self._written >= self._seen:
            self._recorder.mark(self._clock.now_ms())

    def finish(self) -> None:
        """Reads the final logs, and completes the recording. One of `READ_FAILURES` where a log cannot be read."""
        self.reports(self._cluster.poll(_WAIT_S))
        snapshots = self._settled_snapshots()
        self.reports(self._cluster.poll(_WAIT_S))
        self.mark()
        self._recorder.finish(self._final_logs(snapshots))

    def _settled_snapshots(self) -> Mapping[NodeId, NodeSnapshot]:
        """The states of all nodes that run, once the recorded leaders lead, or after a while."""
        deadline_s = time.monotonic() + SETTLED_WITHIN_S
        found = dict(self._cluster.snapshots(_WAIT_S, of_all=True))
        while time.monotonic() < deadline_s:
            awaited = [node for node in self._cluster.running() if is_broker(node) and node not in found]
            leaderless = any(
                state.leader in found and _leader(found, name, state) is None
                for name, state in _partitions(found).items()
            )
            if not awaited and not leaderless:
                break
            time.sleep(_RETRY_S)
            found |= self._cluster.snapshots(_WAIT_S)
        return found

    def _final_logs(self, snapshots: Mapping[NodeId, NodeSnapshot]) -> Iterator[FinalLogs]:
        for name, state in sorted(_partitions(snapshots).items()):
            leader = _leader(snapshots, name, state)
            if leader is None:
                continue
            members = [broker for broker in state.isr if broker in snapshots and name in snapshots[broker].replicas]
            logs = {broker: runs(self._cluster, broker, name) for broker in members}
            ends = {broker: snapshots[broker].replicas[name].log_end_offset for broker in members}
            firsts = {broker: next(log, None) for broker, log in logs.items()}
            starts = {broker: ends[broker] if run is None else run[0] for broker, run in firsts.items()}
            start = max(starts.values())
            replicas = {
                broker: (run for run in chain([firsts[broker]], rest) if run is not None and run[0] >= start)
                for broker, rest in logs.items()
            }
            yield FinalLogs(name, state.leader, replicas, start, leader.high_watermark)


def _partitions(snapshots: Mapping[NodeId, NodeSnapshot]) -> Mapping[TopicPartition, PartitionState]:
    """The partitions as the active controller or the store knows them; none where neither answers."""
    active = [found for found in snapshots.values() if found.quorum is not None and found.quorum.is_active]
    if active:
        return max(active, key=lambda found: found.quorum.epoch if found.quorum else 0).partitions
    stores = [found.store for found in snapshots.values() if found.store is not None]
    return cluster_view(stores[0]).partitions if stores else {}


def _leader(
    snapshots: Mapping[NodeId, NodeSnapshot], name: TopicPartition, state: PartitionState
) -> ReplicaView | None:
    """The replica of the recorded leader, if it leads."""
    if state.leader == NO_LEADER or state.leader not in snapshots:
        return None
    replica = snapshots[state.leader].replicas.get(name)
    return replica if replica is not None and replica.leads and replica.leader_epoch == state.leader_epoch else None
