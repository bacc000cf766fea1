"""The benchmarks that need Ray, at their smallest size: the shape of the JSON document, no times.

They run on this process's private Ray, as in a script that is connected to one; sessions are shorter.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.bench import failover, replication
from experiments.bench.replication import DEPTH, RECORD_BYTES
from experiments.cli.main import application
from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS

pytestmark = pytest.mark.usefixtures("private_ray")
SHORT_SESSION_MS = 3_000
ROW = {
    *("batch_bytes", "partitions", "in_flight", "records_per_second", "megabytes_per_second", "p50_ms", "p99_ms"),
    *("refused", "ceiling_batches_per_second", "ceiling_p50_ms", "call_p50_ms"),
    *("of_ceiling", "hop_round_trips", "call_round_trips", "hops_in_calls"),
}


def figures_in(text: str, name: str) -> Any:
    """The figures of a benchmark in its standard output, which must hold nothing else."""
    document = json.loads(text)
    assert sorted(document) == ["benches", "cpus", "python"]
    assert list(document["benches"]) == [name]
    return document["benches"][name]


def figures(name: str, *options: str) -> Any:
    """Runs one benchmark and returns its figures."""
    done = CliRunner().invoke(application(), ["bench", name, *options, "--repeats", "1", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return figures_in(done.stdout, name)


@pytest.fixture
def _short_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeats = {BROKER_SESSION_TIMEOUT_MS: SHORT_SESSION_MS, BROKER_HEARTBEAT_INTERVAL_MS: SHORT_SESSION_MS // 6}
    stores = [store.model_copy(update={"session_timeout_ms": SHORT_SESSION_MS}) for store in failover.STORES]
    shorter = {"SESSION_MS": SHORT_SESSION_MS, "QUIET_MS": SHORT_SESSION_MS + 1_000}
    for constant, value in (shorter | {"HEARTBEATS": heartbeats, "STORES": tuple(stores)}).items():
        monkeypatch.setattr(failover, constant, value)


@pytest.mark.usefixtures("_short_sessions")
def test_failover_has_a_row_per_generation_and_size() -> None:
    found = figures("failover", "--partitions", "3", "--generations", "v3,kip-966")
    sizes = found.pop("sizes")
    assert [(size["generation"], size["sessions"], size["multi"]) for size in sizes] == [
        ("v3", 1, 1),
        ("v3", 10, 100),
        ("kip-966", None, None),
    ]
    assert [store["write_latency"]["mean_ms"] for store in found.pop("stores")] == [4, 4]
    assert found == {
        "brokers": 3,
        "session_timeout_ms": SHORT_SESSION_MS,
        "sample": failover.SAMPLE,
        "repeats": 1,
        "growth_exponent": {"v3, 1 sessions, multi 1": None, "v3, 10 sessions, multi 100": None, "kip-966": None},
    }
    for size in sizes:
        del size["generation"], size["sessions"], size["multi"]
        assert size.pop("cpu_s") > 0
        assert size["partitions"] == 3
        assert set(size) == {"partitions", "detected_ms", "p50_ms", "max_ms", "all_served_ms"}
        assert all(isinstance(value, int) for value in size.values())


def test_quorum_has_commits_elections_and_a_snapshot() -> None:
    options = ("--requests", "2", "--kills", "1", "--seeds", "2", "--partitions", "50")
    found = figures("quorum", *options)
    assert (found["controllers"], found["repeats"]) == (3, 1)
    assert [(row["workload"], row["controllers"], row["requests"]) for row in found["commits"]] == [
        ("topics", 3, 2),
        ("configs", 3, 40),
        ("topics", 1, 2),
        ("configs", 1, 40),
    ]
    assert all(row["records_per_second"] > 0 and row["of_bare"] > 0 for row in found["commits"])
    assert {where: found["elections"][where]["kills"] for where in ("ray", "sim")} == {"ray": 1, "sim": 2}
    assert found["snapshot"]["partitions"] == 50


def test_replication_has_a_row_per_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "WARM_UP_MS", 200)
    found = figures("replication", "--sizes", "1024", "--partitions", "1,2", "--seconds", "1")
    points = found.pop("points")
    assert found == {
        "brokers": 3,
        "replication_factor": 3,
        "min_isr": 2,
        "record_bytes": RECORD_BYTES,
        "duration_ms": 1_000,
        "repeats": 1,
    }
    assert [(point["batch_bytes"], point["partitions"], point["in_flight"]) for point in points] == [
        (1_024, 1, 1),
        (1_024, 1, DEPTH),
        (1_024, 2, 2 * DEPTH),
    ]
    for point in points:
        assert set(point) == ROW
        assert all(isinstance(value, int | float) for value in point.values())
