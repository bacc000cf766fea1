"""Benchmarks: what each measures stands in its module, measured figures in docs/benchmarks.md.

A speed is a number of this machine at this moment. To be comparable it is reported as a ratio too, against a baseline
that the same run has measured: the bare work that nobody could leave out. No test asserts a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiments.bench import controller, failover, history_check, quorum, replication, sim
from experiments.bench.report import BenchReport

BENCHES: Mapping[str, Callable[[], BenchReport]] = {
    "controller": controller.run,
    "sim": sim.run,
    "history": history_check.run,
    "replication": replication.run,
    "failover": failover.run,
    "quorum": quorum.run,
}
"""Every benchmark with its default sizes, by name."""
