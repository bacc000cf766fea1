"""`isray cluster import`: what the client answers as a layout, its configuration, and what is said where it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from experiments.studies.layouts.client_config import librdkafka_config
from experiments.studies.layouts.importer import ClusterRefusedError, imported, refusal
from experiments.studies.layouts.layout import Described, TopicLayout
from experiments.studies.layouts.reader import read_layout
from experiments.support.errors import InputError
from tests.unit.experiments.cli.cli_helpers import Commands


def partition(leader: int, *replicas: int, isrs: tuple[int, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(leader=leader, replicas=list(replicas), isrs=list(isrs or replicas))


METADATA = SimpleNamespace(
    cluster_id="c",
    topics={
        "t": SimpleNamespace(error=None, partitions={1: partition(2, 2, 3, isrs=(2,)), 0: partition(1, 1, 2)}),
        "hidden": SimpleNamespace(error="TOPIC_AUTHORIZATION_FAILED", partitions={}),
    },
)
NODES = [SimpleNamespace(id=1, rack="a"), SimpleNamespace(id=2, rack="b")]
CONFIGS = {"t": {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}}


class Failed(Exception):
    """In the place of the client's exception."""


class FakeAdmin:
    """In the place of the client's `AdminClient`; `error`: what its requests fail with."""

    error: Any = None

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = config

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, timeout: float) -> SimpleNamespace:
        if self.error is not None:
            raise Failed(self.error)
        return METADATA

    def describe_cluster(self, request_timeout: float) -> SimpleNamespace:
        return SimpleNamespace(result=lambda: SimpleNamespace(nodes=NODES))

    def describe_configs(self, resources: list[SimpleNamespace], request_timeout: float) -> dict[Any, SimpleNamespace]:
        def answer(name: str) -> dict[str, SimpleNamespace]:
            return {key: SimpleNamespace(value=value) for key, value in CONFIGS.get(name, {}).items()}

        return {item: SimpleNamespace(result=lambda item=item: answer(item.name)) for item in resources}


