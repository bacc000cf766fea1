"""A cluster on Ray for a benchmark, with a client and a load generator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import RayEngine
from experiments.engines.ray.process_pool import ProcessPool
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import FIRST_LOAD
from protocol.messages.base import Message
from protocol.messages.commands import AdminCommand, AdminOutcome, Command
from protocol.v3.store.settings import StoreSettings

BROKERS = 3
WITHIN_MS = 300_000
"""Timeout of every wait that is not measured."""
Found = TypeVar("Found", bound=Message)


class BenchCluster:
    """A running cluster, with the operations of benchmarks."""

    def __init__(self, engine: RayEngine) -> None:
        self.engine = engine
        self._commands = 0

    def command_id(self) -> int:
        self._commands += 1
        return self._commands

    def run_command(self, command: Command, outcome: type[Found], not_before_ms: int = 0) -> Found:
        """Submits a command and waits for its outcome, or BenchError. Does not poll the cluster for the first
        `not_before_ms`, since polls cost the nodes time.
        """
        self.engine.submit(command)
        time.sleep(not_before_ms / 1_000)
        self.await_condition(lambda: self.engine.outcome(command.command_id) is not None, type(command).__name__)
        found = self.engine.outcome(command.command_id)
        assert isinstance(found, outcome), found
        return found

    def await_condition(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition; `what` names it in the BenchError where it does not hold in time."""
        if not self.engine.run_until(condition, WITHIN_MS):
            raise BenchError(f"{what}: not within {WITHIN_MS / 1000:.0f} s")

    def create_topic(self, topic: str, assignments: Sequence[Sequence[int]]) -> None:
        """Creates a topic; BenchError where the controller refuses."""
        command = AdminCommand(command_id=self.command_id(), request=create_topic(topic, assignments))
        outcome = self.run_command(command, AdminOutcome)
        if outcome.error is not ErrorCode.NONE:
            raise BenchError(f"topic {topic}: {outcome.error.name}: {outcome.message}")


class BenchError(RuntimeError):
    """The cluster did not do what the benchmark needs."""


@contextmanager
def bench_cluster(
    config: Mapping[str, object],
    controllers: int = 1,
    brokers: int = BROKERS,
    generation: Generation = Generation.KIP_966,
    store: StoreSettings | None = None,
    pool: ProcessPool | None = None,
) -> Iterator[BenchCluster]:
    """A cluster with all brokers unfenced, on the Ray that this process is connected to, in processes of `pool`,
    if it is given."""
    spec = ClusterSpec(brokers, controllers, ClusterConfig.of(generation, config), store=store)
    engine = RayEngine(spec, with_load=True) if pool is None else pool.engine(spec, with_load=True)
    try:
        for node in (*spec.node_ids, FIRST_LOAD):
            engine.start(node)
        cluster = BenchCluster(engine)
        cluster.await_condition(lambda: len(engine.unfenced()) == brokers, "brokers unfenced")
        yield cluster
    finally:
        engine.close()
