"""A cluster of processes without a JVM: shell scripts stand for nodes, sockets for what they say to each other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.life_cycle import LifeCycle, command_line, read_life_cycle
from experiments.engines.kafka.links import Addresses, Links
from experiments.engines.kafka.processes import NodeFailed, ProcessCluster, Program
from experiments.engines.kafka.properties import format_words, node_properties
from experiments.engines.port import ClusterSpec
from experiments.support.errors import InputError
from protocol.config import ClusterConfig
from protocol.features import Generation

SPEC = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966_ELR, {"retention.ms": 5, "request.timeout.ms": 900}))
NODES = (1000, 0, 1)


def cycle(start: str, format_: str = "") -> LifeCycle:
    return LifeCycle(
        name="a script",
        state="metadata-log",
        files={"settings": "port={port}\n"},
        environment={"OF": "{host}"},
        format=["sh", "-c", format_] if format_ else [],
        start=["sh", "-c", start],
    )


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[LifeCycle], ProcessCluster]]:
    """Makes clusters, whose folders are in `tmp_path`, and closes them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made: list[ProcessCluster] = []

    def begin(life_cycle: LifeCycle) -> ProcessCluster:
        made.append(ProcessCluster(SPEC, Program(life_cycle)))
        return made[-1]

    yield begin
    for cluster in made:
        cluster.close()
    assert not list(tmp_path.glob("isray-kafka-*"))


def test_nodes_are_started_signalled_and_killed(begun: Callable[[LifeCycle], ProcessCluster]) -> None:
    cluster = begun(cycle("cat settings; echo $OF; trap 'exit 3' TERM; touch up; while :; do read x < pipe; done"))
    for node in NODES:
        os.mkfifo(cluster.home(node) / "pipe")
    cluster.program.life_cycle.start[2] = f"cd {cluster.home(0)}; {cluster.program.life_cycle.start[2]}"
    assert (cluster.is_running(0), cluster.exit_code(0)) == (False, None)
    cluster.start(0)
    with (cluster.home(0) / "pipe").open("w"):  # opens when the script reads, which ends with the block
        assert (cluster.home(0) / "up").exists()
        assert cluster.pids().keys() == {0}
        assert cluster.last_lines(0) == f"port={cluster.addresses.ports[0]} | node-0"
        cluster.pause(0)
        assert (cluster.is_running(0), cluster.is_paused(0)) == (True, True)
        cluster.resume(0)
        cluster.stop(0)
    assert cluster._processes[0].wait() == 3
    cluster.start(0)
    cluster.kill(0)
    assert (cluster.is_running(0), cluster.exit_code(0)) == (False, -9)


def test_a_disk_is_formatted_once_and_again_where_it_is_replaced(begun: Callable[[LifeCycle], ProcessCluster]) -> None:
    cluster = begun(cycle("exit", "touch {disk}/formatted-{id}"))
    files = [[path.name for path in cluster.disk(node).iterdir()] for node in NODES]
    assert files == [["formatted-1000"], ["formatted-0"], ["formatted-1"]]
    (cluster.disk(1) / "log").touch()
    cluster.wipe(1)
    assert [path.name for path in cluster.disk(1).iterdir()] == ["formatted-1"]


