"""Bronze: the batches of a study as they were written, those that are damaged apart.

A batch is checked once, in the executors, a share of the batches in each task: digests, columns, trials, and the order
of the rows of its trace (`sweeps/batches.py`). A batch that fails is *quarantined*: it is not read, and its file and
the reason are in `gold/quarantine.json`, in the progress and in the report. The tasks read through the same storage
as the sweep wrote through (any fsspec URL), and so does what follows (`files.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from experiments.studies.design.model import CellParameters
from experiments.studies.sweeps.batches import check_batch, file_names
from experiments.studies.sweeps.storage import StorageFailed, Store
from experiments.studies.trials.batch import Batch
from experiments.support.errors import InputError

BATCHES_PER_TASK = 50
LISTED = "digest string, first int, stop int, partitions int, acks_all boolean"
CHECKED = "digest string, first int, stop int, bytes long, rows long, file string, reason string"


class Checked(NamedTuple):
    """`size`: bytes of the trace; `rows`: of the trace. `file`, `reason`: why it is quarantined, None if good."""

    batch: Batch
    size: int
    rows: int
    file: str | None
    reason: str | None


def check_batches(spark: SparkSession, store: Store, batches: Sequence[Batch]) -> list[Checked]:
    """Checks the batches in the executors, in parallel."""
    if not batches:
        return []
    tasks = max(spark.sparkContext.defaultParallelism, len(batches) // BATCHES_PER_TASK)
    listed = spark.createDataFrame(list(batches), "digest string, first int, stop int").repartition(tasks)
    rows = listed.mapInArrow(partial(_check, store), CHECKED).collect()
    found = [Checked(Batch(*row[:3]), row["bytes"], row["rows"], row["file"], row["reason"]) for row in rows]
    return sorted(found, key=lambda checked: checked.batch)


def _check(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one task does: the checks of its batches."""
    for part in parts:
        for digest, first, stop in zip(*(column.to_pylist() for column in part.columns), strict=True):
            size = rows = 0
            file = reason = None
            try:
                size, rows = check_batch(store, Batch(digest, first, stop))
            except InputError as error:
                file, reason = error.source, " ".join(f"{error.field}: {error.found}".removeprefix(": ").split())
            except (StorageFailed, pa.ArrowException) as error:
                file, reason = store.place(file_names(Batch(digest, first, stop))[0]), " ".join(str(error).split())
            columns = zip((digest, first, stop, size, rows, file, reason))
            types = ("string", "int32", "int32", "int64", "int64", "string", "string")
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=[name.split()[0] for name in CHECKED.split(", ")])


def listed(spark: SparkSession, batches: Sequence[Batch], cells: Mapping[str, CellParameters], tasks: int) -> DataFrame:
    """The batches with what `files.write_tables` needs of their cells, given by digest: `LISTED`, in so many tasks."""
    rows = [(*batch, cells[batch.cell].partitions, cells[batch.cell].acks == "all") for batch in batches]
    return spark.createDataFrame(rows, LISTED).repartition(tasks)
