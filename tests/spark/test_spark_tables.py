"""Silver and gold on one JVM: other implementations, extended and damaged studies."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from experiments.bench import pipeline_data
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.pipeline import manifest
from experiments.studies.pipeline import spark as pipeline
from experiments.studies.pipeline.schemas import GOLD, SILVER, ddl, digests
from experiments.studies.pipeline.spark import LossesDisagree, Work, analyse, disagreements
from experiments.studies.pipeline.tables import readme
from experiments.studies.report.render import write_report
from experiments.studies.sweeps.batches import batch_name
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.storage import Folder, spark_path
from experiments.studies.sweeps.sweep import complete_batches
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES
from experiments.studies.trace.schema import YEAR_MS, TraceRow
from experiments.studies.trials.batch import Batch
from tests.spark.gold_helpers import CLOSE, assert_gold_equals_that_of_duckdb
from tests.spark.trial_helpers import claimed, fake_trial, fill
from tests.trace_rows import typed

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "analyse-traces-of-your-own.md"
BATCH_TRIALS = 3
"""Trials per batch of the drawn study, which has 14 per cell."""


def analysed(spark: SparkSession, out: Path) -> Path:
    """Runs the pipeline on a complete sweep."""
    record = read_record(out)
    batches, targets = complete_batches(record, out)
    analyse(lambda: spark, Work(Folder(out), spark_path(Folder(out)), record, batches, targets))
    return out


def acked(time_ms: int, offset: int) -> TraceRow:
    return TraceRow(time_ms, "produced", 0, value=5, detail="acked", offset=offset)


@pytest.fixture(scope="module")
def drawn(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose trials were drawn without a simulator, analysed."""
    out = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline_data, "BATCH_TRIALS", BATCH_TRIALS)
        pipeline_data.write_study(out, 20_000)
    return analysed(spark, out)


def test_gold_equals_that_of_duckdb(drawn: Path, tmp_path: Path) -> None:
    assert_gold_equals_that_of_duckdb(drawn, tmp_path)


def test_gold_equals_that_of_pandas(drawn: Path) -> None:
    digests = read_record(drawn).cells
    trace = pd.concat(pq.read_table(path).to_pandas() for path in sorted(drawn.glob("trace/*.parquet")))
    trace["cell"] = trace["cell"].map(digests.index)
    trials = ["cell", "trial"]
    states = trace[trace["kind"].isin(["state", "end"])].sort_values([*trials, "seq"])
    states["length"] = states.groupby(trials)["time_ms"].diff(-1).mul(-1)
    states = states[states["kind"] == "state"]
    offline = states["leader"] < 0
    silent, expired = ~offline & ~states["leader_serves"], states["expired"]
    holds = {
        "offline": offline,
        "stalled": silent | (~offline & states["stalls"]),
        "refuses": states["isr_size"] < states["min_isr"],
        "unwritable": expired,
        "unwritable_offline": expired & offline,
        "unwritable_leader": expired & silent,
        "unwritable_isr": expired & ~offline & ~silent & states["stalls"],
        "unwritable_refused": expired & ~offline & ~silent & ~states["stalls"],
    }
    found = pd.read_parquet(drawn / "gold" / "cells").set_index(["metric", "cell"])["value"]
    for metric in METRICS:
        if metric.name in RATES:
            counted = trace[trace["kind"] == metric.counts.KIND]
            weight = counted["value"] if metric.sums_values else counted["value"].clip(1, 1)
            values = weight.groupby(counted["cell"]).sum()
        else:
            values = states["length"].where(holds[FRACTIONS[metric.name].column], 0).groupby(states["cell"]).sum()
            values = values / YEAR_MS
        expected = values.reindex(range(len(digests)), fill_value=0.0)
        assert found[metric.name].to_numpy() == pytest.approx(expected.to_numpy(), rel=CLOSE), metric.name


