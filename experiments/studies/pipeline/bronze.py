"""Bronze: the committed batches as DataFrames, in which the cells of the newest study have their indexes.

Files name a cell by its digest (`sweeps/identity.py`). The directory may hold more than the study needs: trials of
other cells, whose files are not read, and trials above the number that the study asks for, which are left out here, so
that the same study gives the same numbers whatever was run before it.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from experiments.studies.sweeps.batches import file_names
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.sweeps.storage import Folder
from experiments.studies.sweeps.sweep import needed_batches


def read_batches(spark: SparkSession, out: Path, record: StudyRecord) -> tuple[DataFrame, DataFrame]:
    """The rows of `trace/` and of `trials/` that the study is analysed by; `cell` is the index of the cell."""
    batches, schedule = needed_batches(record, Folder(out))
    rows = [(digest, index, schedule.cells[index].target) for index, digest in enumerate(record.cells)]
    cells = F.broadcast(spark.createDataFrame(rows, "digest string, cell int, target int"))
    paths = zip(*map(file_names, batches), strict=True)
    trace, trials = (spark.read.parquet(*(str(out / name) for name in names)) for names in paths)
    return _numbered(trace, cells), _numbered(trials, cells)


def _numbered(frame: DataFrame, cells: DataFrame) -> DataFrame:
    rest = [name for name in frame.columns if name != "cell"]
    return (
        frame.withColumnRenamed("cell", "digest")
        .join(cells, "digest")
        .where(F.col("trial") < F.col("target"))
        .select("cell", *rest)
    )
