"""The supervisor: why nodes have ended, which start again, starts that wait for a Ray node, and Ray's own loss."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from ray.exceptions import GetTimeoutError

from actors.cluster import ActorCluster
from actors.nodes import PollReport
from actors.placement import NoRayNodeError
from actors.processes import ProcessId
from actors.storage import DamageKind, DiskLossKind
from experiments.engines.clusters.cluster_state import NOT_RECORDED, ClusterOptions, ClusterState
from experiments.engines.clusters.node_commands import NodeAction, NodeAnswer, NodeCommand, NodeRow, NodeState
from experiments.engines.port import ClusterSpec
from experiments.engines.ray import supervisor
from experiments.engines.ray.supervisor import RayLostError, Supervisor
from experiments.engines.ray.tap import ClusterTap
from protocol.config import ClusterConfig
from protocol.events.base import Trace
from protocol.events.broker import StorageFailed
from protocol.events.controller import FeatureLevelChanged
from protocol.features import UNCLEAN_RECOVERY_ENABLED, Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, RECOVERY_MANAGER, NodeId
from protocol.messages.base import Message

NODES = (FIRST_CONTROLLER, RECOVERY_MANAGER, 0, 1, FIRST_CLIENT)
SILENT = 1
NO_RAY_NODE = "its Ray node is lost, and no other one is free"


class Cluster:
    """Stands for `ActorCluster`: nodes end by the reports in `ending` at the next poll; `up` of those that run have a
    process; no node of `homeless` can start; `lost` Ray nodes are not alive.
    """

    def __init__(self) -> None:
        self.nodes = list(NODES)
        self.up = set(NODES)
        self.ending: dict[NodeId, PollReport | None] = {}
        self.traces: list[Trace] = []
        self.homeless: set[NodeId] = set()
        self.lost: set[str] = set()
        self.killed: list[NodeId] = []
        self.links: dict[tuple[NodeId, NodeId], int | None] = {}
        self.commands: list[tuple[object, ...]] = []

    def running(self) -> Sequence[NodeId]:
        return list(self.nodes)

    def is_running(self, node: NodeId) -> bool:
        return node in self.nodes

    def process(self, node: NodeId) -> ProcessId | None:
        return ProcessId("host", "machine", 100 + node, 1, f"home-{node}") if node in self.up else None

    def directory(self, node: NodeId) -> Path:
        return Path("/disks", str(node))

    def poll(self, wait_s: float, only_news: bool = False) -> list[tuple[NodeId, PollReport]]:
        reports = [(0, PollReport([(5, trace) for trace in self.traces], [], False, None))]
        for node, report in self.ending.items():
            self.remove(node)
            reports += [] if report is None else [(node, report)]
        self.ending = {}
        return reports

    def remove(self, node: NodeId) -> None:
        self.nodes.remove(node)
        self.up.discard(node)

    def start(self, node: NodeId) -> None:
        assert node not in self.nodes
        if node in self.homeless:
            raise NoRayNodeError(NO_RAY_NODE)
        self.nodes.append(node)

    def kill(self, node: NodeId) -> None:
        self.killed.append(node)
        self.remove(node)

    def lose_at_start(self, node: NodeId, kind: DiskLossKind, count: int) -> None:
        assert node not in self.nodes

    def damage(self, node: NodeId, kind: DamageKind, seed: str) -> int:
        assert node not in self.nodes
        return 4

    def run_command(self, node: NodeId, name: str, *arguments: object) -> None:
        if node == SILENT:
            raise GetTimeoutError
        self.commands.append((node, name, *arguments))

    def set_links(self, links: Sequence[tuple[NodeId, NodeId]], up: bool) -> None:
        self.links = {link: delay for link, delay in self.links.items() if link not in links}
        self.links |= {} if up else dict.fromkeys(links)

    def slow_links(self, links: Sequence[tuple[NodeId, NodeId]], delay_ms: int) -> None:
        self.links |= dict.fromkeys(links, delay_ms)

    def disturbed_links(self) -> dict[tuple[NodeId, NodeId], int | None]:
        return dict(sorted(self.links.items()))

    def send(self, node: NodeId, message: Message) -> None:
        self.ending[node] = PollReport([], [], True, None)


class Clock:
    """A monotonic clock that moves on by more than the time between two attempts with each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1 + supervisor.START_AGAIN_S
        return self.now_s


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def supervised(cluster: Cluster, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(supervisor, "write_state", lambda state: None)
    monkeypatch.setattr(supervisor, "require_control_store", lambda address: None)
    monkeypatch.setattr(supervisor, "own_node", lambda: "own")
    monkeypatch.setattr(supervisor, "metrics_ports", lambda: ["127.0.0.1:8080"])
    monkeypatch.setattr(supervisor, "is_alive", lambda ray_node: ray_node not in cluster.lost)
    monkeypatch.setattr(supervisor.time, "monotonic", Clock())
    spec = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966), 0)
    assert set(spec.node_ids) == set(NODES)
    state = ClusterState(options=ClusterOptions(), pid=1, started_ticks=1, address="h:1")
    return Supervisor(cast(ActorCluster, cluster), spec, state, lines.append)


