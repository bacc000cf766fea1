"""`isray cluster import` and the readers against brokers of Kafka 4.4.0: needs Maven Central and a JDK 17."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner, Result

from experiments.bench.real_kafka import started
from experiments.cli.main import application
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.processes import Program
from experiments.engines.port import ClusterSpec, Loss
from experiments.studies.layouts.reader import read_layout, read_racks
from protocol.config import ClusterConfig
from protocol.features import Generation
from tests.kafka.kafka_jars import RELEASE, run_class

WITHIN_MS = 90_000
PASSWORD = "alice-secret"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SASL = f"""{{properties}}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.outside.plain.sasl.jaas.config={LOGIN} user_alice="{PASSWORD}";
"""
"""The settings of brokers whose clients log in."""
SPEC = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966_ELR), racks=("zone-0", "zone-1"))


class Brokers:
    """Two brokers, and the file with the login of their clients."""

    def __init__(self, engine: KafkaEngine, folder: Path) -> None:
        self.engine = engine
        self.address = ",".join(f"127.0.0.1:{port}" for port in engine.cluster.addresses.client_ports.values())
        self.login = self.login_with(PASSWORD, folder)

    def login_with(self, password: str, folder: Path) -> Path:
        file = folder / "client.properties"
        login = f'sasl.jaas.config={LOGIN} username="alice" password="{password}";'
        file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{login}\n")
        return file

    def import_(self, out: Path, *options: str, login: Path | None = None) -> Result:
        line = ["cluster", "import", "--bootstrap-server", self.address, "--out", str(out)]
        return CliRunner().invoke(application(), [*line, "--command-config", str(login or self.login), *options])


@pytest.fixture(scope="module")
def brokers(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    shipped = Program.of(RELEASE, os.environ)
    files = shipped.life_cycle.files | {"server.properties": SASL}
    program = Program(shipped.life_cycle.model_copy(update={"files": files}), shipped.installed)
    with closing(KafkaEngine(SPEC, program, with_links=False, with_listeners=True)) as engine:
        started(engine)
        brokers = Brokers(engine, tmp_path_factory.mktemp("login"))
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}
        admin = AdminClient({"bootstrap.servers": brokers.address, "security.protocol": "SASL_PLAINTEXT", **login})
        topics = [
            NewTopic("a", num_partitions=3, replication_factor=2, config={"min.insync.replicas": "2"}),
            NewTopic("b", num_partitions=1, replication_factor=1),
        ]
        for made in admin.create_topics(topics).values():
            made.result()
        yield brokers


def test_the_import_is_what_kafkas_tool_describes(jars: Path, brokers: Brokers, tmp_path: Path) -> None:
    assert brokers.import_(tmp_path / "cluster.json").exit_code == 0
    command = ("--bootstrap-server", brokers.address, "--command-config", str(brokers.login))
    described = tmp_path / "describe.txt"
    described.write_text(run_class(jars, "org.apache.kafka.tools.TopicCommand", *command, "--describe"))
    versions = tmp_path / "versions.txt"
    versions.write_text(run_class(jars, "org.apache.kafka.tools.BrokerApiVersionsCommand", *command))
    found, told = read_layout(tmp_path / "cluster.json"), read_layout(described)
    assert [(topic.name, topic.replicas, topic.isr) for topic in found.topics] == [
        (topic.name, topic.replicas, topic.isr) for topic in told.topics
    ]
    assert {topic.name: topic.min_insync_replicas for topic in found.topics} == {"a": 2, "b": 1}
    assert told.topics[0].min_insync_replicas == 2
    assert found.racks == read_racks(versions) == {0: "zone-0", 1: "zone-1"}


def test_a_wrong_password_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    result = brokers.import_(tmp_path / "cluster.json", login=brokers.login_with("wrong", tmp_path))
    assert result.exit_code
    assert "Authentication failed" in str(result.exception)


def test_a_broker_that_is_down_has_no_rack(brokers: Brokers, tmp_path: Path) -> None:
    out, racks = tmp_path / "cluster.json", tmp_path / "racks.csv"
    brokers.engine.crash(1, Loss())
    known = "down: 1\nrack unknown: 1"
    assert brokers.engine.run_until(lambda: known in brokers.import_(out).output, WITHIN_MS)
    racks.write_text("0,zone-0\n1,zone-1\n")
    assert brokers.import_(out, "--racks", str(racks)).exit_code == 0
    assert read_layout(out).racks == {0: "zone-0", 1: "zone-1"}