@pytest.mark.parametrize("library", ["duckdb", "pandas", "pyspark"])
def test_the_lines_of_the_readme_open_the_tables(
    spark: SparkSession, drawn: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "builder", SimpleNamespace(getOrCreate=lambda: spark))
    (line,) = re.findall(rf"^(?:import|from) {library}\b.*$", readme(read_record(drawn)), re.MULTILINE)
    found: dict[str, Any] = {}
    exec(line.replace("gold/cells", f"{drawn}/gold/cells"), found)
    assert list(found["cells"].columns) == list(GOLD["cells"])


def test_the_readme_lists_the_columns_of_the_files(spark: SparkSession, drawn: Path) -> None:
    text = readme(read_record(drawn))
    tables = re.findall(r"^### (\S+)\n\n\| column \| type \|\n\|---\|---\|\n((?:\|.*\n)*)", text, re.MULTILINE)
    folders = [*(f"silver/{path.name}" for path in (drawn / "silver").iterdir() if path.is_dir()), "trace", "trials"]
    assert {folder for folder, _ in tables} == {*folders, *(f"gold/{name}" for name in GOLD)}
    for folder, rows in tables:
        columns = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", rows, re.MULTILINE))
        stored = spark.read.parquet(*map(str, (drawn / folder).rglob("*.parquet")))
        assert list(columns) == stored.columns, folder
        if folder not in ("trace", "trials"):
            assert [kind.replace(": ", ":").replace(", ", ",") for kind in columns.values()] == [
                kind for _, kind in stored.dtypes
            ], folder


def test_traces_of_another_program_are_analysed_and_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    losses = [int(found) for found in re.findall(r"(\d+) losses in 100 partition-years", capsys.readouterr().out)]
    out = analysed(spark, tmp_path / "own")
    cells = json.loads((out / "gold" / "cells.json").read_text())
    assert [cell["loss_rate"]["estimate"] for cell in cells] == [found / 100 for found in losses]
    trace = pd.concat(pd.read_parquet(path) for path in sorted(out.glob("trace/*.parquet")))
    lengths = trace[trace["leader"] < 0].merge(trace, on=["cell", "trial"], suffixes=("", "_next"))
    lengths = lengths[lengths["seq_next"] == lengths["seq"] + 1].query("kind == 'state'")
    offline = (lengths["time_ms_next"] - lengths["time_ms"]).groupby(lengths["cell"]).sum() / (100 * YEAR_MS)
    assert [cell["offline_fraction"]["estimate"] for cell in cells] == pytest.approx(list(offline), rel=CLOSE)
    write_report(out)
    assert "Run min ISR 2: it loses acknowledged records least often" in (out / "report.html").read_text()


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
    runs = {number: run.batches for number, run in manifest.read_manifest(Folder(out)).runs.items()}
    assert runs == {0: (Batch(old[0], 0, 4),), 1: tuple(sorted(added))}
    for name in ("cells.json", "quarantine.json"):
        assert (out / "gold" / name).read_bytes() == (scratch / "gold" / name).read_bytes()


def gold_of(out: Path) -> dict[str, Any]:
    """The content of gold: of its JSON files as bytes, of its tables as rows."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in (out / "gold").glob("*.json")}
    return found | {
        name: pq.read_table(out / "gold" / name).to_pylist() for name in ("cells", "pairs", "distributions")
    }


def split_by_trials(out: Path, trials: int) -> int:
    """Makes silver what analyses after each of so many trials of a growing study would have left; their number."""
    (whole,) = manifest.read_manifest(Folder(out)).runs.values()
    runs = {
        first // trials: manifest.AnalysisRun(tuple(batch for batch in whole.batches if batch.first == first), 1_000)
        for first in sorted({batch.first for batch in whole.batches})
    }
    for table in (path for path in (out / "silver").iterdir() if path.is_dir()):
        rows = pq.read_table(table / "run=0", partitioning=None)
        shutil.rmtree(table / "run=0")
        for run in runs:
            (table / f"run={run}").mkdir()
            part = rows.filter((pc.field("trial") >= run * trials) & (pc.field("trial") < (run + 1) * trials))
            pq.write_table(part, table / f"run={run}" / "part.parquet")
    manifest.write_manifest(Folder(out), manifest.Manifest(runs))
    return len(runs)


def test_small_runs_become_one_and_gold_keeps_its_bytes(spark: SparkSession, drawn: Path, tmp_path: Path) -> None:
    out = shutil.copytree(drawn, tmp_path / "s")
    before = gold_of(out)
    assert split_by_trials(out, BATCH_TRIALS) == manifest.MOST_SMALL_RUNS + 1
    assert gold_of(analysed(spark, out)) == before
    runs = manifest.read_manifest(Folder(out)).runs
    assert list(runs) == [5]
    assert set(runs[5].batches) == set(complete_batches(read_record(out), out)[0])
    for table in (path for path in (out / "silver").iterdir() if path.is_dir()):
        (folder,) = table.iterdir()
        assert (folder.name, len(list(folder.glob("*.parquet")))) == ("run=5", 1)


def test_little_data_gives_the_bytes_of_spark_tasks(
    spark: SparkSession, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver made the silver of `drawn` itself; here tasks of Spark make it."""
    monkeypatch.setattr(pipeline, "HERE_BYTES", 0)
    out = shutil.copytree(drawn, tmp_path / "s", ignore=shutil.ignore_patterns("silver", "gold"))
    assert gold_of(analysed(spark, out)) == gold_of(drawn)
    files = [len(list(folder.glob("silver/trials/run=0/*.parquet"))) for folder in (out, drawn)]
    assert files[0] > files[1] == 1


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


