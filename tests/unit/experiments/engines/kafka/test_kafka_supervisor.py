"""The supervisor of a cluster of Apache Kafka: what it allows, refuses and records, with processes that do nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from experiments.engines.clusters.cluster_state import NOT_RECORDED, ClusterOptions, ClusterState, claim, remove_state
from experiments.engines.clusters.launch import NotReadyError
from experiments.engines.clusters.node_commands import NodeAction, NodeAnswer, NodeCommand, NodeState
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.links import Addresses
from experiments.engines.kafka.processes import NodeFailed
from experiments.engines.kafka.running import IMPOSSIBLE, KafkaSupervisor, broker_reports
from experiments.engines.port import ClusterSpec, ClusterView, Loss
from experiments.support.errors import InputError
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import NodeId, TopicPartition
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.quorum.describe import QuorumView

pytestmark = pytest.mark.unit
CONTROLLER = 1000
VIEW = ClusterView(
    {
        TopicPartition("t", 0): PartitionState(replicas=(0, 1), isr=(0,), leader=0),
        TopicPartition("t", 1): PartitionState(replicas=(1,), isr=(1,), leader=1),
    },
    {
        0: BrokerRegistration(0, 5, "a", fenced=False, rack="x"),
        1: BrokerRegistration(1, 7, "b", fenced=True),
    },
    voters=(CONTROLLER,),
)


class Processes:
    """The processes of an engine, as far as a supervisor asks for them."""

    nodes = (CONTROLLER, 0, 1)

    folder = Path("/cluster")
    addresses = Addresses({}, {0: 9092, 1: 9093})

    def __init__(self) -> None:
        self.running: set[NodeId] = set()
        self.paused: set[NodeId] = set()

    def is_running(self, node: NodeId) -> bool:
        return node in self.running

    def is_paused(self, node: NodeId) -> bool:
        return node in self.paused

    def pids(self) -> dict[NodeId, int]:
        return {node: 100 + node for node in self.running}

    def end_of(self, node: NodeId) -> str:
        return f"it ended with exit code 3: last line of {node}"

    def last_lines(self, node: NodeId) -> str:
        return f"last line of {node}"

    def home(self, node: NodeId) -> Path:
        return Path(f"/cluster/node-{node}")


class Engine:
    """An engine that records what it is asked to do."""

    def __init__(self) -> None:
        self.cluster = Processes()
        self.spec = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966_ELR))
        self.metadata = self
        self.asked: list[object] = []
        self.fails: InputError | None = None

    def start(self, node: NodeId) -> None:
        self.asked.append(("start", node))
        self.cluster.running.add(node)

    def crash(self, node: NodeId, loss: Loss) -> None:
        self.asked.append(("crash", node, loss.kind, loss.count))
        if self.fails is not None:
            raise self.fails
        self.cluster.running.discard(node)
        self.cluster.paused.discard(node)

    def terminate(self, node: NodeId) -> None:
        self.cluster.running.discard(node)

    def pause(self, node: NodeId) -> None:
        self.cluster.paused.add(node)

    def resume(self, node: NodeId) -> None:
        self.cluster.paused.discard(node)

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        self.asked.append((source, target, up))

    def view(self) -> ClusterView:
        return VIEW

    def unfenced(self) -> frozenset[NodeId]:
        return VIEW.unfenced

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        return condition()

    def quorum(self) -> dict[NodeId, QuorumView]:
        return {CONTROLLER: QuorumView("leader", "", 1, True, ())}

    def active_controller(self) -> NodeId:
        return CONTROLLER


@pytest.fixture
def engine() -> Engine:
    return Engine()


class Recording:
    """A recording whose files cannot be written once its disk is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.calls: list[str] = []

    def mark(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.calls.append("mark")

    def finish(self) -> None:
        self.calls.append("finish")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def recording() -> Recording:
    return Recording()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def supervisor(
    engine: Engine, lines: list[str], recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    state: ClusterState = claim(ClusterOptions(engine="kafka", generation=Generation.KIP_966_ELR))
    made = KafkaSupervisor(cast(KafkaEngine, engine), state, lines.append, recording)
    for node in engine.cluster.nodes:
        made._start(node)
    engine.asked.clear()
    yield made
    remove_state(state.options.name)


def do(supervisor: KafkaSupervisor, action: NodeAction, node: str | None = None, **fields: Any) -> NodeAnswer:
    return supervisor.carry_out(NodeCommand(action=action, node=node, **fields))


def states(supervisor: KafkaSupervisor) -> dict[str, NodeState]:
    return {row.node: row.state for row in do(supervisor, NodeAction.LIST).rows}


def test_a_node_is_killed_loses_and_starts(supervisor: KafkaSupervisor, engine: Engine) -> None:
    assert do(supervisor, NodeAction.KILL, "broker-0", loss_kind="records", loss_count=3).rows[0].pid is None
    assert states(supervisor)["broker-0"] is NodeState.ENDED
    assert do(supervisor, NodeAction.KILL, "broker-0").found == "broker-0, which is ended"
    do(supervisor, NodeAction.REPLACE_DISK, "broker-0")
    assert do(supervisor, NodeAction.START, "broker-0").rows[0].pid == 100
    assert engine.asked == [("crash", 0, "records", 3), ("crash", 0, "all", 0), ("start", 0)]
    assert [line.partition("broker-0: ")[2] for line in supervisor.state.events] == [
        "isray node kill",
        "isray node replace-disk",
        "isray node start",
    ]
    assert supervisor.state.pids["broker-0"] == 100


def test_a_node_that_ends_by_itself_is_reported_with_its_last_lines_and_one_that_is_stopped_is_not(
    supervisor: KafkaSupervisor, engine: Engine, lines: list[str]
) -> None:
    do(supervisor, NodeAction.STOP, "broker-1")
    engine.cluster.running.discard(0)
    supervisor.poll()
    assert [line.partition("broker-")[2] for line in lines] == ["0: it ended with exit code 3: last line of 0"]
    assert os.getpid() == supervisor.state.pid
    assert supervisor.state.pids == {"controller-1000": 1100}
    assert engine.asked == [("crash", 0, "none", 0)], "its end is an event of the recording"


def test_a_recording_is_completed_with_the_logs_of_paused_nodes_too(
    supervisor: KafkaSupervisor, engine: Engine, recording: Recording
) -> None:
    do(supervisor, NodeAction.PAUSE, "broker-0")
    supervisor.finish_recording()
    assert not engine.cluster.paused
    assert (recording.calls[0], recording.calls[-1]) == ("mark", "finish")


def test_a_recording_ends_at_its_last_mark_on_a_full_disk_and_the_cluster_goes_on(
    supervisor: KafkaSupervisor, recording: Recording, lines: list[str]
) -> None:
    recording.is_full = True
    do(supervisor, NodeAction.KILL, "broker-0")
    assert do(supervisor, NodeAction.START, "broker-0").rows[0].state is NodeState.RUNNING
    supervisor.finish_recording()
    assert [line.partition("recording: ")[2] for line in lines] == [f"{NOT_RECORDED}: No space left on device"]
    assert recording.calls == []


def test_a_broker_that_never_starts_is_named_with_its_last_lines(supervisor: KafkaSupervisor, engine: Engine) -> None:
    with pytest.raises(NotReadyError, match="not ready within 180 s: broker-1; broker-1: last line of 1"):
        supervisor.start(lambda: False)


def test_a_command_that_fails_says_why(supervisor: KafkaSupervisor, engine: Engine) -> None:
    engine.fails = NodeFailed(0, "its disk could not be formatted: no space left")
    answer = do(supervisor, NodeAction.KILL, "broker-0", loss_kind="all")
    assert answer.failure == "its disk could not be formatted: no space left"
    engine.fails = InputError("node 1000", "", "the only disk", "another controller")
    answer = do(supervisor, NodeAction.KILL, "controller-1000", loss_kind="all")
    assert (answer.found, answer.allowed) == ("the only disk", "another controller")
    assert states(supervisor)["controller-1000"] is NodeState.RUNNING


def test_pauses_and_cuts(supervisor: KafkaSupervisor, engine: Engine) -> None:
    do(supervisor, NodeAction.PAUSE, "controller-1000")
    assert states(supervisor)["controller-1000"] is NodeState.PAUSED
    assert do(supervisor, NodeAction.PAUSE, "controller-1000").allowed == "a node that is running"
    do(supervisor, NodeAction.RESUME, "controller-1000")
    cut = do(supervisor, NodeAction.CUT, "broker-0", peer="broker-1", both_ways=True)
    assert [row.words for row in cut.links] == ["broker-0 to broker-1 is cut", "broker-1 to broker-0 is cut"]
    assert do(supervisor, NodeAction.CUT, "broker-0", peer="broker-1").allowed == "a link that is not cut"
    assert do(supervisor, NodeAction.HEAL).links == ()
    assert engine.asked == [(0, 1, False), (1, 0, False), (0, 1, True), (1, 0, True)]
    assert do(supervisor, NodeAction.CUT, "broker-0", peer="broker-9").found == "broker-9"


@pytest.mark.parametrize("action", sorted(IMPOSSIBLE))
def test_what_kafka_cannot_do_is_refused_by_name(supervisor: KafkaSupervisor, action: NodeAction) -> None:
    answer = do(supervisor, action, "broker-0")
    assert answer.found == f"{action} on a cluster of Apache Kafka"
    assert "kill" in answer.allowed
    assert action not in answer.allowed.split(", ")


def test_what_the_controllers_have_decided(supervisor: KafkaSupervisor) -> None:
    """Broker 0 leads one of its two partitions; broker 1 has two replicas and is fenced."""
    report = do(supervisor, NodeAction.DESCRIBE).report
    assert report is not None
    assert (report.controller, report.voters, report.roles) == (CONTROLLER, (CONTROLLER,), {CONTROLLER: "leader"})
    assert report.features == {"eligible.leader.replicas.version": 1}
    assert report.brokers == broker_reports(VIEW)
    assert [(it.broker, it.leads, it.replicas, it.fenced, it.rack) for it in report.brokers] == [
        (0, 1, 1, False, "x"),
        (1, 1, 2, True, None),
    ]
