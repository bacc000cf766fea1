"""The pipeline as a process of its own: `python -m experiments.studies.pipeline DIR JAVA_HOME`.

Reads the committed batches of DIR (checked by the caller), writes `silver/` and `gold/` with `gold/cells.json`. Each
folder takes its place as a whole, gold last.
"""

from __future__ import annotations

import json
from pathlib import Path

import typer
from pyspark.sql import DataFrame, SparkSession

from experiments.engines.ray.session import orderly_signals
from experiments.studies.metrics import cell_document
from experiments.studies.output import (
    StudyRecord,
    batch_paths,
    batches_on_disk,
    read_record,
    replaced_folder,
    write_text,
)
from experiments.studies.pipeline import gold, silver
from experiments.studies.pipeline.session import spark_session


def pipeline(spark: SparkSession, out: Path, record: StudyRecord) -> None:
    """Trace to silver to gold, on disk."""
    trace, trials = (spark.read.parquet(*map(str, paths)) for paths in batch_paths(out, batches_on_disk(out)))
    with replaced_folder(out / "silver") as folder:
        intervals = _stored(silver.intervals(trace, trials), folder / "intervals")
        _stored(silver.outages(intervals, trials), folder / "outages")
        _stored(silver.losses(trace), folder / "losses")
    stored = {name: spark.read.parquet(str(out / "silver" / name)) for name in ("intervals", "outages")}
    with replaced_folder(out / "gold") as folder:
        per_trial = _stored(gold.per_trial(trace, trials, stored["intervals"]), folder / "trials")
        per_cell = _stored(gold.per_cell(per_trial, stored["outages"]), folder / "cells")
        rows = {row["cell"]: row.asDict() for row in per_cell.collect()}
        document = [cell_document(cell, rows[cell.index]) for cell in record.study.cells]
        write_text(folder / "cells.json", json.dumps(document, indent=1) + "\n")


def _stored(frame: DataFrame, folder: Path) -> DataFrame:
    """Writes the frame, and reads it back so that what follows starts from what is on disk."""
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