@pytest.mark.parametrize(
    ("counted", "lost", "expected"),
    [
        (2, (1, 2), []),  # All agree.
        (3, (1, 2), [("c", 0, 0, 3, 2, 2)]),
        (2, (2,), [("c", 0, 0, 2, 2, 1)]),
    ],
)
def test_losses_are_compared_by_joins(
    spark: SparkSession, counted: int, lost: tuple[int, ...], expected: list[tuple[object, ...]]
) -> None:
    def frame(name: str, rows: list[dict[str, object]]) -> DataFrame:
        columns = digests(SILVER[name])
        of = {"cell": "c", "trial": 0, "partition": 0}
        return spark.createDataFrame(
            [tuple((of | row).get(column) for column in columns) for row in rows], ddl(columns)
        )

    # Record 0 is below the cut, 1 and 2 are cut off, 3 was not acknowledged, 4 comes after the cut, and the records of
    # another trial have no cut and no counts.
    acknowledged = {0: 10, 1: 20, 2: 30, 3: None, 4: 50}
    seqs = {0: 1, 1: 2, 2: 3, 3: 4, 4: 6}
    records = [
        {"seq": seqs[offset], "offset": offset, "acknowledged_ms": at, "lost_ms": 40 if offset in lost else None}
        for offset, at in acknowledged.items()
    ]
    other = [{"trial": 1, "seq": 1, "offset": 5, "acknowledged_ms": 1}]
    # The second cut concerns no record: those that it would lose are no longer followed.
    cuts = [{"seq": 5, "offset": 1, "since": 0}, {"seq": 7, "offset": 0, "since": 8}]
    found = disagreements(
        frame("records", records + other), frame("cuts", cuts), frame("counts", [{"records": 5, "lost": counted}])
    )
    assert [tuple(row) for row in found.collect()] == expected


def miscounted(parameters: CellParameters, seed: int) -> TrialResult:
    """A trial that counts a loss which its records do not show."""
    result = fake_trial(parameters, seed)
    added = typed([acked(1, 0), TraceRow(parameters.duration_ms, "loss", 0, 1, value=9)])
    rows = [result.rows[0], added[0], *result.rows[1:-1], added[1]]
    return TrialResult([*rows, result.rows[-1]], result.trace_hash, len(rows) + 1)


def test_losses_that_the_records_do_not_show_are_an_error_that_names_the_trial(
    spark: SparkSession, tmp_path: Path
) -> None:
    study = small_study(2, ["kip-966"])
    (cell,) = claimed(tmp_path, study, miscounted)
    fill(tmp_path, study, [Batch(cell, 0, 2)], miscounted)
    with pytest.raises(LossesDisagree, match=f"trial 0 of cell {cell}, partition 0: .* has 0$"):
        analysed(spark, tmp_path)
    assert not (tmp_path / "gold").exists()