class Resource(SimpleNamespace):
    """In the place of the client's `ConfigResource`."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind=kind, name=name)

    def __hash__(self) -> int:
        return hash(self.name)


def failure(name: str, text: str) -> SimpleNamespace:
    return SimpleNamespace(name=lambda: name, str=lambda: text)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    """The client, installed and connected to a cluster in which broker 3 is down."""
    package, admin = ModuleType("confluent_kafka"), ModuleType("confluent_kafka.admin")
    fresh = type("Fresh", (FakeAdmin,), {})
    vars(package)["KafkaException"] = Failed
    vars(admin).update(AdminClient=fresh, ConfigResource=Resource)
    monkeypatch.setitem(sys.modules, "confluent_kafka", package)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", admin)
    return fresh


def test_answers_of_the_client_are_a_layout() -> None:
    found = imported(METADATA, NODES, CONFIGS, {})
    states = (Described(1, (1, 2)), Described(2, (2,)))
    assert found.layout.topics == (TopicLayout("t", ((1, 2), (2, 3)), 2, states, False),)
    assert (found.layout.brokers, found.down, found.without_rack) == ((1, 2, 3), (3,), (3,))
    assert imported(METADATA, NODES, {}, {3: "c"}).layout.racks == {1: "a", 2: "b", 3: "c"}
    assert imported(METADATA, [SimpleNamespace(id=1, rack=None)], {}, {}).without_rack == ()


def test_the_command_writes_a_file_that_says_which_racks_are_unknown(
    client: type[FakeAdmin], command: Commands, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "cluster.json"
    line = ["cluster", "import", "--bootstrap-server", "h:9092", "--out", str(out)]
    assert command.ok(*line).splitlines() == [
        f"{out}: 3 brokers, 1 topics, 2 partitions",
        "down: 3",
        "rack unknown: 3; --racks FILE gives the racks of all brokers",
    ]
    with pytest.raises(InputError, match=r"brokers\[2\]: found no rack of broker 3"):
        read_layout(out)
    (tmp_path / "racks.csv").write_text("1,a\n2,b\n3,c\n")
    document = command.json(*line, "--racks", str(tmp_path / "racks.csv"))
    assert (document["down"], document["without_rack"]) == ([3], [])
    assert read_layout(out).racks == {1: "a", 2: "b", 3: "c"}
    assert json.loads(out.read_text())["cluster_id"] == "c"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (failure("_TRANSPORT", "timed out"), 2, "--bootstrap-server: found h:1: timed out; allowed: brokers that can"),
        (failure("SASL_AUTHENTICATION_FAILED", "no"), 2, "--command-config: found no; allowed: a user and a password"),
        (failure("TOPIC_AUTHORIZATION_FAILED", "no"), 1, "TOPIC_AUTHORIZATION_FAILED: no; needed: DESCRIBE and DESC"),
    ],
)
def test_a_cluster_that_does_not_answer_is_one_line(
    client: type[FakeAdmin], command: Commands, tmp_path: Path, error: object, code: int, said: str
) -> None:
    client.error = error
    found, out, err = command.run("cluster", "import", "--bootstrap-server", "h:1", "--out", str(tmp_path / "f"))
    assert (found, out, len(err.splitlines())) == (code, "", 1), err
    assert said in err


def test_a_connection_says_more_than_the_request_that_timed_out() -> None:
    timeout, down = failure("_TRANSPORT", "timed out"), failure("_ALL_BROKERS_DOWN", "0/1")
    wrong = failure("_AUTHENTICATION", "invalid credentials")
    assert "invalid credentials" in str(refusal(timeout, [down, wrong], "h:1"))
    assert "connection refused" in str(refusal(timeout, [down, failure("_TRANSPORT", "connection refused")], "h:1"))
    assert isinstance(refusal(failure("CLUSTER_AUTHORIZATION_FAILED", ""), [], "h:1"), ClusterRefusedError)


def test_without_the_client_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, command: Commands, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    line = command.refused("cluster", "import", "--bootstrap-server", "h:1", "--out", str(tmp_path / "f"))
    assert "pip install 'isray[kafka]'" in line
    assert "--bootstrap-server is missing" in command.refused("cluster", "import", "--out", str(tmp_path / "f"))


def test_properties_of_javas_clients_are_those_of_librdkafka() -> None:
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a b" password="p\\"q;";'
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": plain}
    stores = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem", "request.timeout.ms": "5"}
    assert librdkafka_config({**login, **stores, "ssl.endpoint.identification.algorithm": ""}, "f") == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a b",
        "sasl.password": 'p"q;',
        "ssl.ca.location": "ca.pem",
        "socket.timeout.ms": "5",
        "ssl.endpoint.identification.algorithm": "none",
    }
    own = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "k.p12", "ssl.keystore.password": "p"}
    expected = {"ssl.keystore.location": "k.p12", "ssl.keystore.password": "p"}
    assert librdkafka_config({**own, "bootstrap.servers": "h:1"}, "f") == expected
    both = {"ssl.certificate.location": "k.pem", "ssl.key.location": "k.pem"}
    assert librdkafka_config({"ssl.keystore.type": "PEM", "ssl.keystore.location": "k.pem"}, "f") == both


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        ({"group.id": "g"}, "f: group.id: found 'g'; allowed: one of bootstrap.servers, "),
        ({"ssl.truststore.password": "secret"}, "f: ssl.truststore.password: found '...'; allowed"),
        ({"ssl.truststore.location": "t.jks"}, "f: ssl.truststore.type: found JKS; allowed: PEM: librdkafka reads no"),
        ({"security.protocol": "SASL_SSL"}, "f: sasl.mechanism: found GSSAPI; allowed: PLAIN, SCRAM-SHA-256"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": 'x username="u";'},
            "f: sasl.jaas.config: found no password; allowed: LoginModule required username",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_refused_and_no_password_is_shown(properties: dict[str, str], line: str) -> None:
    with pytest.raises(InputError) as refused:
        librdkafka_config(properties, "f")
    assert line in str(refused.value)
