"""The administration client, and `isray status`, against a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.cli import cluster
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.engines.clusters.cluster_state import NOT_RECORDED, ClusterOptions, Status, claim, write_state
from experiments.engines.clusters.node_commands import NodeAnswer, NodeRow, NodeState
from experiments.engines.port import Loss
from experiments.play.views import node_views
from protocol.errors import ErrorCode
from protocol.ids import CLUSTER_ID, RECOVERY_MANAGER
from protocol.messages.topics import DescribeTopicRequest
from tests.unit.experiments.cli.cli_helpers import CliBench, Commands, MakeBench, SimPort


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch, make_bench: MakeBench) -> MakeBench:
    """Clusters of a user who has no state files."""
    monkeypatch.setattr(cluster, "states", list)
    return make_bench


def described(port: SimPort) -> list[DescribeTopicRequest]:
    return [request for request in port.requests if isinstance(request, DescribeTopicRequest)]


@pytest.mark.covers("G31", "J13")
def test_topics_are_described_20_at_a_time(bench: CliBench) -> None:
    names = [f"t{number:02}" for number in range(45)]
    bench.create_many(names, 0)
    bench.port.requests.clear()
    topics = AdminClient(bench.port).describe_topics(names)
    assert [topic.name for topic in topics] == names
    assert [len(request.topics) for request in described(bench.port)] == [20, 20, 5]


@pytest.mark.covers("E36")
def test_pages_are_joined_to_whole_topics(bench: CliBench) -> None:
    bench.create("a", ",".join(["0:1"] * 5))
    bench.create("b", ",".join(["1:2"] * 4))
    whole = AdminClient(bench.port).describe_topics()
    bench.port.requests.clear()
    for limit in (1, 2, 3, 5, 8, 9, 10):
        assert AdminClient(bench.port).describe_topics(limit=limit) == whole
        assert AdminClient(bench.port).describe_topics(["a", "b"], limit) == whole
    assert [len(topic.partitions) for topic in whole] == [5, 4]
    assert {request.response_partition_limit for request in described(bench.port)} == {1, 2, 3, 5, 8, 9, 10}


def test_requests_carry_the_principal(bench: CliBench) -> None:
    AdminClient(bench.port, "User:alice").describe_cluster()
    bench.ok("topics", "--list", "--principal", "User:bob")
    assert [request.principal for request in bench.port.requests] == ["User:alice", "User:bob"]


def test_a_request_that_fails_as_a_whole_is_an_error(bench: CliBench) -> None:
    with pytest.raises(AdminError) as raised:
        AdminClient(bench.port).describe_topics(limit=0)
    assert raised.value.error is ErrorCode.INVALID_REQUEST


def test_no_answer_is_an_error_and_exit_code_1(bench: CliBench) -> None:
    for node in (1000, 0, 1, 2, 3):
        bench.engine.crash(node, Loss("none"))
    assert "REQUEST_TIMED_OUT" in bench.fails("topics", "--list")
    assert bench.json("topics", "--list", code=1)["error"] == "REQUEST_TIMED_OUT"
    assert "REQUEST_TIMED_OUT" in bench.fails("status")


def test_status_shows_nodes_leaders_and_features(bench: CliBench) -> None:
    bench.create("t", "0:1:2,0:2:1")
    found = bench.json("status")
    assert found["healthy"] is True
    assert (found["controller"], found["controller_running"]) == (1000, True)
    assert [(item["node"], item["leads"], item["replicas"]) for item in found["brokers"]] == [
        ("broker-0", 2, 2),
        ("broker-1", 0, 2),
        ("broker-2", 0, 2),
        ("broker-3", 0, 0),
    ]
    assert found["features"] == {"metadata.version": 2, "unclean.recovery.enabled": 1}
    assert "broker-3" in bench.ok("status")


def test_status_has_the_host_and_the_ray_node_where_the_supervisor_is_reached(bench: CliBench) -> None:
    assert [broker["host"] for broker in bench.json("status")["brokers"]] == [None] * 4
    names = ("controller-1000", *(f"broker-{broker}" for broker in range(4)), "urm", "client-3000")
    rows = tuple(
        NodeRow(node=name, state=NodeState.RUNNING, pid=10, directory="", host=f"host-of-{name}", ray_node="01234567ab")
        for name in names
    )
    bench.supervisor = lambda command: NodeAnswer(rows=rows)
    found = bench.json("status")
    for row in (*found["brokers"], *found["controllers"]):
        assert (row["host"], row["ray_node"]) == (f"host-of-{row['node']}", "01234567ab")
    [line] = [line.split() for line in bench.ok("status").splitlines() if line.split()[:1] == ["broker-2"]]
    assert (line[:3], line[-2:]) == (["broker-2", "10", "unfenced"], ["host-of-broker-2", "01234567"])


def test_status_of_a_cluster_with_a_dead_broker_is_exit_code_1(bench: CliBench) -> None:
    bench.engine.crash(2, Loss("none"))
    broker = bench.json("status", code=1)["brokers"][2]
    assert (broker["running"], broker["state"]) == (False, "unfenced")
    bench.await_(lambda: bench.view_of(2).fenced)
    assert bench.json("status", code=1)["brokers"][2]["state"] == "fenced"
    code, out, _ = bench.run("status")
    assert code == 1
    assert [line for line in out.splitlines() if "broker-2" in line and "ended" in line and "fenced" in line]


def test_a_restarted_broker_is_not_registered_until_the_session_of_its_former_incarnation_has_ended(
    bench: CliBench,
) -> None:
    """It was killed and runs again at once, so the controller still has the former one as unfenced: `status` and the
    page of `isray play` and `isray console` ask the process in which epoch it is registered."""
    bench.engine.crash(2, Loss("none"))
    bench.engine.start(2)
    bench.engine.run_for(1_000)
    assert not bench.view_of(2).fenced
    found = bench.json("status", code=1)
    assert [broker["state"] for broker in found["brokers"]] == ["unfenced", "unfenced", "not registered", "unfenced"]
    shown = {node["name"]: node["role"] for node in node_views(bench.engine, (), bench.engine.view())}
    assert (shown["broker-1"], shown["broker-2"]) == ("unfenced", "not registered")
    bench.await_(lambda: bench.engine.broker_epoch(2) == bench.view_of(2).broker_epoch)
    bench.await_(lambda: not bench.view_of(2).fenced)
    assert bench.json("status")["brokers"][2]["state"] == "unfenced"


def test_status_misses_the_recovery_manager_where_recovery_is_on(bench: CliBench) -> None:
    assert bench.json("status")["recovery_manager_running"] is True
    assert [line.split() for line in bench.ok("status").splitlines() if "urm" in line] == [["urm", "runs"]]
    bench.engine.crash(RECOVERY_MANAGER, Loss("none"))
    assert bench.json("status", code=1)["healthy"] is False
    code, out, _ = bench.run("status")
    assert (code, [line.split() for line in out.splitlines() if "urm" in line]) == (1, [["urm", "ended"]])
    bench.ok("features", "disable", "--feature", "unclean.recovery.enabled")
    assert bench.json("status")["healthy"] is True
    assert "urm" not in bench.ok("status")


def test_status_of_a_named_cluster_adds_what_its_state_file_holds(
    bench: CliBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    state = claim(ClusterOptions(name="c"))
    update = {"address": "h:1", "status": Status.READY, "pids": {"broker-0": 4711}, "events": ("broker-9 ended",)}
    write_state(state.model_copy(update=update))
    found = bench.json("status", "--name", "c")
    assert (found["name"], found["bootstrap_server"], found["pids"]) == ("c", "h:1", {"broker-0": 4711})
    assert found["healthy"] is True
    lines = bench.ok("status", "--name", "c").splitlines()
    assert lines[0].startswith("c: kip-966, h:1, process ")
    assert [line.split()[:3] for line in lines if line.strip().startswith("broker-0")] == [
        ["broker-0", "4711", "unfenced"]
    ]
    assert lines[-1] == "broker-9 ended"


def controllers_of(found: dict[str, Any]) -> list[tuple[str, bool, str | None, bool]]:
    return [(row["node"], row["running"], row["role"], row["votes"]) for row in found["controllers"]]


@pytest.fixture
def quorum(make_bench: MakeBench) -> CliBench:
    """Three controllers; the client knows the active one from the creation of a topic."""
    made = make_bench(controllers=3)
    made.create()
    return made


def active_of(quorum: CliBench) -> int:
    quorum.await_(lambda: quorum.engine.active_controller() is not None)
    active = quorum.engine.active_controller()
    assert active is not None
    return active


@pytest.mark.covers("J16")
def test_status_shows_the_role_of_each_controller(quorum: CliBench) -> None:
    active = active_of(quorum)
    found = quorum.json("status")
    assert (found["healthy"], found["controller"], found["voters"]) == (True, active, [1000, 1001, 1002])
    assert controllers_of(found) == [
        (f"controller-{node}", True, "leader" if node == active else "follower", True) for node in (1000, 1001, 1002)
    ]
    removed = next(node for node in (1000, 1001) if node != active)
    quorum.ok("metadata-quorum", "remove-controller", "--controller-id", str(removed))
    found = quorum.json("status")
    assert (found["healthy"], found["voters"]) == (True, sorted({1000, 1001, 1002} - {removed}))
    assert (f"controller-{removed}", True, "observer", False) in controllers_of(found)
    lines = [line.split() for line in quorum.ok("status").splitlines()]
    assert [f"controller-{removed}", "runs", "observer"] in lines
    assert ["voters:", *", ".join(map(str, found["voters"])).split()] in lines


def test_a_quorum_is_healthy_as_long_as_a_majority_of_its_voters_runs(quorum: CliBench) -> None:
    first = active_of(quorum)
    quorum.engine.crash(first, Loss("none"))
    second = active_of(quorum)
    found = quorum.json("status")
    assert (found["healthy"], found["controller"], found["controller_running"]) == (True, second, True)
    assert (f"controller-{first}", False, "follower", True) in controllers_of(found)
    quorum.engine.crash(second, Loss("none"))
    found = quorum.json("status", code=1)
    assert (found["healthy"], found["controller"], found["controller_running"]) == (False, -1, False)
    [third] = {1000, 1001, 1002} - {first, second}
    assert controllers_of(found) == [(f"controller-{third}", True, None, False)]
    code, out, _ = quorum.run("status")
    assert (code, "no controller is active" in out) == (1, True)


def test_a_command_refuses_its_input_in_one_line_where_no_cluster_runs(
    command: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    none = "isray: no cluster runs here; start one with isray up\n"
    assert command.refused("down") == none
    assert command.refused("down", "--name", "other") == none


def test_registrations_of_brokers_and_controllers_are_removed(make_bench: MakeBench) -> None:
    bench = make_bench(brokers=2, controllers=3)
    assert bench.ok("cluster", "cluster-id") == f"Cluster ID: {CLUSTER_ID}\n"
    remove = ("cluster", "unregister-controller", "--id")
    failing = "Error while executing cluster command: "
    assert bench.fails(*remove, "1002").startswith(f"{failing}UNSUPPORTED_VERSION: ")
    bench.ok("features", "upgrade", "--feature", "metadata.version=3")
    bench.await_(lambda: registered(bench) == {1000, 1001, 1002})
    bench.engine.crash(1002, Loss("none"))
    assert bench.ok(*remove, "1002") == "Controller 1002 is no longer registered.\n"
    assert registered(bench) == {1000, 1001}
    again = f"{failing}CONTROLLER_ID_NOT_REGISTERED: controller 1002 is not registered\n"
    assert bench.fails(*remove, "1002") == again
    bench.kill(1)
    assert bench.json("cluster", "unregister", "-i", "1") == {"broker_id": 1, "unregistered": True}
    assert "BROKER_ID_NOT_REGISTERED" in bench.fails("cluster", "unregister", "--id", "1")


def test_a_removed_voter_is_unregistered_with_it(make_bench: MakeBench) -> None:
    bench = make_bench(brokers=1, controllers=5)
    remove = ("metadata-quorum", "remove-controller", "--unregister", "--controller-id")
    failed = bench.fails(*remove, "1003")
    assert "UNSUPPORTED_VERSION: controller 1003 is no voter any more, but was not unregistered: " in failed
    assert failed.endswith("; isray cluster unregister-controller --id 1003\n")
    bench.ok("features", "upgrade", "--feature", "metadata.version=3")
    bench.await_(lambda: registered(bench) == {1000, 1001, 1002, 1003, 1004})
    bench.engine.crash(1004, Loss("none"))
    bench.await_(lambda: bench.engine.active_controller() not in (None, 1004))
    dry = bench.ok(*remove, "1004", "--dry-run").splitlines()
    assert dry[1:] == ["DRY RUN of unregistering KRaft controller 1004"]
    assert bench.ok(*remove, "1004").splitlines()[1:] == ["Unregistered KRaft controller 1004"]
    assert registered(bench) == {1000, 1001, 1002, 1003}


def registered(bench: CliBench) -> set[int]:
    view = bench.engine.view()
    return set() if view is None else set(view.controllers)


def test_down_says_why_a_recording_is_not_complete(tmp_path: Path) -> None:
    log = f"isray: ready\nisray: {NOT_RECORDED}: broker 0 does not answer\n"
    assert cluster.not_recorded(None, log) is None
    assert cluster.not_recorded(str(tmp_path), log) is None
    (tmp_path / "recording-open.json").touch()
    assert cluster.not_recorded(str(tmp_path), log) == "the recording is not complete: broker 0 does not answer"
    assert cluster.not_recorded(str(tmp_path), "") == "the recording is not complete: the supervisor ended before"
