"""State files of running clusters, the choice of a cluster, and the relay of administration requests."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from actors.relay import ADMIN_CALLERS, AdminRelay
from experiments.engines.clusters import cluster_state, launch
from experiments.engines.clusters.cluster_state import (
    ClusterOptions,
    ClusterState,
    Status,
    claim,
    read_state,
    runtime_folder,
    states,
    write_state,
)
from experiments.engines.ray import connection
from experiments.engines.ray.connection import (
    ClusterAddress,
    find_cluster,
    listens_on_loopback_only,
    own_state,
    state_of,
)
from experiments.engines.ray.session import require_ray
from experiments.support.errors import InputError
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CLIENT, NodeId
from protocol.messages.base import ANONYMOUS, Message
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.commands import AdminCommand, AdminOutcome, ShutdownCommand
from protocol.metadata.authorizer import node_principal
from tests.unit.actors.transport_helpers import on_loop


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "isray"


def running(name: str, address: str = "h:1", namespace: str = "isray-1", ray: str | None = None) -> ClusterState:
    """The state of a cluster whose supervisor is this process; `ray` is the address of a shared Ray."""
    made = claim(ClusterOptions(name=name, address=ray, config={"min.insync.replicas": "2"}, racks=("x", "y", "z")))
    made = made.model_copy(update={"address": address, "namespace": namespace, "status": Status.READY})
    write_state(made)
    return made


def ended_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_an_address_selects_the_cluster_that_runs_there_and_any_other_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain(host: str, port: int, within_s: float) -> None:
        socket.create_connection((host, port), within_s).close()

    monkeypatch.setattr(connection, "require_ray", plain)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InputError, match=f"--address: found {here}, where none of your clusters runs;"):
            state_of(None, here)
        first = running("a", here, "isray-1", here)
        running("b", "127.0.0.1:1")
        assert state_of(None, here) == first
        running("c", here, "isray-2", here)
        with pytest.raises(InputError, match=f"one of the clusters on {here}: a, c"):
            state_of(None, here)
        assert state_of("a", here) == first
    with pytest.raises(InputError, match=f"--address: found {here}; allowed: host:port of a running"):
        state_of(None, here)


# -- state files -------------------------------------------------------------------------------------------------------


def test_only_the_user_can_read_a_state_file_and_it_reads_as_written(folder: Path) -> None:
    made = running("a", "127.0.0.1:1", "isray-1")
    assert read_state("a") == made
    assert made.is_running
    assert (folder / "a.json").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == ["a.json"]


def test_a_name_is_claimed_once(folder: Path) -> None:
    running("a")
    with pytest.raises(InputError, match=f"which process {os.getpid()} runs"):
        claim(ClusterOptions(name="a"))
    running("b")
    assert [found.options.name for found in states()] == ["a", "b"]
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json"]


def test_a_stale_file_is_detected_and_replaced(folder: Path) -> None:
    write_state(running("a").model_copy(update={"pid": ended_process()}))
    found = read_state("a")
    assert found is not None
    assert not found.is_running
    assert claim(ClusterOptions(name="a")).pid == os.getpid()


def test_another_process_with_the_same_id_is_not_the_cluster() -> None:
    made = running("a")
    assert not made.model_copy(update={"started_ticks": made.started_ticks - 1}).is_running


def test_stopping_an_ended_cluster_removes_its_files_and_ends_no_other_process(folder: Path, tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    made = running("a").model_copy(update={"started_ticks": 1, "folders": (str(left),)})
    cluster_state.log_path("a").write_text("said")
    assert launch.stop(made).how == "had ended already"
    assert not left.exists()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["", "a/b", "..", "-a", "a b", "x" * 65])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        cluster_state.state_path(name)


def test_a_damaged_file_is_named(folder: Path) -> None:
    runtime_folder()
    (folder / "a.json").write_text("{")
    with pytest.raises(InputError, match=r"a\.json"):
        read_state("a")


def test_a_folder_that_other_users_can_access_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(InputError, match="a folder of this user only"):
        runtime_folder()


def test_events_are_bounded() -> None:
    made = running("a")
    for number in range(250):
        made = made.with_event("node", str(number))
    assert len(made.events) == 100
    assert made.events[-1].endswith(" node: 249")


# -- which cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.covers("J8")
def test_the_only_running_cluster_needs_no_option() -> None:
    with pytest.raises(InputError, match="no cluster runs here; start one with isray up"):
        find_cluster(None, None)
    running("a", "127.0.0.1:1", "isray-1")
    assert find_cluster(None, None) == [ClusterAddress("127.0.0.1:1", "isray-1", loopback=True)]
    write_state(running("b", "h:2", "isray-2", ray="h:2"))
    with pytest.raises(InputError, match="one of the clusters that run here: a, b"):
        find_cluster(None, None)
    assert find_cluster(None, "b") == [ClusterAddress("h:2", "isray-2", loopback=False)]
    with pytest.raises(InputError, match="c, which does not run"):
        find_cluster(None, "c")


def stale(name: str, **fields: object) -> ClusterState:
    """The state of a cluster whose supervisor has ended."""
    made = running(name).model_copy(update={"pid": ended_process(), **fields})
    write_state(made)
    return made


def test_the_only_running_cluster_is_meant_whatever_its_name_and_what_else_has_left_files() -> None:
    stale("default")
    made = running("b")
    assert own_state(None) == made
    running("c")
    with pytest.raises(InputError, match="one of the clusters that run here: b, c"):
        own_state(None)
    assert own_state("default").options.name == "default"


def test_without_a_running_cluster_the_only_one_that_has_left_files_is_meant() -> None:
    with pytest.raises(InputError, match="no cluster runs here"):
        own_state(None)
    made = stale("b")
    assert own_state(None) == made
    stale("c")
    with pytest.raises(InputError, match="one of the clusters that have ended here: b, c"):
        own_state(None)
    with pytest.raises(InputError, match="d, which does not run; allowed: b, c"):
        own_state("d")


def test_a_cluster_that_has_ended_says_why() -> None:
    made = stale("b")
    gone = f"b, which has ended: its supervisor, process {made.pid}, is gone, and its nodes with it"
    with pytest.raises(InputError, match=gone):
        find_cluster(None, None)
    stale("b", end_reason="the control store of Ray at h:1 is lost")
    with pytest.raises(
        InputError, match="b, which has ended: the control store of Ray at h:1 is lost; allowed: a cluster"
    ):
        find_cluster(None, "b")


@pytest.mark.covers("J8")
def test_a_list_of_addresses_is_tried_in_order() -> None:
    running("a", "127.0.0.1:1", "isray-1")
    expected = [ClusterAddress("h:9"), ClusterAddress("127.0.0.1:1", "isray-1", loopback=True)]
    assert find_cluster("h:9, 127.0.0.1:1", None) == expected


@pytest.mark.covers("J8")
@pytest.mark.parametrize("address", ["", "h", "h:", ":1", "h:x", "h:70000", "h:1,"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InputError, match="--bootstrap-server"):
        find_cluster(address, None)


# -- the relay of administration requests ------------------------------------------------------------------------------


class Scripted:
    """A host and its outbound in one, which records its calls."""

    def __init__(self) -> None:
        self.delivered: list[tuple[NodeId, Any]] = []
        self.sent: list[tuple[NodeId, Message]] = []

    def deliver(self, sender: NodeId, messages: list[Message], control: bool) -> None:
        assert control
        self.delivered += [(sender, message) for message in messages]

    def send(self, to: NodeId, message: Message) -> None:
        self.sent.append((to, message))


def outcome(command: AdminCommand) -> AdminOutcome:
    response = DescribeClusterResponse(correlation_id=command.request.correlation_id)
    return AdminOutcome(command_id=command.command_id, error=ErrorCode.NONE, message="", response=response)


@on_loop
async def test_each_caller_gets_the_outcome_of_its_own_request() -> None:
    host = Scripted()
    relay = AdminRelay(host.send)
    asked = [
        asyncio.create_task(relay.request(host, DescribeClusterRequest(correlation_id=number)))  # type: ignore[arg-type]
        for number in range(3)
    ]
    await asyncio.sleep(0)
    assert {sender for sender, _ in host.delivered} == {ADMIN_CALLERS}
    assert all(command.command_id < 0 for _, command in host.delivered)
    asked[1].cancel()
    await asyncio.sleep(0)
    for _, command in reversed(host.delivered):
        relay.send(ADMIN_CALLERS, outcome(command))
    for number in (0, 2):
        found = await asked[number]
        assert found.response is not None
        assert found.response.correlation_id == number
    relay.send(7, ShutdownCommand())
    assert host.sent == [(7, ShutdownCommand())]


@on_loop
async def test_a_node_answers_requests_itself_each_caller_its_own() -> None:
    host = Scripted()
    relay = AdminRelay(host.send, incarnation=3)
    asked = [
        asyncio.create_task(relay.query(host, DescribeClusterRequest(correlation_id=0, principal=principal)))  # type: ignore[arg-type]
        for principal in (ANONYMOUS, "User:alice")
    ]
    await asyncio.sleep(0)
    requests = [request for _, request in host.delivered]
    assert {sender for sender, _ in host.delivered} == {ADMIN_CALLERS}
    assert [request.correlation_id for request in requests] == [1, 2], "of 32 bits in any incarnation"
    assert [request.principal for request in requests] == [node_principal(FIRST_CLIENT), "User:alice"]
    for request in reversed(requests):
        text = f"for {request.principal}"
        relay.send(ADMIN_CALLERS, DescribeClusterResponse(correlation_id=request.correlation_id, message=text))
    assert [(await answer).message for answer in asked] == [f"for {request.principal}" for request in requests]


@pytest.mark.parametrize(("bound", "alone"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_a_ray_that_is_found_at_the_loopback_address_only_is_reached_there(bound: str, alone: bool) -> None:
    """127.0.0.2 stands for the machine's own address, by which Ray replaces 127.0.0.1: who listens everywhere is found
    there, too.
    """
    with socket.socket() as ray:
        ray.bind((bound, 0))
        ray.listen()
        port = ray.getsockname()[1]
        assert listens_on_loopback_only(f"127.0.0.1:{port}", "127.0.0.2") is alone
        assert not listens_on_loopback_only(f"192.0.2.1:{port}", "127.0.0.2")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), ""),
        (b"HTTP/1.0 400 Bad request\r\n", "what listens there is no Ray"),
        (b"SSH-2.0", "what listens there is no Ray"),
        (None, "does not answer within 0.1 s"),
    ],
)
def test_what_listens_is_taken_for_a_ray_if_it_speaks_as_one(answer: bytes | None, why: str) -> None:
    """An HTTP/2 server, as a control store is, answers with a SETTINGS frame; None: with nothing in time."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as other:

        def serve() -> None:
            with server.accept()[0] as client:
                assert client.recv(100).startswith(b"PRI * HTTP/2.0")
                if answer is not None:
                    client.sendall(answer)
                else:
                    client.recv(1)

        served = other.submit(serve)
        with pytest.raises(OSError, match=why) if why else nullcontext():
            require_ray("127.0.0.1", server.getsockname()[1], 0.1 if answer is None else 10.0)
        served.result(10)