def test_of_kafkas_disks_one_of_each_kind_is_formatted_and_copied_with_other_ids(
    begun: Callable[[LifeCycle], ProcessCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the controller and two brokers the program formats 1000 and 0; broker 1 has the disk of 0 with its own ids."""
    monkeypatch.setattr("experiments.engines.kafka.processes.jdk", lambda _: Path())
    write = "touch {disk}/formatted-{id}; printf 'node.id={id}\\ndirectory.id=first\\n' > {disk}/meta.properties"
    cluster = begun(cycle("exit", write).model_copy(update={"release": True}))
    files = [sorted(path.name for path in cluster.disk(node).iterdir()) for node in NODES]
    assert files == [["formatted-1000", "meta.properties"], *[["formatted-0", "meta.properties"]] * 2]
    ids = [(cluster.disk(node) / "meta.properties").read_text() for node in (0, 1)]
    assert ids == ["node.id=0\ndirectory.id=first\n", f"node.id=1\ndirectory.id={cluster.uuids[1]}\n"]


def test_a_disk_that_cannot_be_formatted_is_one_line_and_leaves_nothing(
    begun: Callable[[LifeCycle], ProcessCluster], tmp_path: Path
) -> None:
    with pytest.raises(
        NodeFailed, match=r"node 1?0*: found its disk could not be formatted: No space left on device; a"
    ):
        begun(cycle("exit", "echo No space left on device >&2; exit 1"))
    assert not list(tmp_path.glob("isray-kafka-*"))


def test_a_node_that_ends_before_it_takes_part_ends_the_run_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    life_cycle = cycle("printf 'INFO starting\nERROR address in use\n\tat java.Net\n'; exit 1")
    with closing(KafkaEngine(SPEC, Program(life_cycle))) as engine:
        engine.start(1000)
        with pytest.raises(
            NodeFailed, match=r"node 1000: found it ended with exit code 1: INFO starting \| ERROR addres"
        ):
            engine.run_until(lambda: False, 10_000)
    assert not list(tmp_path.glob("isray-kafka-*"))


def test_a_program_that_does_not_exist_is_named(begun: Callable[[LifeCycle], ProcessCluster]) -> None:
    cluster = begun(LifeCycle(name="none", state="metadata-log", start=["/nowhere/broker"]))
    if cluster.setpriv is None:
        with pytest.raises(NodeFailed, match="No such file or directory: '/nowhere/broker'"):
            cluster.start(0)
    else:
        cluster.start(0)
        assert cluster._processes[0].wait() != 0
        assert "/nowhere/broker" in cluster.last_lines(0)


HOLDING = """
import sys, time
from experiments.engines.kafka.processes import ProcessCluster, Program
from tests.unit.experiments.engines.kafka.test_processes import SPEC, cycle

cluster = ProcessCluster(SPEC, Program(cycle("while :; do sleep 1; done")))
try:
    cluster.start(0)
    print(cluster.pids()[0], flush=True)
    sys.stdin.read()
finally:
    cluster.close()
"""


def test_sigterm_leaves_neither_processes_nor_folders(tmp_path: Path) -> None:
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    line = [sys.executable, "-c", HOLDING]
    with subprocess.Popen(line, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        holder.terminate()
        assert holder.wait() == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists()
    assert not list(tmp_path.iterdir())


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_settings_of_a_broker_have_kafkas_names_and_nothing_of_clients() -> None:
    addresses = Addresses({1000: 7000, 0: 7001, 1: 7002})
    lines = dict(line.split("=", 1) for line in node_properties(SPEC, 0, addresses, "/disk").splitlines())
    assert lines["log.retention.ms"] == "5"
    assert lines["advertised.listeners"] == "PLAINTEXT://node-0:7001"
    assert lines["listeners"] == "PLAINTEXT://127.0.0.1:7001"
    assert lines["controller.quorum.bootstrap.servers"] == "node-1000:7000"
    assert not {"request.timeout.ms", "retention.ms", "controller.quorum.voters"} & lines.keys()
    static = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_497, {"controller.quorum.voters": "1000"}))
    lines = dict(line.split("=", 1) for line in node_properties(static, 1000, addresses, "/disk").splitlines())
    assert (lines["process.roles"], lines["controller.quorum.voters"]) == ("controller", "1000@node-1000:7000")
    assert "controller.quorum.bootstrap.servers" not in lines
    words = format_words(static, 1000, addresses, {1000: "u"}, is_new=True)
    assert words == {"voters": [], "features": ["--feature", "eligible.leader.replicas.version=0"]}


def test_the_first_controllers_form_the_quorum_and_a_replaced_disk_does_not() -> None:
    addresses = Addresses({1000: 7000, 0: 7001, 1: 7002})
    words = [format_words(SPEC, *of, is_new=new) for of, new in _formatted(addresses)]
    assert [it["voters"] for it in words] == [
        ["--initial-controllers", "1000@node-1000:7000:u"],
        ["--no-initial-controllers"],
        [],
    ]
    assert {it["features"][1] for it in words} == {"eligible.leader.replicas.version=1"}


def _formatted(addresses: Addresses) -> list[tuple[tuple[int, Addresses, dict[int, str]], bool]]:
    return [((1000, addresses, {1000: "u"}), True), ((1000, addresses, {1000: "u"}), False), ((0, addresses, {}), True)]


def test_the_shipped_life_cycle_is_read_by_the_path_of_every_other() -> None:
    found = read_life_cycle()
    words = {"voters": [], "features": ["x"], "archive": ["-XX:SharedArchiveFile=/a"]}
    for given in (found.format, found.start):
        line = command_line(given, {"java": "/j", "folder": "/f", "classpath": "*"}, words)
        assert (line[0], "/f/server.properties" in line[-2:], "{archive}" in line) == ("/j/java", True, False)
        assert line.count("-XX:SharedArchiveFile=/a") == 1
    assert command_line(found.format, {}, words)[-1] == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: n\nstate: metadata-log\nstart: ['{jar}']\n", r"start: found {jar}; allowed: one of id, host, port"),
        ("name: n\nstate: guessed\nstart: [x]\n", "state: found 'guessed'; allowed: 'metadata-log'"),
        ("name: n\nstate: metadata-log\n", "start"),
    ],
)
def test_a_file_that_is_no_life_cycle_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_life_cycle(path)


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def linked() -> Iterator[tuple[Addresses, Links]]:
    addresses = Addresses.free((0, 1))
    with closing(Links(addresses)) as links:
        yield addresses, links


def test_a_cut_direction_holds_what_it_carries_until_it_is_healed(linked: tuple[Addresses, Links]) -> None:
    """Broker 0 connects to broker 1. What 0 writes passes 0 to 1, what 1 answers passes 1 to 0."""
    addresses, links = linked
    with socket.create_server(("127.0.0.1", addresses.ports[1])) as target:
        source = socket.create_connection((addresses.proxy(0, 1), addresses.ports[1]), timeout=10)
        accepted, _ = target.accept()
        with source, accepted:
            accepted.settimeout(10)
            source.sendall(b"request")
            assert accepted.recv(100) == b"request"
            links.set(1, 0, up=False)
            accepted.sendall(b"response")
            source.sendall(b"again")
            assert accepted.recv(100) == b"again"  # the other direction is not cut
            source.settimeout(0.2)
            with pytest.raises(TimeoutError):
                source.recv(100)
            links.heal()
            source.settimeout(10)
            assert source.recv(100) == b"response"


def test_what_a_killed_process_wrote_is_lost_with_a_cut_link(linked: tuple[Addresses, Links]) -> None:
    """A heartbeat that arrived after its sender's end would unfence a broker that does not run."""
    addresses, links = linked
    with socket.create_server(("127.0.0.1", addresses.ports[1])) as target:
        source = socket.create_connection((addresses.proxy(0, 1), addresses.ports[1]), timeout=10)
        accepted, _ = target.accept()
        with accepted:
            accepted.settimeout(10)
            links.set(0, 1, up=False)
            source.sendall(b"heartbeat")
            source.close()
            links.forget(0)
            links.heal()
            assert accepted.recv(100) == b""


def test_a_connection_that_a_killed_process_opened_over_a_cut_link_is_not_made(
    linked: tuple[Addresses, Links],
) -> None:
    """Its next process opens one of its own, which arrives when the link is healed."""
    addresses, links = linked
    proxy = addresses.proxy(0, 1), addresses.ports[1]
    with socket.create_server(("127.0.0.1", addresses.ports[1])) as target:
        links.set(0, 1, up=False)
        with socket.create_connection(proxy, timeout=10) as source:
            source.sendall(b"heartbeat")
            links.set(0, 1, up=False)  # the proxy has accepted what came before this
        links.forget(0)
        with socket.create_connection(proxy, timeout=10) as source:
            source.sendall(b"registration")
            links.heal()
            target.settimeout(10)
            accepted, _ = target.accept()
            with accepted:
                accepted.settimeout(10)
                assert accepted.recv(100) == b"registration"


def test_a_connection_over_a_cut_link_opens_and_arrives_when_it_is_healed(linked: tuple[Addresses, Links]) -> None:
    addresses, links = linked
    links.set(0, 1, up=False)
    with socket.create_server(("127.0.0.1", addresses.ports[1])) as target:
        with socket.create_connection((addresses.proxy(0, 1), addresses.ports[1]), timeout=10) as source:
            source.sendall(b"hello")
            target.settimeout(0.2)
            with pytest.raises(TimeoutError):
                target.accept()
            links.set(0, 1, up=True)
            target.settimeout(10)
            accepted, _ = target.accept()
            with accepted:
                assert accepted.recv(100) == b"hello"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", addresses.ports[0]), timeout=10)


def test_ports_are_held_for_the_processes_that_may_reuse_them() -> None:
    addresses = Addresses.free((0,))
    place = ("127.0.0.1", addresses.ports[0])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(place)
    socket.create_server(place).close()  # may reuse an address, as Kafka's processes
    addresses.release()
    with socket.socket() as other:
        other.bind(place)


def test_a_port_that_is_taken_is_one_line() -> None:
    addresses = Addresses.free((0, 1))
    taken = socket.create_server((addresses.proxy(0, 1), addresses.ports[1]))
    with taken, pytest.raises(InputError, match=r"ports: found .*; allowed: ports that no other process uses"):
        Links(addresses)


def test_the_names_of_nodes_lead_through_the_proxies(tmp_path: Path) -> None:
    """Nodes 0, 1, 1000 in order: from 127.64.0.1 on the pair (s, t) is at 3 s + t."""
    Addresses({0: 1, 1: 2, 1000: 3}).write_hosts(tmp_path / "hosts", 1, through_proxies=True)
    names = dict(reversed(line.split()) for line in (tmp_path / "hosts").read_text().splitlines())
    assert {name: names[name] for name in ("node-0", "node-1", "node-1000", "localhost")} == {
        "node-0": "127.64.0.4",
        "node-1": "127.0.0.1",
        "node-1000": "127.64.0.6",
        "localhost": "127.0.0.1",
    }
