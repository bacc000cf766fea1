"""`isray bench quorum`: the measured operations, and the figures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.storage import DiskStorage
from experiments.bench.controller import cluster_records, state_of
from experiments.bench.quorum import (
    COLUMNS,
    SnapshotRow,
    bound_ms,
    config,
    distribution,
    load,
    measure,
    rank,
    report_of,
    simulated_ms,
    write,
)
from experiments.bench.quorum_ray import CONFIGS, RECORDS, TOPICS, Commits, bare_appends
from protocol.ids import METADATA_LOG
from protocol.quorum.log import QuorumLog
from protocol.quorum.voters import VoterSet

PARTITIONS = 150
SNAPSHOT = SnapshotRow(PARTITIONS, PARTITIONS + 5, 9_000, 40.0, 60.0, 10.0, 30.0)


def commits(workload: str, controllers: int, elapsed_s: float) -> Commits:
    return Commits(workload, controllers, 20, elapsed_s, 80.0, 30_000, bare_s=0.5)


def test_a_rate_is_records_over_time_with_a_ratio_to_appends() -> None:
    document = commits(TOPICS, 3, 2.0).document()
    assert document["records_per_second"] == 20 * RECORDS[TOPICS] / 2.0
    assert document["bare_records_per_second"] == 20 * RECORDS[TOPICS] / 0.5
    assert document["of_bare"] == 0.25


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.1, 1), (0.11, 2), (0.5, 5), (0.51, 6), (0.9, 9), (1.0, 10)]
)
def test_a_rank_is_one_of_the_values(share: float, expected: int) -> None:
    assert rank([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == expected
    assert rank([7], share) == 7


def test_times_above_the_bound_are_counted() -> None:
    bound = bound_ms(config())
    assert distribution([bound + 1, 2_000, bound, 3_000]) == {
        "kills": 4,
        "p50_ms": 3_000,
        "p90_ms": bound + 1,
        "max_ms": bound + 1,
        "above_bound": 1,
    }


def test_a_simulated_election_depends_on_the_seed_only_and_stays_within_the_bound() -> None:
    times_ms = [simulated_ms(seed) for seed in range(8)]
    assert times_ms == [simulated_ms(seed) for seed in range(8)]
    assert len(set(times_ms)) > 1
    assert all(1_000 < time_ms <= bound_ms(config()) for time_ms in times_ms)


def test_the_loaded_image_is_the_written_one(tmp_path: Path) -> None:
    image = state_of(cluster_records(PARTITIONS)).image
    storage = DiskStorage(tmp_path / "node")
    log = QuorumLog(storage, METADATA_LOG, VoterSet())
    write(log, image)
    storage.close()
    assert dict(load(tmp_path / "node").partitions()) == dict(image.partitions())


def test_a_snapshot_is_measured() -> None:
    row = measure(PARTITIONS, 1)
    assert (row.partitions, row.records) == (PARTITIONS, len(cluster_records(PARTITIONS)))
    assert all(isinstance(value, int | float) and value > 0 for value in row.document().values())


def test_bare_appends_remove_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert bare_appends(100, 3) > 0
    assert list(tmp_path.iterdir()) == []


def test_document_and_table_have_the_same_figures() -> None:
    rates = [
        commits(workload, controllers, elapsed_s)
        for controllers, elapsed_s in ((3, 2.0), (1, 1.0))
        for workload in (TOPICS, CONFIGS)
    ]
    report = report_of(rates, [2_000, 2_500], [1_900, 3_000, 2_100], SNAPSHOT, 1)
    document: Any = report.document
    found = {(row["workload"], row["controllers"]): row["of_one_controller"] for row in document["commits"]}
    assert found == {(TOPICS, 3): 0.5, (CONFIGS, 3): 0.5, (TOPICS, 1): 1.0, (CONFIGS, 1): 1.0}
    assert document["elections"]["bound_ms"] == bound_ms(config())
    assert document["elections"]["sim"]["max_ms"] == 3_000
    assert document["snapshot"]["write_ratio"] == 4.0
    assert report.columns == COLUMNS
    assert [row[0] for row in report.rows] == [
        "commits, topics",
        "commits, configs",
        "elections, ray",
        "elections, sim",
        "snapshot, written",
        "snapshot, loaded",
    ]
    assert all(len(row) == len(COLUMNS) for row in report.rows)
    assert report.rows[0][1:] == [
        "5,010 records/s, p50 80.0 ms",
        "one controller 10,020/s, appends 20,040/s",
        "0.50, 0.250",
    ]
    assert report.rows[2][1:] == ["p50 2,000 ms, p90 2,500 ms, max 2,500 ms", "bound 6,000 ms", "0 of 2 above"]
    assert report.rows[4][1:] == ["40 ms (150 partitions, 0.0 MB)", "bare 10 ms", "4.00"]
