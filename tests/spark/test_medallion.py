"""Silver and gold on one JVM: small traces by hand, other implementations, extended and damaged studies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from experiments.bench.pipeline_data import write_study
from experiments.bench.pipeline_duckdb import analyse as analyse_in_duckdb
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.pipeline.changes import catch_ups, elections, isr_changes
from experiments.studies.pipeline.java import java_home
from experiments.studies.pipeline.manifest import read_manifest
from experiments.studies.pipeline.medallion import LossesDisagree, Work, analyse
from experiments.studies.pipeline.records import disagreements, records
from experiments.studies.pipeline.session import spark_path, spark_session
from experiments.studies.pipeline.silver import intervals, outages
from experiments.studies.sweeps.batches import batch_name
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.storage import Folder
from experiments.studies.sweeps.sweep import complete_batches
from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES
from experiments.studies.trace.schema import TRACE_SCHEMA, YEAR_MS, TraceRow, TrialResult
from experiments.studies.trials.batch import Batch
from tests.spark.trial_helpers import claimed, fake_trial, fill

CLOSE = 3e-14


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(java_home(), little=True) as session:
        yield session


def analysed(spark: SparkSession, out: Path) -> Path:
    """Runs the pipeline on a complete sweep."""
    record = read_record(out)
    batches, targets = complete_batches(record, out)
    analyse(spark, Work(Folder(out), spark_path(Folder(out)), record, batches, targets))
    return out


def as_trace(spark: SparkSession, rows: list[TraceRow], trial: int = 0) -> DataFrame:
    """Rows of one trial of a cell with one partition and acks=all, as bronze has them."""
    names = [name for name in TRACE_SCHEMA.names if name != "cell"]
    table = [dict(zip(names, (trial, seq, *row), strict=True)) for seq, row in enumerate(rows)]
    frame = pd.DataFrame(table).assign(cell=0, partitions=1, acks_all=True)
    return spark.createDataFrame(frame)


def state(time_ms: int, leader: int, epoch: int, isr: str, elr: str = "", serves: bool = True) -> TraceRow:
    size = isr.count(",") + 1 if leader >= 0 else 0
    row = TraceRow(time_ms, "state", 0, leader=leader, leader_serves=serves, isr_size=size, min_isr=2)
    return row._replace(epoch=epoch, isr=isr, elr=elr)


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in frame.collect())


def acked(time_ms: int, offset: int) -> TraceRow:
    return TraceRow(time_ms, "produced", 0, value=5, detail="acked", offset=offset)


def elected(time_ms: int, epoch: int, offset: int) -> TraceRow:
    return TraceRow(time_ms, "elected", 0, 1, epoch=epoch, offset=offset)


def test_handovers_are_no_failovers_and_elections_have_reasons(spark: SparkSession) -> None:
    trace = as_trace(
        spark,
        [
            state(0, 0, 0, "0,1,2"),
            state(1_000, 1, 1, "0,1,2", serves=False),  # a handover: broker 0 had not failed
            state(1_004, 1, 1, "0,1,2"),
            TraceRow(2_000, "crash", node=1),
            state(2_000, 1, 1, "0,1,2", serves=False),
            state(2_000, 2, 2, "0,2", serves=False),  # detected at once: still a failover
            state(2_007, 2, 2, "0,2"),
            TraceRow(2_500, "start", node=1),
            state(3_000, 2, 2, "0,1,2"),
            state(4_000, -1, 3, "", "0,1"),
            state(5_000, 1, 4, "1"),
            state(6_000, -1, 5, "1"),
            state(7_000, 0, 6, "0"),
            TraceRow(9_000, "end"),
        ],
    )
    found = intervals(trace).cache()
    trials = spark.createDataFrame([(0, 0, 9_000)], "cell int, trial int, duration_ms long")
    assert rows_of(outages(found, trials), "start_ms", "failover_ms", "handover", "ended") == [
        (1_000, 4, True, True),
        (2_000, 7, False, True),
        (4_000, 1_000, False, True),
        (6_000, 1_000, False, True),
    ]
    assert rows_of(elections(found), "time_ms", "leader", "reason", "handover") == [
        (1_000, 1, "isr", True),
        (2_000, 2, "isr", False),
        (5_000, 1, "elr", False),
        (7_000, 0, "unclean", False),
    ]
    changed = isr_changes(found)
    assert (3_000, ["1"], []) in rows_of(changed, "time_ms", "joined", "left")
    assert rows_of(catch_ups(trace, changed), "broker", "start_ms", "in_sync_ms") == [(1, 2_500, 3_000)]
    assert rows_of(found.where("refuses_begins"), "start_ms") == [(4_000,)]


def test_a_record_is_lost_by_the_first_election_that_cuts_it_off(spark: SparkSession) -> None:
    rows = [
        state(0, 0, 0, "0,1,2"),
        acked(10, 0),
        acked(20, 1),
        elected(30, 1, 2),
        acked(40, 2),
        acked(50, 3),
        TraceRow(55, "produced", 0, value=5, detail="unknown"),
        elected(60, 2, 3),  # without record 3
        TraceRow(60, "loss", 0, 1, value=1),
        acked(70, 3),  # another record at that offset
        TraceRow(80, "checkpoint", 0, offset=3),
        acked(85, 4),
        elected(90, 3, 0),  # without all: the new 3 and 4 are followed
        TraceRow(90, "loss", 0, 1, value=2),
        TraceRow(100, "end"),
    ]
    trace = as_trace(spark, rows)
    found = records(trace).cache()
    columns = ("seq", "offset", "acknowledged_ms", "visible_ms", "durable", "lost_ms", "lost_epoch")
    fates = [tuple(row[name] for name in columns) for row in found.orderBy("seq").collect()]
    assert [fate[1:] for fate in fates] == [
        (0, 10, 10, True, None, None),
        (1, 20, 20, True, None, None),
        (2, 40, 40, True, None, None),
        (3, 50, 50, False, 60, 2),
        (-1, None, None, False, None, None),
        (3, 70, 70, False, 90, 3),
        (4, 85, 85, False, 90, 3),
    ]
    assert disagreements(trace, found).collect() == []
    other = as_trace(spark, [row._replace(value=3) if row.kind == "loss" else row for row in rows])
    assert rows_of(disagreements(other, found), "trial", "partition", "counted", "found") == [(0, 0, 6, 3)]


@pytest.fixture(scope="module")
def drawn(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose trials were drawn without a simulator, analysed."""
    out = tmp_path_factory.mktemp("drawn")
    write_study(out, 20_000)
    return analysed(spark, out)


