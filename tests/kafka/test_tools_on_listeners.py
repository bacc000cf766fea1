"""The tools of Apache Kafka 4.4 on the listeners of a cluster, and on a real Kafka beside it: the same commands must
print the same, but for what differs by nature (ids, addresses, times), and for these departures:

- The texts of errors are the project's own; what kind of error it is, and the exit code, are compared.
- Which broker coordinates a group follows from the placement of `__consumer_offsets`, which is random in both.
- Kafka keeps the cluster's `min.insync.replicas` as a dynamic default once ELR is enabled, here it is a static one.
- The engine has Kafka's brokers flush by no interval, which the tools show as a config of topics.

The commands are those of Kafka's quickstart and of the pages on operation that the listeners' APIs cover.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from experiments.bench.real_kafka import started
from experiments.check.history import (
    Committed,
    Ended,
    FinalPartition,
    Invoked,
    OffsetShown,
    Operation,
    RecordRange,
    Seen,
    judge,
)
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.processes import Program
from experiments.engines.port import ClusterSpec
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import TopicPartition
from tests.kafka.kafka_jars import RELEASE
from tests.ray.command_helpers import Shell, begun_shell, end_server

WITHIN_S = 90
STEP = 100
LOOKS = 40
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
    r"(?m)( flush\.ms=\d+$|,flush\.ms=\d+|flush\.ms=\d+,)": "",
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
    """Three brokers of this project with listeners, whose sessions end soon."""
    state = shell.json("up", "--listeners", "--detach", "--config", "broker.session.timeout.ms=4000")
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
    with ThreadPoolExecutor(2) as both:
        for tool, arguments, text in commands(tmp_path):
            runs = [both.submit(world.run, tool, *arguments, text=text) for world in (isray, kafka)]
            found, expected = (run.result() for run in runs)
            if found != expected:
                differing.append(f"{tool} {' '.join(arguments)}\n--- isray\n{found}\n--- kafka\n{expected}")
    assert not differing, "\n\n".join(differing)


class Tool:
    """A tool that runs beside the test, and the lines that it has printed on standard output."""

    def __init__(self, line: Sequence[str]) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._process = Popen(line, stdout=PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until what it has printed meets the condition, for `WITHIN_S` at most."""
        with self._changed:
            assert self._changed.wait_for(condition, WITHIN_S), self.lines[-3:]

    def events(self, name: str) -> list[Any]:
        """The events of a verifiable client whose names begin so; log lines are between them."""
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [it for it in found if it["name"].startswith(name)]

    def await_acknowledged(self) -> None:
        """Waits until as many records more as `STEP` have been acknowledged."""
        before = len(self.lines)
        self.until(lambda: sum("producer_send_success" in line for line in self.lines[before:]) >= STEP)

    def close(self) -> None:
        """Asks it to end, and waits until it has."""
        self._process.terminate()
        self._process.wait(WITHIN_S)
        self._reader.join()


def shown(place: TopicPartition, offset: int, value: str) -> Seen:
    """A reader has shown the record that the verifiable producer has numbered so."""
    return Seen(0, place, (RecordRange(offset, 0, int(value), 0, 1),), offset + 1)


def final_log(servers: str, place: TopicPartition) -> list[RecordRange]:
    """What the leader has from the start to the end of the log."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "final", "enable.partition.eof": True})
    consumer.assign([KafkaPartition(place.topic, place.partition, OFFSET_BEGINNING)])
    try:
        read = iter(lambda: consumer.consume(1, WITHIN_S)[0], None)
        found = takewhile(lambda it: it.error() is None, read)
        return [RecordRange(it.offset() or 0, 0, int(it.value() or b""), 0, 1) for it in found]
    finally:
        consumer.close()


@pytest.mark.timeout(300)
def test_clients_lose_nothing_when_the_leader_is_killed_and_leads_again(
    isray: World, shell: Shell, tmp_path: Path
) -> None:
    """An idempotent producer, a group that commits and one that prints go on while broker 0, the leader, is killed,
    comes back and is elected. The judge is that of `isray check`: record N is send N, the final log is what another
    reader finds, and the coordinator shows the group's offset in the end. The epochs of records are not compared.
    """
    place, settings = TopicPartition("kept", 0), tmp_path / "producer.properties"
    settings.write_text("enable.idempotence=true\nretries=2147483647\nmax.in.flight.requests.per.connection=5\n")
    topic, elects = ("--topic", "kept"), ("LeaderElectionCommand", "--election-type", "preferred", "--partition", "0")
    isray.run("TopicCommand", "--create", *topic, "--replica-assignment", "0:1:2", "--config", "min.insync.replicas=2")
    reads = (*topic, "--verbose", "--reset-policy", "earliest", "--group-id", "verifiable")
    prints = (*topic, "--from-beginning", "--group", "console", "--formatter-property", "print.offset=true")
    writes = (*topic, "--throughput", "60", "--command-config", str(settings))
    with (
        closing(Tool(isray.line("VerifiableConsumer", *reads))) as reader,
        closing(Tool(isray.line("consumer.ConsoleConsumer", *prints))) as printer,
    ):
        with closing(Tool(isray.line("VerifiableProducer", *writes))) as writer:
            writer.await_acknowledged()
            shell.ok("node", "kill", "broker-0")
            writer.await_acknowledged()
            shell.ok("node", "start", "broker-0")
            assert any(isray.run(*elects, *topic).startswith("0\n") for _ in range(LOOKS))
            writer.await_acknowledged()
        log = final_log(isray.servers, place)
        printer.until(lambda: len(printer.lines) >= len(log))
        reader.until(lambda: any(f'"value":"{log[-1].send}"' in line for line in reader.lines))
    ends, commits = writer.events("producer_send_"), reader.events("offsets_committed")
    history: list[Operation] = [Invoked(number, 0, place, 1) for number in range(len(ends))]
    for end in ends:
        is_known = end["name"] == "producer_send_success"
        history.append(Ended(int(end["value"]), 0, 1, "acknowledged" if is_known else "unknown", end.get("offset", -1)))
    history += [shown(place, it["offset"], it["value"]) for it in reader.events("record_data")]
    for text in printer.lines:
        offset, value = text.removeprefix("Offset:").split("\t")
        history.append(shown(place, int(offset), value))
    for commit in (part for it in commits for part in it["offsets"] if it["success"]):
        history.append(Committed("verifiable", place, commit["offset"], "sent"))
        history.append(Committed("verifiable", place, commit["offset"], "acknowledged"))
    state = isray.run("consumer.group.ConsumerGroupCommand", "--describe", "--group", "verifiable", "--offsets")
    history.append(OffsetShown("verifiable", place, int(state.split("kept ")[1].split()[1])))
    assert len(ends) >= 3 * STEP
    assert len(commits) > 1
    assert not judge(history, [FinalPartition(place, 0, {0: log})])
