"""Benchmarks (`isray bench NAME`). Each module states what it measures; docs/benchmarks.md has measured figures.

A speed depends on the machine and its load. So every bench also reports a ratio to a baseline that it measures in the
same run: the bare work that no implementation could leave out. No test asserts a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiments.bench import (
    controller,
    failover,
    history_check,
    idle,
    kafka,
    pipeline,
    quorum,
    real_kafka,
    replication,
    sim,
    sweep,
)
from experiments.bench.report import BenchReport

ON_REQUEST: Mapping[str, Callable[..., BenchReport]] = {"real-kafka": real_kafka.run}
"""Those that need what is not on every machine, by name."""
BENCHES: Mapping[str, Callable[..., BenchReport]] = {
    "controller": controller.run,
    "sim": sim.run,
    "history": history_check.run,
    "replication": replication.run,
    "failover": failover.run,
    "idle": idle.run,
    "kafka": kafka.run,
    "quorum": quorum.run,
    "sweep": sweep.run,
    "pipeline": pipeline.run,
}
"""The benchmarks by name; called without arguments, each runs with its default sizes."""
