"""`isray up --server-properties`: configs of Kafka's brokers as configs of a cluster, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli.server_properties import BROKER_CONFIGS, with_server_properties
from experiments.support.errors import InputError
from protocol.config import CONFIGS
from protocol.features import Generation
from tests.unit.experiments.cli.cli_helpers import Commands

SERVER = r"""
# A combined node
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
log.dirs=/tmp/kraft-combined-logs
num.partitions : 3
default.replication.factor 3
min.insync.replicas=2
log.retention.hours=168
log.segment.bytes=\
    1048576
unclean.leader.election.enable=true
auto.leader.rebalance.enable=true
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin
"""
EXPECTED = {
    "num.partitions": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "retention.ms": "604800000",
    "segment.bytes": "1048576",
    "unclean.leader.election.enable": "true",
    "auto.leader.rebalance.enable": "true",
    "authorizer.class.name": "standard",
    "super.users": "User:admin",
}
UNUSED = "controller.quorum.voters, listeners, log.dirs, node.id, process.roles"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.properties"


def test_broker_configs_become_configs_of_the_cluster(path: Path) -> None:
    path.write_text(SERVER)
    config, notes = with_server_properties(path, Generation.KIP_966, {})
    assert config == EXPECTED
    assert notes == [f"{path}: not modelled, and without effect: {UNUSED}"]


def test_a_generation_with_a_store_takes_what_it_has(path: Path) -> None:
    path.write_text("node.id=0\nmin.insync.replicas=2\ncontroller.quorum.fetch.timeout.ms=1\n")
    config, [note] = with_server_properties(path, Generation.V3, {})
    assert config == {"min.insync.replicas": "2"}
    assert note.endswith("without effect: controller.quorum.fetch.timeout.ms, node.id")


def test_options_win_over_the_file_and_finer_units_over_coarser_ones(path: Path) -> None:
    path.write_text("log.retention.hours=1\nlog.retention.ms=5\nlog.retention.minutes=-1\nmin.insync.replicas=2\n")
    explicit = {"min.insync.replicas": "1", "flush.ms": "7"}
    config, [note] = with_server_properties(path, Generation.KIP_497, explicit)
    assert config == {"retention.ms": "5", "min.insync.replicas": "1", "flush.ms": "7"}
    assert note == (
        f"{path}: of two values of one config the first counts: log.retention.ms=5 before log.retention.minutes=-1; "
        "log.retention.ms=5 before log.retention.hours=1; --config min.insync.replicas=1 before min.insync.replicas=2"
    )
    same = {"min.insync.replicas": " 2"}
    path.write_text("min.insync.replicas=2\nlog.retention.hours=-1")
    assert with_server_properties(path, Generation.KIP_497, same) == ({**same, "retention.ms": "-1"}, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min.insync.replicas=0", "min.insync.replicas: found '0'; allowed: a whole number >= 1"),
        ("log.retention.hours=x", "log.retention.hours: found 'x'; allowed: a whole number >= -1"),
        (f"log.retention.hours={2**62}", f"log.retention.hours: found '{2**62}'; allowed: a whole number"),
        ("authorizer.class.name=a.B", "found 'a.B'; allowed: org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("spring.kafka.x=1\nlinger.ms=5", "found no config of a broker among 2 properties, 'spring.kafka.x' first; "),
        (
            "retention.ms=5",
            "no config of a broker among 1 properties, 'retention.ms' first; allowed: a server.properties",
        ),
        ("listeners=HTTP://:8083\nrequest.timeout.ms=5", "no config of a broker among 2 properties, 'listeners' first"),
        ("", "no config of a broker among 0 properties; allowed: a server.properties of Kafka's"),
    ],
)
def test_a_wrong_file_is_one_line(path: Path, text: str, words: str) -> None:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        with_server_properties(path, Generation.KIP_966, {})
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def test_up_refuses_a_wrong_file_before_it_starts_anything(command: Commands, path: Path) -> None:
    path.write_text("min.insync.replicas=none\n")
    line = command.refused("up", "--server-properties", str(path))
    assert f"{path}: min.insync.replicas: found 'none'; allowed: a whole number >= 1" in line


def test_every_config_of_a_broker_has_a_name_of_a_broker() -> None:
    reached = {named.config for named in BROKER_CONFIGS.values()}
    clients = ["delivery", "retry", "enable.idempotence", "linger", "batch", "buffer", "max.block", "max.in.flight"]
    ids = {"controller.quorum.voters", "controller.quorum.bootstrap.servers"}
    listeners = ["listeners", "sasl.enabled.mechanisms", "sasl.users.file", "ssl."]
    assert {name for name in CONFIGS if not name.startswith((*clients, *listeners))} - ids == reached
