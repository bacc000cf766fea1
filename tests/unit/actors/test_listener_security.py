"""TLS and SASL at a broker's sockets, by librdkafka as the client; ports that are kept, and those that are taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from actors.listener_security import principal_of, sasl_of, tls_of
from actors.sockets import BrokerSockets, bind, endpoint_of
from experiments.engines.sim.disk import SimStorage
from protocol.config import ClusterConfig, ConfigError
from protocol.features import Generation
from protocol.kafka.addresses import listener_address
from tests.pem_files import pem_files
from tests.unit.protocol.kafka.kafka_bench import KafkaBench, one_topic
from tests.unit.protocol.kafka.socket_host import Host

WITHIN_S = 30


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address, certificate of the authority) of a broker whose user alice has the password `secret`."""
    keystore, authority = pem_files(tmp_path)
    (tmp_path / "users").write_text("alice=secret\n")
    values = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(keystore),
        "sasl.users.file": str(tmp_path / "users"),
    }
    config = ClusterConfig.of(Generation.KIP_966, values)
    address = listener_address(config)
    assert address is not None
    bound = bind(address, 0, SimStorage(), "127.0.0.1")
    sockets = BrokerSockets(bound, lambda to, message: None, tls_of(address, config))
    bench = KafkaBench(sasl=sasl_of(address, config), first_port=bound.getsockname()[1])
    bench.run(*one_topic())
    host = Host(bench, sockets)
    yield endpoint_of(bound), authority
    host.close()


def topics(address: str, authority: Path, mechanism: str, password: str) -> list[str]:
    settings = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        "log_level": 0,
    }
    return list(AdminClient(settings).list_topics(timeout=WITHIN_S if password == "secret" else 3).topics)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_are_authenticated_over_tls(secured: tuple[str, Path], mechanism: str) -> None:
    assert topics(*secured, mechanism, "secret") == ["t"]


def test_a_wrong_password_is_refused(secured: tuple[str, Path]) -> None:
    with pytest.raises(KafkaException):
        topics(*secured, "SCRAM-SHA-256", "wrong")


def test_a_certificates_subject_is_the_principal() -> None:
    subject = ((("countryName", "NZ"),), (("organizationName", "Isray"),), (("commonName", "alice"),))
    assert principal_of({"subject": subject}) == "User:CN=alice,O=Isray,C=NZ"
    assert principal_of(None) == ""


def test_a_free_port_is_kept_and_a_taken_one_is_named() -> None:
    address = listener_address(ClusterConfig.of(Generation.KIP_966, {"listeners": "PLAINTEXT://127.0.0.1:0"}))
    assert address is not None
    storage = SimStorage()
    first = bind(address, 1, storage, "")
    port = first.getsockname()[1]
    taken = ClusterConfig.of(Generation.KIP_966, {"listeners": f"PLAINTEXT://127.0.0.1:{port - 1}"})
    with pytest.raises(ConfigError, match=f"found '127.0.0.1:{port}'"):
        bind(listener_address(taken) or address, 1, SimStorage(), "")
    first.close()
    deadline = time.monotonic() + WITHIN_S
    again = bind(address, 1, storage, "")
    while again.getsockname()[1] != port:  # the system may hold a port for a moment
        assert time.monotonic() < deadline
        again.close()
        storage.write_file("listener-port", str(port).encode())
        again = bind(address, 1, storage, "")
    again.close()


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"listeners": "HTTP://:1"}, "listeners"),
        ({"listeners": "SSL://:0"}, "ssl.keystore.location"),
        ({"listeners": "SASL_PLAINTEXT://:0"}, "sasl.users.file"),
    ],
)
def test_wrong_listeners_are_refused(values: dict[str, str], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        listener_address(ClusterConfig.of(Generation.KIP_966, values))
