"""The tools of Apache Kafka 4.4 on the listeners of a cluster, and on a real Kafka beside it: the same commands must
print the same, but for what differs by nature (ids, addresses, times), and for these departures:

- The texts of errors are the project's own; what kind of error it is, and the exit code, are compared.
- Which broker coordinates a group follows from the placement of `__consumer_offsets`, which is random in both.
- Kafka keeps the cluster's `min.insync.replicas` as a dynamic default once ELR is enabled, here it is a static one.

The commands are those of Kafka's quickstart and of the pages on operation that the listeners' APIs cover.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from experiments.bench.real_kafka import started
from experiments.check.history import Ended, FinalPartition, Invoked, Operation, RecordRange, Seen, judge
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.processes import Program
from experiments.engines.port import ClusterSpec
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import TopicPartition
from tests.kafka.kafka_jars import RELEASE
from tests.ray.command_helpers import Shell, begun_shell, end_server

WITHIN_S = 90
KEPT = 400
TOOLS = "org.apache.kafka.tools"
VARYING = {
    r"TopicId: \S+": "TopicId: ID",
    r"(localhost|127\.0\.0\.1):\d+": "HOST:PORT",
    r'"timestamp":\d+': '"timestamp":TIME',
    r'"avg_throughput":[0-9.E-]+': '"avg_throughput":RATE',
    r"\[\d{4}-\d\d-\d\d [^\]]*\]": "[TIME]",
    r"ConsoleConsumer-\S+": "ConsoleConsumer",
    r'"log_dirs":\[[^\]]*\]': '"log_dirs":DIRS',
    r"(Error while executing \w+ command).*": r"\1",
    r"(\w+Exception): .*": r"\1",
    r"HOST:PORT +\(\d\)": "COORDINATOR",
    r", (DYNAMIC_DEFAULT_BROKER|STATIC_BROKER|DEFAULT)_CONFIG:min\.insync\.replicas=1": "",
}


@dataclass(frozen=True)
class World:
    """A cluster that the tools reach at `servers`."""

    jars: Path
    servers: str

    def line(self, tool: str, *arguments: str) -> list[str]:
        """The command line of a tool."""
        java = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{self.jars}/*", f"{TOOLS}.{tool}"]
        return [*java, "--bootstrap-server", self.servers, *arguments]

    def run(self, tool: str, *arguments: str, text: str = "") -> str:
        """What a tool prints on standard output and error, without log lines, with what varies replaced."""
        line = self.line(tool, *arguments)
        done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        printed = "\n".join(
            row.rstrip()
            for row in (done.stdout + done.stderr).splitlines()
            if not re.search("log4j|SLF4J|^\\s+at |WARN|KIP-848|JAVA_TOOL_OPTIONS", row, re.IGNORECASE)
        )
        for pattern, replacement in VARYING.items():
            printed = re.sub(pattern, replacement, printed)
        return f"{done.returncode}\n{printed}"


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with begun_shell() as shell:
        yield shell
    end_server()


@pytest.fixture(scope="module")
def isray(jars: Path, shell: Shell) -> Iterator[World]:
    """Three brokers of this project with listeners."""
    state = shell.json("up", "--listeners", "--detach")
    try:
        yield World(jars, ",".join(state["listeners"].values()))
    finally:
        shell.ok("down")


@pytest.fixture(scope="module")
def kafka(jars: Path) -> Iterator[World]:
    """A controller and three brokers of Apache Kafka."""
    program = Program.of(RELEASE, os.environ)
    spec = ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966_ELR))
    with closing(KafkaEngine(spec, program, with_links=False, with_listeners=True)) as engine:
        started(engine)
        yield World(jars, ",".join(f"127.0.0.1:{port}" for port in engine.cluster.addresses.client_ports.values()))


def move(tmp_path: Path) -> str:
    """A reassignment that swaps the replicas of `orders-0`."""
    file = tmp_path / "move.json"
    file.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 1, 0]}]})
    )
    return str(file)


def commands(tmp_path: Path) -> Sequence[tuple[str, tuple[str, ...], str]]:
    """(tool, arguments, standard input) in the order in which they run."""
    topic, consumer = ("--topic", "orders"), "consumer.ConsoleConsumer"
    groups, reassign = "consumer.group.ConsumerGroupCommand", "reassign.ReassignPartitionsCommand"
    entity = ("--entity-type", "topics", "--entity-name", "orders")
    setting = ("--config", "min.insync.replicas=2", "--replica-assignment", "0:1:2,1:2:0,2:0:1")
    election, added = ("--election-type", "preferred"), "0:1:2,1:2:0,2:0:1,0:2:1"
    return (
        ("TopicCommand", ("--create", *topic, *setting), ""),
        ("TopicCommand", ("--create", *topic), ""),
        ("TopicCommand", ("--describe", *topic), ""),
        ("TopicCommand", ("--describe", "--topic", "nowhere"), ""),
        ("TopicCommand", ("--create", "--topic", "wide", "--replication-factor", "9"), ""),
        ("TopicCommand", ("--create", "--topic", "bad name"), ""),
        ("ConsoleProducer", topic, "first\nsecond\n"),
        (consumer, (*topic, "--from-beginning", "--max-messages", "2", "--group", "g"), ""),
        ("TopicCommand", ("--list",), ""),
        (groups, ("--list",), ""),
        (groups, ("--describe", "--group", "g", "--state"), ""),
        ("GetOffsetShell", (*topic, "--time", "earliest"), ""),
        ("ConfigCommand", ("--alter", *entity, "--add-config", "min.insync.replicas=1"), ""),
        ("ConfigCommand", ("--describe", *entity), ""),
        ("ConfigCommand", ("--alter", *entity, "--add-config", "min.insync.replicas=none"), ""),
        ("LeaderElectionCommand", (*election, *topic, "--partition", "0"), ""),
        (reassign, ("--execute", "--reassignment-json-file", move(tmp_path)), ""),
        (
            "TopicCommand",
            ("--alter", *topic, "--partitions", "4", "--replica-assignment", added),
            "",
        ),
        ("TopicCommand", ("--alter", *topic, "--partitions", "2"), ""),
        (groups, ("--delete", "--group", "g"), ""),
        (groups, ("--describe", "--group", "g"), ""),
        ("TopicCommand", ("--delete", *topic), ""),
        ("TopicCommand", ("--delete", *topic), ""),
    )


@pytest.mark.timeout(900)
def test_the_tools_print_the_same_on_both(isray: World, kafka: World, tmp_path: Path) -> None:
    differing = []
    for tool, arguments, text in commands(tmp_path):
        found, expected = (world.run(tool, *arguments, text=text) for world in (isray, kafka))
        if found != expected:
            differing.append(f"{tool} {' '.join(arguments)}\n--- isray\n{found}\n--- kafka\n{expected}")
    assert not differing, "\n\n".join(differing)


def test_verifiable_and_performance_clients_have_all_records_acknowledged(isray: World) -> None:
    isray.run("TopicCommand", "--create", "--topic", "load", "--partitions", "2", "--replication-factor", "3")
    produced = isray.run("VerifiableProducer", "--topic", "load", "--max-messages", "50")
    assert produced.count('"producer_send_success"') == 50
    assert '"sent":50,"acked":50' in produced
    consumed = isray.run("VerifiableConsumer", "--topic", "load", "--group-id", "v", "--max-messages", "50")
    assert '"offsets_committed"' in consumed
    assert consumed.startswith("0\n")


def test_verifiable_clients_lose_nothing_when_the_leader_is_killed(isray: World, shell: Shell, tmp_path: Path) -> None:
    """An idempotent producer and a group go on while broker 0, the leader, is killed; it comes back as a follower.
    The judge is that of `isray check`: record N is send N, and the final log is what a reader from the start reads.
    """
    topic, settings = ("--topic", "kept"), tmp_path / "producer.properties"
    settings.write_text("enable.idempotence=true\nretries=2147483647\nmax.in.flight.requests.per.connection=5\n")
    isray.run("TopicCommand", "--create", *topic, "--replica-assignment", "0:1:2", "--config", "min.insync.replicas=2")
    reads = ("VerifiableConsumer", *topic, "--verbose", "--reset-policy", "earliest", "--max-messages", str(KEPT))
    writes = (*topic, "--max-messages", str(KEPT), "--throughput", "60", "--command-config", str(settings))
    with (
        Popen(isray.line(*reads, "--group-id", "during"), stdout=PIPE, text=True) as reader,
        Popen(isray.line("VerifiableProducer", *writes), stdout=PIPE, text=True) as writer,
    ):
        assert writer.stdout is not None
        sent = []
        for text in writer.stdout:
            sent += [found] if (found := json.loads(text))["name"] == "producer_send_success" else []
            if len(sent) == KEPT // 4:
                shell.ok("node", "kill", "broker-0")
        during = reader.communicate(timeout=WITHIN_S)[0]
    shell.ok("node", "start", "broker-0")
    after = subprocess.run(isray.line(*reads, "--group-id", "after"), capture_output=True, text=True, check=True)
    place = TopicPartition("kept", 0)
    history: list[Operation] = [Invoked(number, 0, place, 1) for number in range(KEPT)]
    history += [Ended(int(it["value"]), 0, 1, "acknowledged", it["offset"]) for it in sent]
    history += [Seen(0, place, (run,), KEPT) for run in shown(during)]
    assert len(shown(during)) >= KEPT
    assert not judge(history, [FinalPartition(place, 1, {1: shown(after.stdout)})])


def shown(text: str) -> list[RecordRange]:
    """What a verbose consumer has printed of the records that it has read."""
    found = [it for line in text.splitlines() if (it := json.loads(line))["name"] == "record_data"]
    return [RecordRange(it["offset"], 0, int(it["value"]), 0, 1) for it in found]
