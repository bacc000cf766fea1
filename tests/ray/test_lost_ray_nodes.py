"""`isray up --address` on several Ray nodes, one of which is lost, and on a Ray whose control store is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from subprocess import PIPE
from urllib.request import urlopen

import pytest
import ray

from experiments.engines.clusters.cluster_state import ClusterState, read_state
from experiments.engines.clusters.node_commands import NodeAction, NodeCommand, NodeRow, NodeState, ask, ask_until
from experiments.hunt.soak.ray_nodes import RayNodes, ray_nodes
from tests.ray.cluster_helpers import FAST_OPTIONS
from tests.ray.command_helpers import Shell, begun_shell
from tests.sim.seed_helpers import some
from tests.strays import leaves_within

pytestmark = pytest.mark.timeout(600)
CLIENT, MANAGER = "client-3000", "urm"
WITHIN_S = 120
PRODUCER = ("console-producer", "--topic", "t", "--json")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """One head for all tests, the last of which kills its control store."""
    with ray_nodes(0) as found:
        yield found


@pytest.fixture(scope="module")
def shell(nodes: RayNodes) -> Iterator[Shell]:
    with pytest.MonkeyPatch.context() as environment, begun_shell() as made:
        made.environment |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        environment.setenv("XDG_RUNTIME_DIR", str(made.folder))
        yield made


@pytest.fixture(scope="module")
def written(nodes: RayNodes, shell: Shell) -> list[int]:
    """What `produce` has written to a cluster on three Ray nodes, which tests share until one ends it."""
    for _ in range(2):
        nodes.add()
    up(shell, "--controllers", "3")
    return []


@pytest.fixture
def only_head(nodes: RayNodes, shell: Shell) -> None:
    """No cluster runs, and the head is the only Ray node, as Ray knows."""
    shell.run("down")
    for node in nodes.workers:
        nodes.reap(node)
    until_s = time.monotonic() + WITHIN_S
    while sum(node["Alive"] for node in ray.nodes()) > 1:
        assert time.monotonic() < until_s, ray.nodes()


def up(shell: Shell, *options: str) -> None:
    """Starts a cluster on the Ray that this process is connected to, with three replicas of a topic `t`."""
    address = str(ray.get_runtime_context().gcs_address)
    shell.ok("up", "--detach", "--address", address, *FAST_OPTIONS, *options)
    shell.ok("topics", "--create", "--topic", "t", "--partitions", "3", "--replication-factor", "3")


def state() -> ClusterState:
    found = read_state("default")
    assert found is not None
    return found


def rows() -> dict[str, NodeRow]:
    """What `isray node list` prints, by node; those that run have a process, and no others."""
    found = ask(state(), NodeCommand(action=NodeAction.LIST)).rows
    for row in found:
        assert (row.pid is not None) == (row.state in (NodeState.RUNNING, NodeState.PAUSED)), row
    return {row.node: row for row in found}


def reach(expected: NodeState, *names: str) -> None:
    """Waits until the nodes are in this state."""
    for name in names:
        row = ask_until(partial(ask, state()), name, lambda row: row.state is expected, WITHIN_S)
        assert row.state is expected, row


def change(action: NodeAction, name: str) -> NodeRow:
    """Has the supervisor carry out an action."""
    answer = ask(state(), NodeCommand(action=action, node=name))
    assert not answer.failure + answer.found, answer
    return answer.rows[0]


def produce(shell: Shell, written: list[int], count: int) -> None:
    """Writes the next numbers as records, all of which are acknowledged."""
    numbers = range(len(written), len(written) + count)
    _, out, err = shell.run(*PRODUCER, text="".join(f"{number}\n" for number in numbers))
    assert json.loads(out) == {"acknowledged": count, "failed": 0, "unknown": 0}, err
    written += numbers


@pytest.mark.usefixtures("written")
def test_nodes_are_listed_and_steered_from_a_machine_that_has_the_address_only(shell: Shell) -> None:
    """A second user with folders and state files of its own stands for the other machine: it reaches the Ray head."""
    address = state().address
    assert address is not None
    at = ("--bootstrap-server", address)
    with begun_shell() as elsewhere:
        elsewhere.environment |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        assert elsewhere.json("node", "list", *at) == shell.json("node", "list")
        places = {row.node: (row.host, row.ray_node) for row in rows().values()}
        status = elsewhere.json("status", *at)
        for row in (*status["brokers"], *status["controllers"]):
            assert (row["host"], row["ray_node"]) == places[row["node"]]
        assert len({row["ray_node"] for row in status["brokers"]}) == 3
        killed = elsewhere.json("node", "kill", "broker-1", "--lose", "unflushed", "--address", address)
        assert (killed["state"], rows()["broker-1"].state) == ("ended", NodeState.ENDED)
        refused = "isray: NODE: found broker-1, which is ended; allowed: a node that is running\n"
        assert elsewhere.run("node", "pause", "broker-1", *at) == (2, "", refused)
        assert elsewhere.json("node", "start", "broker-1", *at)["pid"] == rows()["broker-1"].pid
        code, _, err = elsewhere.run("node", "list", "--bootstrap-server", "127.0.0.1:1")
        assert (code, err.count("\n"), "host:port of a running Ray head" in err) == (2, 1, True)
    assert shell.is_healthy()


@pytest.mark.parametrize("movable", some([CLIENT, MANAGER], first=1))
def test_a_cluster_goes_on_without_a_ray_node_and_is_whole_again_with_another(
    nodes: RayNodes, shell: Shell, written: list[int], movable: str
) -> None:
    produce(shell, written, 100)
    before = rows()
    lost = before[movable].ray_node
    assert lost is not None
    assert lost != nodes.head
    gone = [name for name, row in before.items() if row.ray_node == lost and name not in (CLIENT, MANAGER)]
    [broker] = [name for name in gone if name.startswith("broker-")]
    nodes.reap(lost)
    assert all(leaves_within(before[name].pid or 0, 60) for name in (*gone, movable)), "workers end after their raylet"

    produce(shell, written, 100)
    status = shell.json("status", code=1)
    assert {row["node"] for row in status["brokers"] if not row["running"]} == {broker}
    reach(NodeState.RUNNING, CLIENT, MANAGER)
    assert rows()[movable].ray_node != lost
    reach(NodeState.ENDED, *gone)
    waiting = shell.json("node", "start", broker)
    assert (waiting["state"], waiting["pid"]) == ("waiting for a Ray node", None)
    assert waiting["reason"] == f"its Ray node {lost[:8]} is lost, and no other one is free"
    assert f"{broker} is {waiting['state']}: {waiting['reason']}" in shell.run("status")[1]
    for withdraw in (NodeAction.STOP, NodeAction.KILL):
        assert change(withdraw, broker).state is NodeState.ENDED
        assert change(NodeAction.START, broker).state is NodeState.WAITING

    for name in set(gone) - {broker}:
        assert change(NodeAction.START, name).state is NodeState.WAITING
    new = nodes.add()
    reach(NodeState.RUNNING, *gone)
    assert {rows()[name].ray_node for name in gone} == {new}
    assert shell.is_healthy()
    read = shell.ok("console-consumer", "--topic", "t", "--from-beginning", "--max-messages", str(len(written)))
    assert sorted(map(int, read.split())) == written


@pytest.mark.usefixtures("written")
def test_a_start_on_a_ray_node_that_was_just_lost_is_tried_again_and_orphans_end(nodes: RayNodes, shell: Shell) -> None:
    lost, before = nodes.workers[0], rows()
    there = [name for name, row in before.items() if row.ray_node == lost]
    [broker] = [name for name in there if name.startswith("broker-")]
    [controller] = [name for name in there if name.startswith("controller-")]
    nodes.kill_raylet(lost)
    assert change(NodeAction.KILL, broker).state is NodeState.ENDED
    assert leaves_within(before[broker].pid or 0, 20)
    assert shell.json("node", "start", broker)["state"] == "waiting for a Ray node"
    reach(NodeState.ENDED, controller)
    assert not leaves_within(before[controller].pid or 0, 0), "the process of a killed raylet goes on"
    nodes.add()
    assert shell.json("node", "start", controller)["state"] == "running"
    assert leaves_within(before[controller].pid or 0, 20)
    reach(NodeState.RUNNING, broker)
    nodes.reap(lost)
    assert shell.is_healthy()


@pytest.mark.usefixtures("written")
def test_a_cluster_whose_supervisor_was_killed_ends_and_says_so(shell: Shell) -> None:
    before = rows()
    pid = state().pid
    os.kill(pid, 9)
    assert all(leaves_within(row.pid or 0, 60) for row in before.values())
    code, _, err = shell.run("status")
    gone = f"default has ended: its supervisor, process {pid}, is gone, and its nodes with it"
    assert (code, gone in err, err.count("\n")) == (1, True, 1)
    assert shell.ok("down") == "default had ended already\n"


@pytest.mark.usefixtures("only_head")
def test_brokers_are_on_ray_nodes_of_their_racks_only(nodes: RayNodes, shell: Shell) -> None:
    racks = {nodes.add(rack): rack for rack in ("a", "b", "a")}
    address = str(ray.get_runtime_context().gcs_address)
    code, _, err = shell.run("up", "--detach", "--address", address, "--racks", "a,z,b")
    allowed = "the racks of the Ray nodes (label rack): a, b"
    assert (code, err.partition(" (log: ")[0]) == (2, f"isray: --racks: found z; allowed: {allowed}")
    up(shell, "--brokers", "4", "--racks", "a,b,a,b")
    brokers = [rows()[f"broker-{broker}"] for broker in range(4)]
    assert [racks[str(broker.ray_node)] for broker in brokers] == ["a", "b", "a", "b"]
    lost = str(brokers[0].ray_node)
    nodes.reap(lost)
    reach(NodeState.ENDED, "broker-0")
    nodes.add("b")
    waiting = change(NodeAction.START, "broker-0")
    assert waiting.reason == f"its Ray node {lost[:8]} is lost, and no other one of rack a is free"
    new = nodes.add("a")
    reach(NodeState.RUNNING, "broker-0")
    assert rows()["broker-0"].ray_node == new


def last_state_of(page: str) -> str:
    """What the page of a console says of the end of its cluster, once it says something."""
    with urlopen(page.replace("/?", "/events?"), timeout=WITHIN_S) as events:
        for line in events:
            if line.startswith(b"data: ") and (ended := json.loads(line[6:])["ended"]):
                return str(ended)
    raise AssertionError("the events have ended before")


@pytest.mark.usefixtures("only_head")
def test_without_the_control_store_all_end_with_a_word_and_counts_are_kept(nodes: RayNodes, shell: Shell) -> None:
    """The last test on the shared head."""
    up(shell)
    before, supervisor = rows(), state().pid
    with (
        shell.begin("console", output=PIPE) as console,
        shell.begin(*PRODUCER, output=PIPE) as producer,
        shell.begin(*PRODUCER, output=PIPE) as idle,
    ):
        assert console.stdout is not None
        page = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", console.stdout.readline())
        assert page is not None
        assert producer.stdin is not None
        assert idle.stdin is not None
        idle.stdin.write("record\n")
        idle.stdin.flush()
        sent = 0
        while producer.poll() is None:
            try:
                producer.stdin.write("record\n" * 1000)
                producer.stdin.flush()
            except BrokenPipeError:
                break
            sent += 1000
            if sent == 10_000:
                shell.ok("console-consumer", "--topic", "t", "--from-beginning", "--max-messages", "1000")
                nodes.kill_control_store()
        out, err = producer.communicate(timeout=120)
        assert idle.wait(timeout=30) == 1, "with its input still open"
        idle_out, idle_err = idle.communicate()
        ended = last_state_of(page[0])
        console.send_signal(signal.SIGINT)
        _, console_err = console.communicate(timeout=60)
    assert ended.startswith("default, which has ended: the control store of Ray at")
    assert (console.returncode, console_err.splitlines()) == (
        0,
        [f"isray: the cluster is gone: {ended}; the page keeps its last state (Ctrl-C ends it)"],
    )
    counts = json.loads(out)
    assert producer.returncode == 1
    assert counts["acknowledged"] >= 1000
    assert sum(counts.values()) <= sent
    assert json.loads(idle_out) == {"acknowledged": 1, "failed": 0, "unknown": 0}
    assert all("the control store of Ray at" in text.splitlines()[-1] for text in (err, idle_err))
    assert all(leaves_within(pid or 0, 60) for pid in (*(row.pid for row in before.values()), supervisor))
    code, _, err_text = shell.run("status")
    assert (code, err_text.count("\n")) == (1, 1), err_text
    assert "default has ended: the control store of Ray at" in err_text
    code, _, err_text = shell.run("topics", "--list")
    assert (code, err_text.count("\n"), "which has ended: the control store" in err_text) == (2, 1, True)
    assert shell.ok("down") == "default had ended already\n"
