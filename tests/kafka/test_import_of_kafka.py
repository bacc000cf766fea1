"""`isray cluster import` and the readers against brokers of Kafka 4.4.0: needs Maven, Maven Central and a JDK 17."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner, Result

from experiments.cli.main import application
from experiments.studies.layouts.reader import read_layout, read_racks
from tests.kafka.kafka_jars import run_class

WITHIN_S = 90
PASSWORD = "alice-secret"
PROPERTIES = """\
process.roles={roles}
node.id={id}
broker.rack=zone-{id}
controller.quorum.voters=1@localhost:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT
listeners=PLAINTEXT://localhost:{plain},SASL://localhost:{sasl}{own}
advertised.listeners=PLAINTEXT://localhost:{plain},SASL://localhost:{sasl}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config={login} user_alice="{password}";
log.dirs={folder}
min.insync.replicas=1
"""
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def await_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, condition


class Brokers:
    """Two brokers, of which the first is the controller."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self.jars = jars
        controller, *ports = free_ports(5)
        self.plain, self.sasl = ports[:2], ports[2:]
        self.processes: list[subprocess.Popen[bytes]] = []
        for index in (0, 1):
            file = folder / f"{index + 1}.properties"
            own = f",CONTROLLER://localhost:{controller}" if index == 0 else ""
            roles, disk = ("broker,controller" if index == 0 else "broker"), folder / f"disk-{index + 1}"
            values = {"roles": roles, "id": index + 1, "controller": controller, "own": own, "folder": disk}
            ports_of = {"plain": self.plain[index], "sasl": self.sasl[index], "login": LOGIN, "password": PASSWORD}
            file.write_text(PROPERTIES.format(**values, **ports_of))
            run_class(jars, "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(file))
            line = ["java", "-Xmx256m", "-cp", f"{jars}/*", "kafka.Kafka", str(file)]
            output = (folder / f"{index + 1}.log").open("wb")
            self.processes.append(subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT))

    @property
    def address(self) -> str:
        return f"localhost:{self.plain[0]}"

    def are_up(self, count: int) -> bool:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.poll(0.5)
        try:
            return len(admin.describe_cluster(request_timeout=5).result().nodes) == count
        except KafkaException:
            return False

    def import_(self, out: Path, *options: str, address: str | None = None) -> Result:
        line = ["cluster", "import", "--bootstrap-server", address or self.address, "--out", str(out), *options]
        return CliRunner().invoke(application(), line)


@pytest.fixture(scope="module")
def brokers(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    started = Brokers(jars, tmp_path_factory.mktemp("kafka"))
    try:
        await_true(lambda: started.are_up(2))
        admin = AdminClient({"bootstrap.servers": started.address})
        topics = [
            NewTopic("a", num_partitions=3, replication_factor=2, config={"min.insync.replicas": "2"}),
            NewTopic("b", num_partitions=1, replication_factor=1),
        ]
        for made in admin.create_topics(topics).values():
            made.result()
        yield started
    finally:
        for process in started.processes:
            process.kill()
        for process in started.processes:
            process.wait()


def test_the_import_is_what_kafkas_tool_describes(brokers: Brokers, tmp_path: Path) -> None:
    assert brokers.import_(tmp_path / "cluster.json").exit_code == 0
    command = ("--bootstrap-server", brokers.address, "--describe")
    described = tmp_path / "describe.txt"
    described.write_text(run_class(brokers.jars, "org.apache.kafka.tools.TopicCommand", *command))
    versions = tmp_path / "versions.txt"
    versions.write_text(run_class(brokers.jars, "org.apache.kafka.tools.BrokerApiVersionsCommand", *command[:2]))
    found, told = read_layout(tmp_path / "cluster.json"), read_layout(described)
    assert [(topic.name, topic.replicas, topic.isr) for topic in found.topics] == [
        (topic.name, topic.replicas, topic.isr) for topic in told.topics
    ]
    assert {topic.name: topic.min_insync_replicas for topic in found.topics} == {"a": 2, "b": 1}
    assert told.topics[0].min_insync_replicas == 2
    assert found.racks == read_racks(versions) == {1: "zone-1", 2: "zone-2"}


@pytest.mark.parametrize(("password", "code"), [(PASSWORD, 0), ("wrong", 2)])
def test_a_login_of_a_properties_file(brokers: Brokers, tmp_path: Path, password: str, code: int) -> None:
    file = tmp_path / "client.properties"
    login = f'sasl.jaas.config={LOGIN} username="alice" password="{password}";'
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{login}\n")
    address = f"localhost:{brokers.sasl[0]}"
    result = brokers.import_(tmp_path / "cluster.json", "--command-config", str(file), address=address)
    assert bool(result.exit_code) is bool(code)
    assert code == 0 or "Authentication failed" in str(result.exception)


def test_a_broker_that_is_down_has_no_rack(brokers: Brokers, tmp_path: Path) -> None:
    brokers.processes[1].kill()
    await_true(lambda: brokers.are_up(1))
    out, racks = tmp_path / "cluster.json", tmp_path / "racks.csv"
    assert "down: 2\nrack unknown: 2" in brokers.import_(out).output
    racks.write_text("1,zone-1\n2,zone-2\n")
    assert brokers.import_(out, "--racks", str(racks)).exit_code == 0
    assert read_layout(out).racks == {1: "zone-1", 2: "zone-2"}
