"""`isray up --engine kafka`: a cluster of a real Kafka that is steered by the commands for clusters on Ray."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from experiments.support.processes import processes_naming
from tests.kafka.kafka_jars import RELEASE
from tests.ray.command_helpers import Shell, begun_shell, end_server

WITHIN_S = 90


@pytest.fixture(scope="module")
def shell(jars: Path) -> Iterator[Shell]:
    """The state files are in a folder of the shell's own, the installed release in the user's cache."""
    with begun_shell() as shell:
        yield shell
    end_server()


def await_status(shell: Shell, condition: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while True:
        found = shell.run("status", "--json")
        document = json.loads(found[1])
        if condition(document):
            return document
        assert time.monotonic() < deadline, document


def states(document: Any) -> list[str]:
    return [broker["state"] for broker in document["brokers"]]


def test_nodes_are_killed_cut_and_started_and_clients_notice(shell: Shell, tmp_path: Path) -> None:
    state = shell.json("up", "--engine", "kafka", "--kafka", RELEASE, "--detach", "--trace", str(tmp_path / "day"))
    servers = ",".join(state["listeners"].values())
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic("orders", 1, replica_assignment=[[2, 0, 1]], config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["orders"].result()
    producer = Producer({"bootstrap.servers": servers})

    def is_acknowledged() -> bool:
        errors: list[object] = []
        producer.produce("orders", b"value", on_delivery=lambda error, _: errors.append(error))
        producer.flush(WITHIN_S)
        return errors == [None]

    assert is_acknowledged()
    assert shell.ok("node", "kill", "2", "--lose", "unflushed") == "broker-2 killed\n"
    found = await_status(shell, lambda document: states(document) == ["unfenced", "unfenced", "fenced"])
    assert [broker["leads"] for broker in found["brokers"]] == [1, 0, 0]
    assert not found["healthy"]
    assert is_acknowledged()
    assert shell.ok("net", "cut", "0", "1", "--one-way") == "broker-0 to broker-1 is cut\n"
    assert shell.ok("net", "heal", "0", "1") == "all links are whole\n"
    code, _, error = shell.run("node", "fill-disk", "0")
    assert (code, error.count("\n")) == (2, 1)
    assert "fill-disk on a cluster of Apache Kafka" in error
    shell.ok("node", "replace-disk", "2")
    shell.ok("node", "start", "2")
    await_status(shell, lambda document: document["healthy"])
    assert is_acknowledged()
    folder = Path(shell.json("node", "list")[0]["directory"]).parent
    assert processes_naming([folder])
    shell.ok("down")
    assert not processes_naming([folder])
    assert not folder.exists()
    found = shell.json("check", str(tmp_path / "day"))
    assert (found["engine"], found["is_complete"], found["violations"]) == ("kafka", True, [])
    assert (found["lost_acked"], found["metadata_records"] > 0) == (None, True)
