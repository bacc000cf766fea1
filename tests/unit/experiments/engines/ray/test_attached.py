"""Acting on a running cluster: what goes to its supervisor, what is refused, and which nodes count as running."""

from __future__ import annotations

import pytest
from ray.exceptions import RayActorError

from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState
from experiments.engines.clusters.node_commands import LinkRow, NodeAction, NodeAnswer, NodeCommand, NodeRow, NodeState
from experiments.engines.ray import attached, supervision
from experiments.engines.ray.attached import ActionRefusedError, AttachedCluster
from experiments.support.errors import InputError
from protocol.ids import FIRST_CONTROLLER, RECOVERY_MANAGER, NodeId, node_name
from protocol.messages.commands import ShutdownCommand


class Supervised:
    """Stands for the supervisor of a cluster with one controller and two brokers, and for its state file: `asked` are
    the commands, `answer` is what the next ones are answered with, `states` are those of nodes without a process.
    """

    def __init__(self) -> None:
        self.asked: list[NodeCommand] = []
        self.answer = NodeAnswer()
        self.states: dict[NodeId, NodeState] = {}
        options = ClusterOptions(name="game", brokers=2)
        self.state: ClusterState | None = ClusterState(
            options=options, pid=1, started_ticks=1, address="h:1", namespace="isray-1"
        )
        self.now_s = 0.0

    def ask(self, state: ClusterState, command: NodeCommand) -> NodeAnswer:
        if command.action is NodeAction.LIST:
            rows = [NodeRow(node=node_name(node), state=it, directory="/d") for node, it in self.states.items()]
            return NodeAnswer(rows=tuple(rows))
        self.asked.append(command)
        return self.answer

    def monotonic(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Supervised:
    made = Supervised()

    def no_actor(name: str, namespace: str) -> object:
        raise ValueError(name)

    monkeypatch.setattr(supervision, "ask", made.ask)
    monkeypatch.setattr(attached, "read_state", lambda name: made.state)
    monkeypatch.setattr(ClusterState, "is_running", True)
    monkeypatch.setattr(attached.ray, "get_actor", no_actor)
    monkeypatch.setattr(attached.time, "monotonic", made.monotonic)
    return made


def cluster_of(supervised: Supervised) -> AttachedCluster:
    assert supervised.state is not None
    return AttachedCluster(supervised.state, attached.spec_of(supervised.state))


def test_each_action_is_one_command_to_the_supervisor(supervised: Supervised) -> None:
    cluster = cluster_of(supervised)
    cluster.crash(0, "records", 3)
    cluster.send(1, ShutdownCommand())
    cluster.run_command(0, "set_room", 7)
    cluster.run_command(0, "set_room", None)
    cluster.lose_at_start(0, "none", 0)
    cluster.lose_at_start(0, "all", 0)
    cluster.slow_links([(0, FIRST_CONTROLLER)], 30)
    assert supervised.asked == [
        NodeCommand(action=NodeAction.KILL, node="broker-0", loss_kind="records", loss_count=3),
        NodeCommand(action=NodeAction.STOP, node="broker-1"),
        NodeCommand(action=NodeAction.FILL_DISK, node="broker-0", room_bytes=7),
        NodeCommand(action=NodeAction.FREE_DISK, node="broker-0"),
        NodeCommand(action=NodeAction.LOSE, node="broker-0", loss_kind="all"),
        NodeCommand(action=NodeAction.SLOW, node="broker-0", peer="controller-1000", delay_ms=30),
    ]


def test_an_action_that_the_state_does_not_allow_is_refused_with_the_line_of_the_supervisor(
    supervised: Supervised,
) -> None:
    cluster = cluster_of(supervised)
    supervised.answer = NodeAnswer(found="broker-0, which is ended", allowed="a node that is running")
    with pytest.raises(ActionRefusedError, match="found broker-0, which is ended; allowed: a node that is") as caught:
        cluster.kill(0)
    assert caught.value.is_refused
    supervised.answer = NodeAnswer(failure="its Ray node is lost")
    with pytest.raises(ActionRefusedError, match="broker-0: its Ray node is lost") as caught:
        cluster.kill(0)
    assert not caught.value.is_refused
    with pytest.raises(ActionRefusedError, match="a clock to set"):
        cluster.set_clock(0, 5)


@pytest.mark.parametrize(("up", "asked"), [(False, ["broker-0", "broker-1"]), (True, ["broker-0"])])
def test_links_that_are_as_wanted_already_are_left_alone(supervised: Supervised, up: bool, asked: list[str]) -> None:
    """The link from 0 to 1 is slow, so cutting and healing both change it; that from 1 to 0 is whole."""
    supervised.answer = NodeAnswer(links=(LinkRow(source="broker-0", target="broker-1", delay_ms=5),))
    cluster_of(supervised).set_links([(0, 1), (1, 0)], up)
    listed, *changes = supervised.asked
    assert listed.action is NodeAction.LINKS
    assert [(change.action, change.node) for change in changes] == [
        (NodeAction.HEAL if up else NodeAction.CUT, node) for node in asked
    ]


def test_a_node_that_was_started_runs_until_the_supervisor_says_that_it_has_ended(supervised: Supervised) -> None:
    cluster = cluster_of(supervised)
    assert cluster.running() == []
    cluster.start(0)
    supervised.states = {0: NodeState.STARTING}
    assert cluster.running() == [0]
    supervised.states = {0: NodeState.ENDED}
    assert not cluster.is_running(0)
    assert supervised.state is not None
    supervised.state = supervised.state.model_copy(update={"pids": {"urm": 5, "broker-1": 7, "unknown-1": 8}})
    assert cluster.pids() == {RECOVERY_MANAGER: 5, 1: 7}
    assert sorted(cluster.running()) == [1, RECOVERY_MANAGER]


def test_a_cluster_that_has_been_ended_is_one_line(supervised: Supervised) -> None:
    cluster = cluster_of(supervised)
    supervised.state = None
    with pytest.raises(InputError, match="--name: found game, which has been ended; allowed: a cluster that runs"):
        cluster.running()


class LostClient:
    """Stands for the engine's own client, whose actor has ended."""

    def poll(self) -> None:
        """Nothing is under way."""

    def report(self) -> None:
        raise RayActorError


def test_a_client_that_has_ended_is_one_line_and_the_next_command_starts_another(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(supervised)
    monkeypatch.setattr(attached, "_OwnClient", lambda *_: LostClient())
    monkeypatch.setattr(attached.ray, "wait", lambda calls, **_: (calls, []))
    first = cluster._own_client()

    with pytest.raises(ActionRefusedError, match="the client of this command has ended") as caught:
        cluster.poll(0)

    assert not caught.value.is_refused
    assert cluster.poll(0) == []
    assert cluster._own_client() is not first