def ask(supervised: Supervisor, action: NodeAction, node: str) -> NodeAnswer:
    return supervised.carry_out(NodeCommand(action=action, node=node))


def row(supervised: Supervisor, node: str) -> NodeRow:
    rows = supervised.carry_out(NodeCommand(action=NodeAction.LIST)).rows
    return next(row for row in rows if row.node == node)


def ended(*traces: Trace, failure: str | None = None, never_ran: bool = False) -> PollReport:
    return PollReport([(5, trace) for trace in traces], [], failure is None, failure, never_ran)


def disk_error(reason: str, halted: bool) -> Trace:
    return StorageFailed(None, reason, halted=halted)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (None, "its process has ended"),
        (ended(disk_error("odd", halted=False)), "its process has ended"),
        (
            ended(disk_error("odd", halted=False), disk_error("/d: No space left", halted=True)),
            "its disk has failed: /d: No space left",
        ),
        (ended(failure="it\nbroke"), "failed: it broke"),
    ],
)
def test_the_reason_of_a_nodes_end_is_one_line(
    supervised: Supervisor, cluster: Cluster, lines: list[str], last: PollReport | None, reason: str
) -> None:
    cluster.ending = {1: last}
    supervised.poll()
    [line] = lines
    assert line.endswith(f" broker-1: {reason}")
    found = row(supervised, "broker-1")
    assert (found.state, found.pid, found.reason) == (NodeState.ENDED, None, reason)


def test_the_loss_of_a_ray_node_is_the_reason_and_its_brokers_stay_down(
    supervised: Supervisor, cluster: Cluster, lines: list[str]
) -> None:
    cluster.ending, cluster.lost = {0: None, FIRST_CONTROLLER: None}, {"home-0", f"home-{FIRST_CONTROLLER}"}
    supervised.poll()
    assert [line.partition(": ")[2] for line in lines] == ["its Ray node is lost"] * 2
    supervised.poll()
    assert {0, FIRST_CONTROLLER}.isdisjoint(cluster.nodes)
    assert set(supervised.state.pids) == {"urm", "broker-1", "client-3000"}


def test_clients_and_the_recovery_manager_start_again_by_themselves(supervised: Supervisor, cluster: Cluster) -> None:
    cluster.ending = {FIRST_CLIENT: None, RECOVERY_MANAGER: None, 1: None}
    supervised.poll()
    assert set(NODES) - set(cluster.nodes) == {1}
    assert row(supervised, "client-3000").state is NodeState.STARTING


def test_a_client_that_was_killed_by_command_starts_by_command_only(supervised: Supervisor, cluster: Cluster) -> None:
    assert ask(supervised, NodeAction.KILL, "client-3000").rows[0].state is NodeState.ENDED
    supervised.poll()
    assert not cluster.is_running(FIRST_CLIENT)
    ask(supervised, NodeAction.START, "client-3000")
    assert cluster.is_running(FIRST_CLIENT)
    cluster.ending = {FIRST_CLIENT: None}
    supervised.poll()
    assert cluster.is_running(FIRST_CLIENT)


@pytest.mark.parametrize("withdrawal", [NodeAction.KILL, NodeAction.STOP])
def test_a_start_without_a_ray_node_waits_and_can_be_withdrawn(
    supervised: Supervisor, cluster: Cluster, withdrawal: NodeAction
) -> None:
    cluster.ending, cluster.homeless = {1: None}, {1}
    supervised.poll()
    [waiting] = ask(supervised, NodeAction.START, "broker-1").rows
    assert (waiting.state, waiting.pid, waiting.reason) == (NodeState.WAITING, None, NO_RAY_NODE)
    refused = ask(supervised, NodeAction.PAUSE, "broker-1")
    assert refused.found == "broker-1, which is waiting for a Ray node"
    assert ask(supervised, withdrawal, "broker-1").rows[0].state is NodeState.ENDED
    cluster.homeless = set()
    supervised.poll()
    assert not cluster.is_running(1)
    assert cluster.killed == []


