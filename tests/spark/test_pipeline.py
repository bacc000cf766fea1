"""The pipeline on a real JVM: a trace written by hand, a study computed again in Python, and no leftovers."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters, StudyPlan
from experiments.studies.estimation.statistics import Moments, fraction, rate
from experiments.studies.pipeline import analysis
from experiments.studies.pipeline.analysis import PipelineFailed, analyze
from experiments.studies.report.render import write_report
from experiments.studies.sweeps.batches import batch_name
from experiments.studies.sweeps.output import read_record
from experiments.studies.trace.schema import TraceRow, TrialResult
from experiments.studies.trials.batch import Batch, Trial
from experiments.support.errors import InputError
from tests.spark.trial_helpers import claimed, fake_trial, fill

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


def processes_naming(text: Path) -> list[str]:
    """Command lines of running processes in which `text` occurs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [line] if str(text) in line else []
    return found


def by_hand(parameters: CellParameters, seed: int) -> TrialResult:
    """Ten seconds with a case for each rule of silver."""

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
    return TrialResult(rows, "hash", len(rows))


@pytest.fixture(scope="module")
def spark_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of temporary files of Spark's processes; their command lines name it."""
    folder = tmp_path_factory.mktemp("spark-files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory, spark_files: Path) -> Path:
    out = tmp_path_factory.mktemp("analysed")
    swept(out, fake_trial)
    analyze(out)
    return out


def test_numbers_of_a_trace_written_by_hand(tmp_path: Path) -> None:
    swept(tmp_path, by_hand, trials=1, duration="10s", base={}, sweep={"generation": ["kip-966"]})
    (estimates,) = analyze(tmp_path)
    (cell,) = cells_in(tmp_path)
    assert estimates.document({"generation": "kip-966"}) == cell
    assert cell["offline_fraction"]["estimate"] == pytest.approx(0.2)
    assert cell["stall_fraction"]["estimate"] == pytest.approx(0.05)
    assert cell["reject_fraction"]["estimate"] == pytest.approx(0.35)
    assert cell["failover_ms"] == {"p50": 1_500, "p99": 1_500, "max": 1_500}
    years = 10_000 / (365 * 86_400_000)
    assert cell["partition_years"] == pytest.approx(years)
    assert cell["loss_rate"]["estimate"] == pytest.approx(2 / years)
    assert cell["lost_records_per_year"]["estimate"] == pytest.approx(7 / years)
    assert cell["high_watermark_regressions_per_year"]["estimate"] == pytest.approx(1 / years)
    assert cell["unclean_recoveries_per_year"]["estimate"] == 0
    outages = pq.read_table(tmp_path / "silver" / "outages").sort_by("start_ms").to_pylist()
    assert [(row["start_ms"], row["failover_ms"], row["ended"]) for row in outages] == [
        (1_000, 1_500, True),
        (9_000, 1_000, False),
    ]
    losses = pq.read_table(tmp_path / "silver" / "losses").sort_by("time_ms").to_pylist()
    assert [row["records"] for row in losses] == [3, 4]


def test_numbers_equal_those_computed_in_python(analysed: Path) -> None:
    cells = cells_in(analysed)
    assert [cell["generation"] for cell in cells] == ["kip-497", "kip-966"]
    for index, cell in enumerate(cells):
        trials = pq.read_table(analysed / file_of(analysed, index))
        years = TRIALS * 2 / (365 * 24)
        assert cell["trials"] == TRIALS
        assert cell["loss_rate"] == pytest.approx(asdict(rate(Moments.of(trials["losses"].to_pylist()), years)))
        per_trial = pq.read_table(analysed / "gold" / "trials", filters=[("cell", "=", index)])
        assert sorted(per_trial["lost_records"].to_pylist()) == sorted(trials["lost_records"].to_pylist())
        assert cell["offline_fraction"] == pytest.approx(asdict(fraction(Moments.of(per_trial["offline"].to_pylist()))))
        outages = pq.read_table(analysed / "silver" / "outages", filters=[("cell", "=", index)])
        lengths = outages["failover_ms"].to_pylist()
        assert len(lengths) == TRIALS
        assert cell["failover_ms"]["p50"] == statistics.median(lengths)
        assert cell["failover_ms"]["max"] == max(lengths)
        assert cell["stall_fraction"]["estimate"] == pytest.approx(1_000 / 7_200_000 if index == 0 else 0)


def test_no_process_and_no_temporary_folder_is_left(analysed: Path, spark_files: Path) -> None:
    assert not processes_naming(spark_files)
    assert not list(spark_files.iterdir())
    assert not list(analysed.glob(".tmp-*"))
    assert {path.name for path in analysed.iterdir()} >= {"study.yaml", "trace", "trials", "silver", "gold"}


def test_terminated_session_ends_its_jvm(spark_files: Path) -> None:
    script = """
import os, signal
from experiments.studies.pipeline.java import java_home
from experiments.engines.ray.session import orderly_signals
from experiments.studies.pipeline.session import spark_session
with orderly_signals(), spark_session(java_home()):
    print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read())
    os.kill(os.getpid(), signal.SIGTERM)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    (jvm,) = ended.stdout.split()
    assert not Path(f"/proc/{jvm}").exists()
    assert not processes_naming(spark_files)


def test_report_is_written_from_the_directory_alone(analysed: Path) -> None:
    page = write_report(analysed).read_text()
    assert "kip-966" in page
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


def test_damaged_and_incomplete_sweeps_are_refused(tmp_path: Path) -> None:
    swept(tmp_path, fake_trial)
    path = tmp_path / file_of(tmp_path, 1, "trace")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged Parquet file"):
        analyze(tmp_path)
    (tmp_path / "trials" / f"_{path.stem}.sha256").unlink()
    with pytest.raises(InputError, match=f"{TRIALS} missing"):
        analyze(tmp_path)
    assert not (tmp_path / "gold").exists()