def test_gold_equals_that_of_duckdb(drawn: Path, tmp_path: Path) -> None:
    analyse_in_duckdb(drawn, read_record(drawn), tmp_path)
    keys = ["cell", "metric"]
    expected = pd.read_parquet(tmp_path / "cells.parquet").set_index(keys).sort_index()
    found = pd.read_parquet(drawn / "gold" / "cells").set_index(keys).sort_index()
    assert list(found.index) == list(expected.index)
    for name in expected.columns:
        assert found[name].to_numpy() == pytest.approx(expected[name].to_numpy(), rel=CLOSE), name
    times = pd.read_parquet(tmp_path / "times.parquet").set_index(["cell", "kind"])
    for index, cell in enumerate(json.loads((drawn / "gold" / "cells.json").read_text())):
        for kind in ("failover", "handover", "catch_up"):
            quantiles = [cell[f"{kind}_ms"][name] for name in ("p50", "p99", "max", "outages")]
            assert quantiles == times.loc[(index, kind), ["p50", "p99", "max", "events"]].tolist()


def test_gold_equals_that_of_pandas(drawn: Path) -> None:
    digests = read_record(drawn).cells
    trace = pd.concat(pq.read_table(path).to_pandas() for path in sorted(drawn.glob("trace/*.parquet")))
    trace["cell"] = trace["cell"].map(digests.index)
    trials = ["cell", "trial"]
    states = trace[trace["kind"].isin(["state", "end"])].sort_values([*trials, "seq"])
    states["length"] = states.groupby(trials)["time_ms"].diff(-1).mul(-1)
    states = states[states["kind"] == "state"]
    offline = states["leader"] < 0
    holds = {"offline": offline, "stalled": ~offline & ~states["leader_serves"]}
    holds["refuses"] = states["isr_size"] < states["min_isr"]
    found = pd.read_parquet(drawn / "gold" / "cells").set_index(["metric", "cell"])["value"]
    for metric in METRICS:
        if metric.name in RATES:
            counted = trace[trace["kind"] == metric.trace_kind]
            weight = counted["value"] if metric.sums_values else counted["value"].clip(1, 1)
            values = weight.groupby(counted["cell"]).sum()
        else:
            values = states["length"].where(holds[FRACTIONS[metric.name].column], 0).groupby(states["cell"]).sum()
            values = values / YEAR_MS
        expected = values.reindex(range(len(digests)), fill_value=0.0)
        assert found[metric.name].to_numpy() == pytest.approx(expected.to_numpy(), rel=CLOSE), metric.name