def test_a_start_that_waits_goes_on_when_a_ray_node_joins(supervised: Supervisor, cluster: Cluster) -> None:
    cluster.ending, cluster.homeless = {1: None}, {1}
    supervised.poll()
    ask(supervised, NodeAction.START, "broker-1")
    cluster.homeless = set()
    supervised.poll()
    assert row(supervised, "broker-1").state is NodeState.STARTING
    cluster.up.add(1)
    found = row(supervised, "broker-1")
    assert (found.state, found.pid, found.host, found.ray_node) == (NodeState.RUNNING, 101, "host", "home-1")


STARTS = {
    "undone by a lost Ray node": (ended(failure="the actor never ran", never_ran=True), NodeState.STARTING, ""),
    "failed": (ended(failure="ForeignDirectoryError: /d"), NodeState.ENDED, "failed: ForeignDirectoryError: /d"),
}


@pytest.mark.parametrize(("end", "state", "reason"), STARTS.values(), ids=STARTS)
def test_a_start_that_a_lost_ray_node_undoes_is_tried_again_and_one_that_fails_is_not(
    supervised: Supervisor, cluster: Cluster, end: PollReport, state: NodeState, reason: str
) -> None:
    cluster.ending = {1: None}
    supervised.poll()
    ask(supervised, NodeAction.START, "broker-1")
    cluster.ending = {1: end}
    found = row(supervised, "broker-1")
    assert (found.state, found.pid, found.reason) == (state, None, reason)
    assert cluster.is_running(1) is (state is NodeState.STARTING)


def test_a_stopped_node_ends_without_a_report(supervised: Supervisor, cluster: Cluster, lines: list[str]) -> None:
    assert ask(supervised, NodeAction.STOP, "broker-0").rows[0].state is NodeState.RUNNING
    assert row(supervised, "broker-0").state is NodeState.ENDED
    assert lines == []


def test_the_supervisor_ends_with_its_own_ray_node(supervised: Supervisor, cluster: Cluster) -> None:
    cluster.ending, cluster.lost = dict.fromkeys(NODES), {"own"}
    with pytest.raises(RayLostError, match="the Ray node of the supervisor is lost"):
        supervised.poll()


@pytest.mark.parametrize(("level", "is_started"), [(0, False), (1, True)])
def test_the_recovery_manager_starts_once_unclean_recovery_is_enabled(
    supervised: Supervisor, cluster: Cluster, level: int, is_started: bool
) -> None:
    ask(supervised, NodeAction.KILL, "urm")
    cluster.traces = [FeatureLevelChanged(UNCLEAN_RECOVERY_ENABLED, level)]
    for _ in range(2):
        supervised.poll()
    assert cluster.is_running(RECOVERY_MANAGER) is is_started


A_TO_B = {"node": "broker-0", "peer": "broker-1"}


@pytest.mark.parametrize(
    ("actions", "left", "refused"),
    [
        ([{"action": "cut", **A_TO_B}], ["broker-0 to broker-1 is cut"], ""),
        (
            [{"action": "slow", **A_TO_B, "both_ways": True, "delay_ms": 300}],
            ["broker-0 to broker-1 is slow by 300 ms", "broker-1 to broker-0 is slow by 300 ms"],
            "",
        ),
        (
            [{"action": "slow", **A_TO_B, "delay_ms": 3}, {"action": "cut", **A_TO_B}],
            ["broker-0 to broker-1 is cut"],
            "",
        ),
        (
            [{"action": "cut", **A_TO_B, "both_ways": True}, {"action": "heal", **A_TO_B}],
            ["broker-1 to broker-0 is cut"],
            "",
        ),
        ([{"action": "cut", **A_TO_B, "both_ways": True}, {"action": "heal"}], [], ""),
        ([{"action": "heal"}], [], ""),
        ([{"action": "cut", **A_TO_B}] * 2, ["broker-0 to broker-1 is cut"], "broker-0 to broker-1, which is cut"),
        (
            [{"action": "cut", **A_TO_B}, {"action": "slow", **A_TO_B, "both_ways": True, "delay_ms": 3}],
            ["broker-0 to broker-1 is cut"],
            "broker-0 to broker-1, which is cut",
        ),
        ([{"action": "heal", **A_TO_B}], [], "broker-0 to broker-1, which is whole"),
        ([{"action": "cut", "node": "broker-0", "peer": "broker-0"}], [], "broker-0 to broker-0"),
        ([{"action": "cut", "node": "broker-0", "peer": "broker-9"}], [], "broker-9"),
    ],
)
def test_links_are_cut_slowed_and_healed_and_what_their_state_does_not_allow_is_refused(
    supervised: Supervisor, actions: list[dict[str, object]], left: list[str], refused: str
) -> None:
    """The last action is refused as a whole, or done."""
    answers = [supervised.carry_out(NodeCommand.model_validate(action)) for action in actions]
    assert [(answer.found, bool(answer.allowed)) for answer in answers[:-1]] == [("", False)] * (len(actions) - 1)
    assert (answers[-1].found, bool(answers[-1].allowed)) == (refused, bool(refused))
    listed = supervised.carry_out(NodeCommand(action=NodeAction.LINKS))
    assert [row.words for row in listed.links] == left


