"""The pipeline on a real JVM: a trace written by hand, a study computed again in Python, and no leftovers."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.intervals import assumed_sizes, interval, limits
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import Products, compare
from experiments.studies.pipeline import analysis
from experiments.studies.pipeline.analysis import analyze
from experiments.studies.pipeline.failures import PipelineFailed
from experiments.studies.report.render import write_report
from experiments.studies.sweeps.batches import batch_name
from experiments.studies.sweeps.output import read_record
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trace.metrics import METRICS
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.batch import Batch, Trial
from experiments.support.errors import InputError
from experiments.support.processes import processes_naming
from tests.spark.conftest import analyses_in
from tests.spark.trial_helpers import claimed, fake_trial, fill
from tests.trace_rows import typed

TRIALS = 12
ROOT = Path(__file__).parent.parent.parent


def swept(out: Path, trial: Trial, **changes: object) -> StudyPlan:
    """Fills a sweep's output directory without Ray."""
    base = {"partitions": 2}
    raw = {
        "name": "s",
        "trials": TRIALS,
        "duration": "1h",
        "base": base,
        "sweep": {"generation": ["kip-497", "kip-966"]},
    }
    study = study_from(raw | changes, "s.yaml")
    cells = claimed(out, study, trial)
    fill(out, study, [Batch(cell, 0, study.max_trials) for cell in cells], trial)
    return study


def file_of(out: Path, index: int, folder: str = "trials") -> str:
    """The only file of a cell in `trials/` or `trace/`."""
    return f"{folder}/{batch_name(Batch(read_record(out).cells[index], 0, TRIALS))}.parquet"


def cells_in(out: Path) -> list[dict[str, Any]]:
    """The objects of `gold/cells.json`."""
    return list(json.loads((out / "gold" / "cells.json").read_text()))


def by_hand(parameters: CellParameters, seed: int) -> TrialResult:
    """Ten seconds with a case for each rule of silver; with `kip-497` all weights are 2 from the sixth second on."""

    def state(time_ms: int, leader: int, serves: bool, isr_size: int) -> TraceRow:
        return TraceRow(time_ms, "state", 0, -1, leader, serves, isr_size, 0, 2)

    rows = [
        state(0, 0, True, 3),
        state(1_000, 0, False, 3),
        state(1_500, -1, False, 1),
        state(2_500, 1, True, 1),
        TraceRow(2_500, "loss", 0, 1, value=3),
        TraceRow(2_600, "loss", 0, 1, value=4),
        state(4_000, 1, True, 2),
        state(6_000, -1, False, 2),
        state(6_000, 2, True, 2),
        TraceRow(6_500, "hw_regression", 0, 2),
        state(9_000, -1, False, 0),
        TraceRow(10_000, "end"),
    ]
    if parameters.generation == "kip-497":
        rows = [row._replace(log_weight=math.log(2.0) if row.time_ms >= 6_000 else 0.0) for row in rows]
    return TrialResult(typed(rows), "hash", len(rows))


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    out = tmp_path_factory.mktemp("analysed")
    swept(out, fake_trial)
    with analyses_in(spark):
        analyze(out)
    return out


@pytest.mark.usefixtures("in_session")
def test_numbers_of_a_trace_written_by_hand(tmp_path: Path) -> None:
    swept(
        tmp_path,
        by_hand,
        trials=2,
        duration="10s",
        base={"estimator": "plain"},
        sweep={"generation": ["kip-966", "kip-497"]},
    )
    estimates = analyze(tmp_path)
    cell, weighted = cells_in(tmp_path)
    document = json.loads(json.dumps(estimates[0].document({"generation": "kip-966"})))
    assert document.items() <= cell.items()
    assert cell["offline_fraction"]["estimate"] == pytest.approx(0.2)
    assert cell["stall_fraction"]["estimate"] == pytest.approx(0.05)
    assert cell["reject_fraction"]["estimate"] == pytest.approx(0.35)
    times = cell["failover_ms"]
    assert [times[name] for name in ("p50", "p99", "max", "outages", "p50_ci_low")] == [1_500, 1_500, 1_500, 2, None]
    years = 10_000 / (365 * 86_400_000)
    assert cell["partition_years"] == pytest.approx(2 * years)
    assert cell["loss_rate"]["estimate"] == pytest.approx(2 / years)
    assert cell["lost_records_per_year"]["estimate"] == pytest.approx(7 / years)
    assert cell["high_watermark_regressions_per_year"]["estimate"] == pytest.approx(1 / years)
    assert cell["unclean_recoveries_per_year"]["estimate"] == 0
    assert cell["estimator"] == "plain"
    assert weighted["partition_years"] == cell["partition_years"]
    assert weighted["offline_fraction"]["estimate"] == pytest.approx(3 / 16)
    assert weighted["stall_fraction"]["estimate"] == pytest.approx(0.5 / 16)
    assert weighted["reject_fraction"]["estimate"] == pytest.approx(4.5 / 16)
    assert weighted["loss_rate"]["estimate"] == pytest.approx(2 / (1.6 * years))
    assert weighted["high_watermark_regressions_per_year"]["estimate"] == pytest.approx(2 / (1.6 * years))
    assert weighted["loss_rate"]["degenerate"]
    assert (weighted["offline_fraction"]["events"], weighted["loss_rate"]["ci_low"]) == (4, 0.0)
    assert weighted["offline_fraction"]["effective_sample_size"] == pytest.approx((2 * 3) ** 2 / (2 * 5))
    compared = weighted["compared_with_first"]["offline_fraction"]
    assert compared["pairs"] == 2
    assert compared["difference"]["estimate"] == pytest.approx(3 / 16 - 0.2)
    unweighted, with_weights = read_record(tmp_path).cells
    outages = [row for row in _silver(tmp_path, "outages") if (row["cell"], row["trial"]) == (with_weights, 0)]
    assert [(row["start_ms"], row["failover_ms"], row["ended"], row["weight"]) for row in outages] == [
        (1_000, 1_500, True, 1.0),
        (9_000, 1_000, False, pytest.approx(2.0)),
    ]
    losses = [row for row in _silver(tmp_path, "losses") if (row["cell"], row["trial"]) == (unweighted, 0)]
    assert [row["records"] for row in losses] == [3, 4]


