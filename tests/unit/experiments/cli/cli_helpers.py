"""The tools' bench: the command line against a simulated cluster, in place of one that runs on Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import pytest
import typer

from experiments.check.engine import CheckedEngine
from experiments.cli import cluster_access, main
from experiments.cli.cluster_access import Opened, Target
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.engines.clusters.node_commands import Ask, NodeAnswer, NodeCommand, SupervisorGoneError
from experiments.engines.port import ClusterSpec, Loss
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import Epoch, TopicPartition, node_name
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Message
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    Command,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
)
from protocol.messages.topics import CreatableTopic, ReplicaAssignment
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState

WITHIN_MS = 120_000
Outcome = TypeVar("Outcome", bound=Message)


def no_supervisor(command: NodeCommand) -> NodeAnswer:
    """The supervisor of a cluster that has none."""
    raise SupervisorGoneError("no supervisor")


class SimPort:
    """`experiments.engines.admin_client.AdminChannel` into a simulated cluster; `requests` are those made so far."""

    def __init__(self, engine: CheckedEngine) -> None:
        self.engine = engine
        self.requests: list[AdminRequest] = []
        self.commands = 0

    def call(self, request: AdminRequest) -> AdminResponse:
        self.requests.append(request)
        outcome = self._outcome(AdminCommand(command_id=0, request=request), AdminOutcome)
        if outcome.response is None:
            raise AdminError(outcome.error, outcome.message)
        return outcome.response

    def send(self, records: SendRecords) -> SendOutcome:
        return self._outcome(records, SendOutcome)

    def produce(self, command: ProduceCommand) -> ProduceOutcome:
        return self._outcome(command, ProduceOutcome)

    def consume(self, command: ConsumeCommand) -> ConsumeOutcome:
        return self._outcome(command, ConsumeOutcome)

    def require_reachable(self) -> None:
        """A simulated cluster always is."""

    def _outcome(self, command: Command, answer: type[Outcome]) -> Outcome:
        self.commands += 1
        number = self.commands
        self.engine.submit(replace(command, command_id=number))
        assert self.engine.run_until(lambda: self.engine.outcome(number) is not None, WITHIN_MS)
        outcome = self.engine.outcome(number)
        assert isinstance(outcome, answer)
        return outcome


@cache
def command_line() -> Any:
    """The commands and options of `isray`, which Typer otherwise makes from the functions in each call."""
    return typer.main.get_command(main.application())


class Commands:
    """The command line; `targets` are the clusters that it has connected to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.targets: list[Target] = []
        self.supervisor: Ask = no_supervisor
        whole = command_line()
        monkeypatch.setattr(main, "application", lambda *_: whole)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._monkeypatch.setattr(sys, "argv", ["isray", *arguments])
        with pytest.raises(SystemExit) as left:
            main.run()
        out, err = self._capsys.readouterr()
        return int(left.value.code or 0), out, err

    def ok(self, *arguments: str) -> str:
        """Standard output of a command that succeeds."""
        code, out, err = self.run(*arguments)
        assert code == 0, (out, err)
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The one document that a command writes with --json."""
        found, out, err = self.run(*arguments, "--json")
        assert found == code, (out, err)
        return json.loads(out)

    def fails(self, *arguments: str) -> str:
        """Standard error of a command that fails with exit code 1."""
        code, out, err = self.run(*arguments)
        assert code == 1, (out, err)
        assert "Traceback" not in err
        return err

    def refused(self, *arguments: str) -> str:
        """The one line about wrong input: exit code 2, and no request was sent."""
        asked = len(self.targets)
        code, out, err = self.run(*arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1), (code, out, err)
        assert len(self.targets) == asked
        return err


class CliBench(Commands):
    """A simulated cluster, and the command that administers it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        generation: Generation = Generation.KIP_966,
        brokers: int = 4,
        controllers: int = 1,
        **config: object,
    ) -> None:
        super().__init__(monkeypatch, capsys)
        values = {name.replace("_", "."): value for name, value in config.items()}
        self.engine = CheckedEngine(ClusterSpec(brokers, controllers, ClusterConfig.of(generation, values)))
        self.port = SimPort(self.engine)
        for node in self.engine.spec.node_ids:
            self.engine.start(node)
        self.await_(lambda: self.engine.unfenced() == set(range(brokers)))
        monkeypatch.setattr(cluster_access, "open_admin", self._open_admin)

    @contextmanager
    def _open_admin(self, wanted: Target, asks_nodes: bool = False) -> Iterator[Opened]:
        self.targets.append(wanted)
        running = {node_name(node) for node in self.engine.spec.node_ids if self.engine.is_running(node)}
        yield Opened(AdminClient(self.port, wanted.principal), running, self.supervisor, self.broker_epoch)

    def broker_epoch(self, name: str) -> Epoch:
        return self.engine.broker_epoch(int(name.removeprefix("broker-")))

    def await_(self, condition: Callable[[], bool]) -> None:
        assert self.engine.run_until(condition, WITHIN_MS), self.engine.view()

    def state(self, topic: str = "t", partition: int = 0) -> PartitionState:
        view = self.engine.view()
        assert view is not None
        return view.partitions[TopicPartition(topic, partition)]

    def view_of(self, broker: int) -> BrokerRegistration:
        view = self.engine.view()
        assert view is not None
        return view.brokers[broker]

    def kill(self, *brokers: int) -> None:
        """Crashes brokers one after another, and waits each time until the controller has fenced it."""
        for broker in brokers:
            self.engine.crash(broker, Loss("none"))
            self.await_(lambda broker=broker: broker not in self.engine.unfenced())  # type: ignore[misc]

    def connect(self, broker: int, up: bool) -> None:
        """Cuts a broker off from the controller and the other brokers, or heals its links to them."""
        for other in (*self.engine.spec.controller_ids, *self.engine.spec.broker_ids):
            if other != broker:
                self.engine.set_link(broker, other, up)
                self.engine.set_link(other, broker, up)

    def start(self, *brokers: int) -> None:
        for broker in brokers:
            self.engine.start(broker)
        self.await_(lambda: self.engine.unfenced().issuperset(brokers))

    def create(self, topic: str = "t", assignment: str = "0:1:2", *more: str) -> None:
        self.ok("topics", "--create", "--topic", topic, "--replica-assignment", assignment, *more)

    def create_many(self, names: Sequence[str], *assignment: int) -> None:
        """Creates topics of one partition in one request, in a tenth of the time of as many commands."""
        replicas = ReplicaAssignment(partition_index=0, broker_ids=assignment)
        results = AdminClient(self.port).create_topics(
            *(CreatableTopic(name=name, assignments=(replicas,)) for name in names)
        )
        assert [(result.name, result.error) for result in results] == [(name, ErrorCode.NONE) for name in names]

    def produce(self, records: int = 1, acks: int = -1, topic: str = "t") -> str:
        """The error name of a batch to the topic's partition 0."""
        batch = {"topic": topic, "partition": 0, "acks": acks, "record_count": records, "payload": b"x"}
        return self.port.produce(ProduceCommand(command_id=0, **batch)).error.name


MakeBench = Callable[..., CliBench]
"""Makes a simulated cluster with the arguments of `CliBench` that follow the fixtures."""
