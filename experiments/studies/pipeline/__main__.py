"""The pipeline as a process of its own: `python -m experiments.studies.pipeline DIR JAVA_HOME`.

Reads the committed batches of DIR (which the caller has checked), writes `silver/`, then `gold/` with
`gold/cells.json`. Each folder replaces the one before as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from pyspark.sql import DataFrame, SparkSession

from experiments.engines.ray.session import orderly_signals
from experiments.studies.estimation.estimates import CellSums, FailoverTimes, estimate
from experiments.studies.estimation.measured import Quantiles, measured_document
from experiments.studies.estimation.statistics import Moments
from experiments.studies.pipeline import gold, measured, silver
from experiments.studies.pipeline.bronze import read_batches
from experiments.studies.pipeline.session import spark_session
from experiments.studies.pipeline.stages import GOLD, READING, SILVER, report_stage
from experiments.studies.sweeps.atomic import replaced_folder, write_text
from experiments.studies.sweeps.output import StudyRecord, read_record
from experiments.studies.trace.metrics import METRICS


def pipeline(spark: SparkSession, out: Path, record: StudyRecord) -> None:
    """Trace to silver to gold, on disk."""
    report_stage(READING)
    trace, trials = read_batches(spark, out, record)
    report_stage(SILVER)
    with replaced_folder(out / "silver") as folder:
        intervals = _stored(silver.intervals(trace, trials), folder / "intervals")
        _stored(silver.outages(intervals, trials), folder / "outages")
        _stored(silver.losses(trace), folder / "losses")
    stored = {name: spark.read.parquet(str(out / "silver" / name)) for name in ("intervals", "outages")}
    report_stage(GOLD)
    with replaced_folder(out / "gold") as folder:
        per_trial = _stored(gold.per_trial(trace, trials, stored["intervals"]), folder / "trials")
        per_cell = _stored(gold.per_cell(per_trial, stored["outages"]), folder / "cells")
        sums = {row["cell"]: _sums(row.asDict()) for row in per_cell.collect()}
        times = _quantiles(_stored(measured.per_cell(trace), folder / "measured"))
        documents = [
            estimate(sums[cell.index]).document(cell.swept) | measured_document(times.get(cell.index, {}))
            for cell in record.study.cells
        ]
        write_text(folder / "cells.json", json.dumps(documents, indent=1) + "\n")


def _sums(row: Mapping[str, Any]) -> CellSums:
    """A row of `gold/cells`, typed."""
    return CellSums(
        trials=row["trials"],
        partition_years=row["partition_years"],
        moments={
            metric.column: Moments(row["trials"], row[f"{metric.column}_sum"], row[f"{metric.column}_squares"])
            for metric in METRICS
        },
        loss_size_squares=row["loss_size_squares"],
        failover_ms=FailoverTimes(*(row[f"failover_{name}_ms"] for name in ("p50", "p99", "max"))),
    )


def _quantiles(frame: DataFrame) -> dict[int, dict[str, Quantiles]]:
    """The rows of `gold/measured`, typed, by cell and kind."""
    found: dict[int, dict[str, Quantiles]] = {}
    for row in frame.collect():
        found.setdefault(row["cell"], {})[row["kind"]] = Quantiles(row["p50"], row["p99"], row["max"])
    return found


def _stored(frame: DataFrame, folder: Path) -> DataFrame:
    """Writes the frame and reads it back, so that the next step starts from the files."""
    frame.coalesce(1).write.parquet(str(folder))
    return frame.sparkSession.read.parquet(str(folder))


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(out: Path, java_home: Path) -> None:
    """Analyses the study in OUT on the Java in JAVA_HOME."""
    with orderly_signals(), spark_session(java_home) as spark:
        pipeline(spark, out, read_record(out))


if __name__ == "__main__":
    app()