def small_study(trials: int, generations: list[str]) -> StudyPlan:
    raw = {"name": "s", "trials": trials, "duration": "1h", "sweep": {"generation": generations}}
    return study_from(raw, "s.yaml")


def test_extended_study_processes_new_trials_only_and_gives_the_same_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = small_study(4, ["kip-966"]), small_study(6, ["kip-497", "kip-966"])
    out, scratch = tmp_path / "extended", tmp_path / "scratch"
    old, new = claimed(out, first), claimed(scratch, second)
    fill(out, first, [Batch(old[0], 0, 4)])
    analysed(spark, out)
    added = [Batch(new[0], 0, 6), Batch(new[1], 4, 6)]
    claimed(out, second)
    fill(out, second, added)
    analysed(spark, out)
    fill(scratch, second, [Batch(cell, 0, 6) for cell in new])
    analysed(spark, scratch)
    assert read_manifest(Folder(out)).runs == {0: (Batch(old[0], 0, 4),), 1: tuple(sorted(added))}
    for name in ("cells.json", "quarantine.json"):
        assert (out / "gold" / name).read_bytes() == (scratch / "gold" / name).read_bytes()


def test_damaged_batches_are_quarantined_and_the_others_analysed(spark: SparkSession, tmp_path: Path) -> None:
    study = small_study(6, ["kip-966"])
    (cell,) = claimed(tmp_path, study)
    batches = [Batch(cell, 0, 3), Batch(cell, 3, 6)]
    fill(tmp_path, study, batches)
    path = tmp_path / "trace" / f"{batch_name(batches[1])}.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    analysed(spark, tmp_path)
    (found,) = json.loads((tmp_path / "gold" / "quarantine.json").read_text())
    assert found == {"file": str(path), "reason": "a damaged Parquet file", "trials": [3, 6]}
    assert json.loads((tmp_path / "gold" / "cells.json").read_text())[0]["trials"] == 3


def miscounted(parameters: CellParameters, seed: int) -> TrialResult:
    """A trial that counts a loss which its records do not show."""
    result = fake_trial(parameters, seed)
    rows = [result.rows[0], acked(1, 0), *result.rows[1:-1], TraceRow(parameters.duration_ms, "loss", 0, 1, value=9)]
    return TrialResult([*rows, result.rows[-1]], result.trace_hash, len(rows) + 1)


def test_losses_that_the_records_do_not_show_are_an_error_that_names_the_trial(
    spark: SparkSession, tmp_path: Path
) -> None:
    study = small_study(2, ["kip-966"])
    (cell,) = claimed(tmp_path, study, miscounted)
    fill(tmp_path, study, [Batch(cell, 0, 2)], miscounted)
    with pytest.raises(LossesDisagree, match=f"trial 0 of cell {cell}, partition 0: .* 0$"):
        analysed(spark, tmp_path)
    assert not (tmp_path / "gold").exists()
