"""The pipeline as a process of its own: `python -m experiments.studies.pipeline DIR JAVA_HOME`.

Reads the committed batches of DIR (which the caller has checked), writes `silver/`, then `gold/` with
`gold/cells.json`. Each folder replaces the one before as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import typer
from pyspark.sql import DataFrame, Row, SparkSession

from experiments.engines.ray.session import orderly_signals
from experiments.studies.estimation.estimates import CellSums, FailoverTimes, estimate_cells
from experiments.studies.estimation.measured import Quantiles, measured_document
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import Products
from experiments.studies.pipeline import custom, gold, measured, silver
from experiments.studies.pipeline.bronze import read_batches
from experiments.studies.pipeline.failover import NONE, failover_times
from experiments.studies.pipeline.session import spark_session
from experiments.studies.pipeline.stages import GOLD, READING, SILVER, report_stage
from experiments.studies.sweeps.atomic import replaced_folder, write_text
from experiments.studies.sweeps.output import StudyRecord, read_record


def pipeline(spark: SparkSession, out: Path, record: StudyRecord) -> None:
    """Trace to silver to gold, on disk."""
    report_stage(READING)
    trace, trials = read_batches(spark, out, record)
    report_stage(SILVER)
    with replaced_folder(out / "silver") as folder:
        intervals = _stored(silver.intervals(trace), folder / "intervals")
        _stored(silver.outages(intervals, trials), folder / "outages")
        _stored(silver.losses(trace), folder / "losses")
    stored = {name: spark.read.parquet(str(out / "silver" / name)) for name in ("intervals", "outages")}
    report_stage(GOLD)
    with replaced_folder(out / "gold") as folder:
        measured_trials = gold.per_trial(trace, trials, stored["intervals"])
        if record.study.functions is not None:
            own = custom.per_trial(measured_trials, trace, trials, record.study.functions.metrics)
            measured_trials = measured_trials.unionByName(own)
        per_trial = _stored(measured_trials, folder / "trials")
        per_cell = _stored(gold.per_cell(per_trial), folder / "cells")
        changes = {row["cell"]: row["changes"] for row in gold.changes(trace, trials).collect()}
        cells = _cell_sums(per_cell, failover_times(stored["outages"]), changes)

        def products_with(reference: int) -> dict[tuple[int, str], Products]:
            products = gold.products(per_trial, reference).collect()
            return {(row["cell"], row["metric"]): _read(row, Products) for row in products}

        estimates = estimate_cells(record.study, cells, products_with)
        times = _quantiles(_stored(measured.per_cell(trace), folder / "measured"))
        documents = [
            values.document(cell.swept) | measured_document(times.get(cell.index, {}))
            for cell, values in zip(record.study.cells, estimates, strict=True)
        ]
        write_text(folder / "cells.json", json.dumps(documents, indent=1) + "\n")


def _cell_sums(
    per_cell: DataFrame, failover: Mapping[int, FailoverTimes], changes: Mapping[int, float]
) -> list[CellSums]:
    """The rows of `gold/cells`, typed, in the order of the cells."""
    sums: dict[int, dict[str, Sums]] = {}
    for row in per_cell.collect():
        sums.setdefault(row["cell"], {})[row["metric"]] = _read(row, Sums)
    found = []
    for cell, by_metric in sorted(sums.items()):
        any_metric = next(iter(by_metric.values()))
        times = failover.get(cell, NONE)
        found.append(CellSums(any_metric.trials, any_metric.years, by_metric, times, changes[cell]))
    return found


T = TypeVar("T", Sums, Products)


def _read(row: Row, kind: type[T]) -> T:
    """The dataclass whose fields are columns of the row."""
    return kind(**{field.name: row[field.name] for field in fields(kind)})


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