def _silver(out: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table of `silver/`, in order of time."""
    rows = pq.read_table(out / "silver" / name).to_pylist()
    return sorted(rows, key=lambda row: row.get("start_ms", row.get("time_ms")))


def test_numbers_equal_those_computed_in_python(analysed: Path) -> None:
    cells = cells_in(analysed)
    plan = read_record(analysed).study
    assert [cell["generation"] for cell in cells] == ["kip-497", "kip-966"]
    found: list[dict[str, Sums]] = []
    for index, cell in enumerate(cells):
        trials = pq.read_table(analysed / file_of(analysed, index)).to_pydict()
        episodes = assumed_sizes(plan.cells[index].parameters)
        found.append({})
        assert cell["trials"] == TRIALS
        for metric in METRICS:
            values, events = trials[metric.column], trials[f"{metric.column}_events"]
            found[index][metric.name] = Sums.of(values, trials["exposure"], sum(events))
            assert cell[metric.name]["estimate"] == pytest.approx(found[index][metric.name].ratio)
            if metric.name != "lost_records_per_year":
                expected = asdict(interval(metric, found[index][metric.name], episodes))
                assert cell[metric.name] == pytest.approx(expected)
        outages = pq.read_table(
            analysed / "silver" / "outages", filters=[("cell", "=", read_record(analysed).cells[index])]
        )
        lengths = outages["failover_ms"].to_pylist()
        times = cell["failover_ms"]
        assert times["outages"] == len(lengths) == TRIALS
        assert times["p50_ci_low"] < times["p50"] < times["p50_ci_high"]
        assert times["p50"] == statistics.median_low(lengths)
        assert times["max"] == max(lengths)
        assert times["p99_ci_high"] is None
        assert cell["stall_fraction"]["estimate"] == pytest.approx(1_000 / 7_200_000 if index == 0 else 0)


def test_trials_of_one_number_are_pairs(analysed: Path) -> None:
    first, second = (pq.read_table(analysed / file_of(analysed, index)).to_pydict() for index in (0, 1))
    assert first["seed"] == second["seed"]
    compared = cells_in(analysed)[1]["compared_with_first"]
    assert compared["loss_rate"]["pairs"] == TRIALS
    assert compared["loss_rate"]["difference"]["estimate"] == 0.0
    assert compared["loss_rate"]["identical"]
    assert not compared["stall_fraction"]["identical"]
    metric = next(metric for metric in METRICS if metric.name == "stall_fraction")
    mine, its = (Sums.of(each["stalled"], each["exposure"], sum(each["stalled_events"])) for each in (second, first))
    episodes = assumed_sizes(read_record(analysed).study.cells[0].parameters)
    products = Products(TRIALS, 0.0, 0.0, sum(first["stalled"]) * first["exposure"][0], its.exposure_squares, 0)
    expected = compare(mine, its, limits(metric, mine, episodes), limits(metric, its, episodes), products)
    assert compared["stall_fraction"]["difference"] == pytest.approx(asdict(expected.difference))


def test_no_temporary_folder_is_left(analysed: Path) -> None:
    assert not list(analysed.glob(".tmp-*"))
    assert {path.name for path in analysed.iterdir()} >= {"study.yaml", "trace", "trials", "silver", "gold"}


def test_terminated_session_ends_its_jvm(tmp_path: Path) -> None:
    script = """
import os, signal
from experiments.studies.pipeline.java import java_home
from experiments.support.processes import orderly_signals
from experiments.studies.pipeline.session import spark_session
with orderly_signals(), spark_session(java_home(), little=True):
    print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read())
    os.kill(os.getpid(), signal.SIGTERM)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    (jvm,) = ended.stdout.split()
    assert not Path(f"/proc/{jvm}").exists()
    assert not processes_naming([tmp_path])


def test_report_is_written_from_the_directory_alone(analysed: Path) -> None:
    page = write_report(analysed).read_text()
    assert "kip-966" in page
    assert 'id="plot-times-failover"' in page
    (analysed / "gold" / "cells.json").rename(analysed / "gold" / "kept.json")
    try:
        with pytest.raises(InputError, match="analyze"):
            write_report(analysed)
    finally:
        (analysed / "gold" / "kept.json").rename(analysed / "gold" / "cells.json")


def test_failed_analysis_shows_its_output_and_keeps_the_previous_gold(
    analysed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (analysed / "gold" / "cells.json").read_bytes()
    monkeypatch.setattr(analysis, "java_home", lambda: Path("/nowhere"))
    with pytest.raises(PipelineFailed, match="nowhere"):
        analyze(analysed)
    assert (analysed / "gold" / "cells.json").read_bytes() == before


@pytest.mark.usefixtures("in_session")
def test_damaged_and_incomplete_sweeps_are_refused(tmp_path: Path) -> None:
    swept(tmp_path, fake_trial)
    path = tmp_path / file_of(tmp_path, 1, "trace")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(PipelineFailed, match="cell 1: found no trial that can be read"):
        analyze(tmp_path)
    (tmp_path / "trials" / f"_{path.stem}.sha256").unlink()
    with pytest.raises(InputError, match=r"cell 1 \(.*\): found no complete trial"):
        analyze(tmp_path)
    assert not (tmp_path / "gold").exists()
