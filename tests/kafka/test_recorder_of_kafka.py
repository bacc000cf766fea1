"""The recorder against Kafka's releases: needs Maven Central and a JDK (`make test-kafka`, no part of `make test`)."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments.cli.main import application
from experiments.conformance.decisions import replay_file
from experiments.conformance.recorder.record import KINDS, RAFT_SINCE

DATA = Path(__file__).parents[1] / "data"
RELEASES = ("4.0.2", "4.1.0", "4.1.1", "4.2.0", "4.3.1", "4.4.0")
"""Of each line of the recorder's, and of each behaviour, at least one."""
RECORDED = [
    *((kafka, kind) for kafka in RELEASES for kind in KINDS),
    *((kafka, kind) for kafka in RELEASES for kind, since in RAFT_SINCE.items() if kafka >= since),
]


def record(kafka: str, kind: str, seed: int, rows: int, out: Path) -> Result:
    events = [] if kind == "decisions" else ["--traces", "--events", kind]
    line = ["conformance", "record", "--kafka", kafka, "--seed", str(seed), "--rows", str(rows), "--out", str(out)]
    return CliRunner().invoke(application(), [*line, *events])


@pytest.mark.parametrize(("kafka", "kind"), RECORDED)
def test_what_a_release_answers_departs_by_declared_rules_only(kafka: str, kind: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl.gz"
    assert record(kafka, kind, 17, 40, out).exit_code == 0
    result = replay_file(out)
    assert (result.failed, result.passed + len(result.departed), result.is_stated) == (0, 40, True)


@pytest.mark.parametrize(
    ("kind", "seed", "rows", "shipped"),
    [
        ("decisions", 20261125, 3000, "partition_change_kafka_4.4.0"),
        ("partition", 20261126, 400, "controller_traces_kafka_4.4.0"),
        ("cluster", 777004, 60, "cluster_traces_kafka_4.4.0"),
        ("raft", 2, 300, "quorum_traces_kafka_4.4.0_seed_2"),
        ("raft-join", 1, 100, "quorum_joins_kafka_4.4.0_seed_1"),
    ],
)
def test_the_shipped_vectors_are_recorded_again_byte_by_byte(
    kind: str, seed: int, rows: int, shipped: str, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    assert record("4.4.0", kind, seed, rows, out).exit_code == 0
    _, *recorded = out.read_bytes().splitlines()
    assert recorded == gzip.decompress((DATA / f"{shipped}.jsonl.gz").read_bytes()).splitlines()[1:]
