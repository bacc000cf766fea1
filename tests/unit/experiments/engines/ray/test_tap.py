"""What a supervisor hands to a recorder: events, the ends of nodes, metadata before marks, the final logs."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import cast

import pytest

from actors.caller_log import Run
from actors.cluster import ActorCluster
from actors.nodes import NodeSnapshot, PollReport
from actors.processes import ProcessId
from experiments.engines.port import TraceEvent
from experiments.engines.ray import tap as module
from experiments.engines.ray.tap import CallerCall, ClusterTap, FinalLogs, SendBegan
from protocol.broker.context import ReplicaView
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader
from protocol.events.controller import MetadataCommitted
from protocol.events.host import EventsLost, IncarnationBegan, IncarnationEnded
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NodeId, Offset, TopicPartition
from protocol.messages.records import FeatureLevelRecord, MetadataRecord
from protocol.metadata.partition import PartitionState
from protocol.quorum.describe import QuorumView

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LEADS = BecameLeader(T0, 0, 0, 0)
SENT = SendBegan(1, 2, 3, T0, 1, -1, 0)
RECORD = FeatureLevelRecord(name="metadata.version", feature_level=1)


class Recorder:
    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self.calls: list[CallerCall] = []
        self.records: list[MetadataRecord] = []
        self.marks: list[int] = []
        self.forgotten = 0
        self.finals: list[tuple[TopicPartition, int, dict[int, list[Run]], int, int]] = []

    def event(self, event: TraceEvent) -> None:
        self.events.append(event)

    def call(self, call: CallerCall) -> None:
        self.calls.append(call)

    def forget_client(self) -> None:
        self.forgotten += 1

    def metadata(self, records: Sequence[MetadataRecord]) -> None:
        self.records += records

    def mark(self, now_ms: int) -> None:
        self.marks.append(len(self.records))

    def finish(self, finals: Iterable[FinalLogs]) -> None:
        for it in finals:
            runs = {broker: list(log) for broker, log in it.replicas.items()}
            self.finals.append((it.partition, it.leader, runs, it.start, it.settled))

    def close(self) -> None:
        """Nothing is open."""

    def shown(self) -> list[tuple[NodeId, Trace]]:
        return [(event.node, event.trace) for event in self.events]


class Cluster:
    """Stands for `ActorCluster`; `last` is what a node reports when it is halted."""

    def __init__(self) -> None:
        self.last: list[PollReport] = []
        self.states: dict[NodeId, NodeSnapshot] = {}

    def last_reports(self, node: NodeId, wait_s: float) -> list[PollReport]:
        return self.last

    def poll(self, wait_s: float) -> list[tuple[NodeId, PollReport]]:
        return []

    def running(self) -> list[NodeId]:
        return list(self.states)

    def snapshots(self, wait_s: float, *, of_all: bool = False) -> list[tuple[NodeId, NodeSnapshot]]:
        """Broker 1 answers late."""
        return [(node, found) for node, found in self.states.items() if of_all == (node != 1)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def tapped(cluster: Cluster, recorder: Recorder) -> ClusterTap:
    return ClusterTap(cast(ActorCluster, cluster), recorder)


def report(*traces: Trace, calls: Sequence[CallerCall] = (), exited: bool = False) -> PollReport:
    return PollReport([(5, trace) for trace in traces], [], exited, None, calls=calls)


def process(host: str) -> ProcessId:
    return ProcessId(host, "machine", 1, 1, "home")


def test_events_and_calls_are_passed_on_with_their_times(tapped: ClusterTap, recorder: Recorder) -> None:
    tapped.began(0)
    tapped.reports([(0, report(LEADS)), (FIRST_CLIENT, report(calls=[SENT]))])

    assert recorder.shown() == [(0, IncarnationBegan()), (0, LEADS)]
    assert recorder.events[1].time_ms == 5
    assert recorder.calls == [SENT]


def test_a_node_that_is_killed_by_command_reports_first(
    tapped: ClusterTap, cluster: Cluster, recorder: Recorder
) -> None:
    cluster.last = [report(LEADS)]
    tapped.drain(0)
    tapped.lost(0, "all")
    cluster.last = []
    tapped.drain(1)
    tapped.lost(1, "none")

    assert recorder.shown() == [
        (0, LEADS),
        (0, IncarnationEnded("all", None)),
        (1, EventsLost()),
        (1, IncarnationEnded("none", ())),
    ]


def test_a_process_that_ends_by_itself_keeps_its_disk_unless_its_machine_is_another(
    tapped: ClusterTap, recorder: Recorder
) -> None:
    tapped.ended(0, process(socket.gethostname()), None)
    tapped.ended(1, process("elsewhere"), None)
    tapped.ended(0, process(socket.gethostname()), report(exited=True))
    tapped.ended(FIRST_CLIENT, None, None)

    ends = [(node, trace.loss) for node, trace in recorder.shown() if isinstance(trace, IncarnationEnded)]
    assert ends == [(0, "none"), (1, "all"), (FIRST_CLIENT, "none")]
    assert recorder.forgotten == 1


def test_nothing_is_marked_before_the_metadata_that_events_speak_of(
    tapped: ClusterTap, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[list[MetadataRecord]] = [[], [RECORD], [RECORD, RECORD]]
    begins: list[Offset] = []

    def read(of: object, begin: Offset, wait_s: float) -> list[MetadataRecord]:
        begins.append(begin)
        return answers.pop(0)

    monkeypatch.setattr(module, "new_metadata", read)
    tapped.mark()
    tapped.reports([(FIRST_CONTROLLER, report(MetadataCommitted(0, 3)))])
    for _ in range(4):
        tapped.mark()

    assert begins == [0, 0, 1], "from where the last answer ended, until all are there"
    assert recorder.marks == [0, 3, 3]


def test_the_final_logs_are_those_of_the_running_members_from_the_highest_start(
    tapped: ClusterTap, cluster: Cluster, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 1's log begins at 4; partition 1 has no leader."""
    quorum = QuorumView("leader", "uuid", 1, True, ())
    partitions = {
        T0: PartitionState(replicas=(0, 1, 2), isr=(0, 1, 2), leader=0, leader_epoch=2),
        T1: PartitionState(replicas=(0, 1), isr=(0,), leader=-1, leader_epoch=1),
    }
    cluster.states = {
        FIRST_CONTROLLER: NodeSnapshot(partitions=partitions, quorum=quorum),
        0: NodeSnapshot({T0: ReplicaView(True, 2, 6, 5)}),
        1: NodeSnapshot({T0: ReplicaView(False, 2, 6, 5)}),
    }
    logs = {0: [(0, 1, 7, 0, 4), (4, 2, 8, 0, 2)], 1: [(4, 2, 8, 0, 2)]}
    monkeypatch.setattr(module, "runs", lambda of, broker, name: iter(logs[broker]))

    tapped.finish()

    assert recorder.finals == [(T0, 0, {0: [(4, 2, 8, 0, 2)], 1: [(4, 2, 8, 0, 2)]}, 4, 5)]