def test_disks_are_filled_freed_and_damaged_where_the_state_of_the_node_allows_it(
    supervised: Supervisor, cluster: Cluster
) -> None:
    def act(action: NodeAction, node: str = "broker-0", **fields: object) -> NodeAnswer:
        return supervised.carry_out(NodeCommand.model_validate({"action": action, "node": node, **fields}))

    act(NodeAction.FILL_DISK, room_bytes=7)
    act(NodeAction.FREE_DISK)
    assert cluster.commands == [(0, "set_room", 7), (0, "set_room", None)]
    assert act(NodeAction.FILL_DISK, f"broker-{SILENT}").failure == "it does not answer"
    assert act(NodeAction.LOSE, loss_kind="all").found == "broker-0, which is running"
    damaged = act(NodeAction.CORRUPT_TAIL, damage="zeroed", seed="1")
    assert (damaged.damaged, cluster.killed, damaged.rows[0].state) == (4, [0], NodeState.ENDED)
    for action in (NodeAction.FILL_DISK, NodeAction.FREE_DISK, NodeAction.KILL):
        assert act(action).found == "broker-0, which is ended"
    assert act(NodeAction.LOSE, loss_kind="records", loss_count=3).allowed == ""


class Tap:
    """Stands for `ClusterTap`: what it was told, in order, without polls that brought nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def reports(self, reports: object) -> None:
        """Reports come with every poll."""

    def mark(self) -> None:
        """A mark follows every poll."""

    def began(self, node: NodeId) -> None:
        self.told.append(("began", node))

    def drain(self, node: NodeId) -> None:
        self.told.append(("drain", node))

    def lost(self, node: NodeId, kind: str) -> None:
        self.told.append(("lost", node, kind))

    def ended(self, node: NodeId, process: ProcessId | None, last: PollReport | None) -> None:
        self.told.append(("ended", node, last is None))


def test_a_recorder_learns_of_each_start_end_and_loss(supervised: Supervisor, cluster: Cluster) -> None:
    """A broker that is killed is asked for its last events before; a paused one would not answer."""
    tap = Tap()
    supervised._tap = cast(ClusterTap, tap)

    ask(supervised, NodeAction.KILL, "broker-0")
    ask(supervised, NodeAction.REPLACE_DISK, "broker-0")
    ask(supervised, NodeAction.START, "broker-0")
    cluster.ending = {1: None}
    supervised.poll()

    assert tap.told == [
        ("drain", 0),
        ("lost", 0, "none"),
        ("lost", 0, "all"),
        ("began", 0),
        ("ended", 1, True),
    ]


class FullTap(Tap):
    """A tap whose files have no room left."""

    def mark(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_recording_without_room_ends_and_the_cluster_goes_on(supervised: Supervisor, cluster: Cluster) -> None:
    tap = FullTap()
    supervised._tap = cast(ClusterTap, tap)

    supervised.poll()
    supervised.poll()

    [event] = supervised.state.events
    assert event.endswith(f" recording: {NOT_RECORDED}: No space left on device")
    assert ask(supervised, NodeAction.KILL, "broker-0").failure == ""
    supervised.finish_recording()
    assert tap.told == []


class SilentTap(Tap):
    """A tap that reads from a node which does not answer."""

    def mark(self) -> None:
        raise GetTimeoutError("broker-0")


def test_a_silent_node_does_not_end_the_recording(supervised: Supervisor) -> None:
    """The error of Ray is an OSError, too."""
    supervised._tap = cast(ClusterTap, SilentTap())

    with pytest.raises(GetTimeoutError):
        supervised.poll()
