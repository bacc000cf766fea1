"""What Spark's tasks do with batches: bronze checks them, silver makes its files of them.

A batch is checked once (`sweeps/batches.py`). One that fails is *quarantined*: it is not read, and its file and the
reason are in `gold/quarantine.json`, in the progress and in the report.

For silver a task reads each of its batches once, makes the rows of all tables of it, and writes one file per table when
it has seen all of its batches. A file is named after the task's partition, which Spark makes of the same batches if it
runs the task again: another attempt replaces the file by one of the same content. Nothing reads the files before the
manifest lists their run (`manifest.py`).

Where there is little data, the process of the driver does the same itself, without a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import SparkSession

from experiments.studies.design.cluster import Cluster
from experiments.studies.design.model import CellParameters
from experiments.studies.pipeline.rows import Trace, read_batch
from experiments.studies.pipeline.schemas import TYPES, ddl
from experiments.studies.sweeps.batches import check_batch, file_names
from experiments.studies.sweeps.storage import StorageFailed, Store
from experiments.studies.trials.batch import Batch
from experiments.support.errors import InputError

BATCHES_PER_TASK = 50
BATCH = {"digest": "string", "first": "int", "stop": "int"}
LISTED = BATCH | {"partitions": "int", "acks_all": "boolean"}
CHECKED = BATCH | {"bytes": "bigint", "rows": "bigint", "file": "string", "reason": "string"}


class Checked(NamedTuple):
    """`size`: bytes of the trace; `rows`: of the trace. `file`, `reason`: why it is quarantined, None if good."""

    batch: Batch
    size: int
    rows: int
    file: str | None
    reason: str | None


def check_batches(spark: SparkSession | None, store: Store, batches: Sequence[Batch]) -> list[Checked]:
    """Checks the batches in the executors, in parallel; in this process without Spark."""
    if spark is None or not batches:
        return [_checked(store, batch) for batch in batches]
    tasks = max(spark.sparkContext.defaultParallelism, len(batches) // BATCHES_PER_TASK)
    listed = spark.createDataFrame(list(batches), ddl(BATCH)).repartition(tasks)
    rows = listed.mapInArrow(partial(_check, store), ddl(CHECKED)).collect()
    found = [Checked(Batch(*row[:3]), row["bytes"], row["rows"], row["file"], row["reason"]) for row in rows]
    return sorted(found, key=lambda checked: checked.batch)


def _rows(parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for part in parts:
        yield from zip(*(column.to_pylist() for column in part.columns), strict=True)


def _check(store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one task does: the checks of its batches."""
    for row in _rows(parts):
        found = _checked(store, Batch(*row))
        values = zip((*found.batch, *found[1:]), CHECKED.values(), strict=True)
        yield pa.RecordBatch.from_arrays([pa.array([value], TYPES[kind]) for value, kind in values], names=[*CHECKED])


def _checked(store: Store, batch: Batch) -> Checked:
    try:
        return Checked(batch, *check_batch(store, batch), None, None)
    except InputError as error:
        file, reason = error.source, " ".join(f"{error.field}: {error.found}".removeprefix(": ").split())
    except (StorageFailed, pa.ArrowException) as error:
        file, reason = store.place(file_names(batch)[0]), " ".join(str(error).split())
    return Checked(batch, 0, 0, file, reason)


Listed = tuple[str, int, int, int, bool]
"""A batch with what its tables need of its cell: `LISTED`."""


def listed(batches: Sequence[Batch], cells: Mapping[str, CellParameters]) -> list[Listed]:
    """The batches with what `write_tables` needs of their cells, given by digest."""
    return [(*batch, len(cells[batch.cell].counts), cells[batch.cell].acks == "all") for batch in batches]


Makers = Mapping[str, Callable[[Trace], pa.Table]]
"""Functions from the trace of a batch to the rows of a table, by the names of the tables."""

GROUP_ROWS = 131_072
"""Rows of a file's row groups, at least; the last one may have fewer."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the tables of batches, which were checked, as a run of silver. `clusters`: those of the cells, by
    digest."""

    store: Store
    run: int
    makers: Makers
    clusters: Mapping[str, Cluster | None]

    def write(self, batches: Iterable[Sequence[Any]], part: int = 0) -> list[str]:
        """Reads batches as `listed`, writes a file per table, returns the names of the files."""
        files: dict[str, TableFile] = {}
        for cell, first, stop, partitions, acks_all in batches:
            trace = read_batch(self.store, Batch(cell, first, stop), partitions, acks_all, self.clusters[cell])
            for table, make in self.makers.items():
                rows = make(trace)
                if table not in files:
                    files[table] = TableFile(rows.schema)
                files[table].add(rows)
        names = [f"{run_folder(table, self.run)}/part-{part:05d}.parquet" for table in files]
        for name, file in zip(names, files.values(), strict=True):
            self.store.write(name, file.content())
        return names


def write_tables(spark: SparkSession, tasks: int, batches: Sequence[Listed], writer: Writer) -> list[str]:
    """Has `tasks` tasks of Spark write the batches, no row being exchanged between them; returns the names of the
    files."""
    frame = spark.createDataFrame(list(batches), ddl(LISTED)).repartition(tasks)
    rows = frame.mapInArrow(partial(_write, writer), "name string").collect()
    return sorted(row["name"] for row in rows)


def run_folder(table: str, run: int) -> str:
    """The folder of a table's run within the study's directory."""
    return f"silver/{table}/run={run}"


class TableFile:
    """A Parquet file in memory that grows batch by batch: row groups, and the rows of less than one to come."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Adds the rows of a batch."""
        self._waiting.append(rows)
        self._rows += len(rows)
        if self._rows >= GROUP_ROWS:
            self._write_group()

    def content(self) -> memoryview:
        """The whole file; ends it."""
        self._write_group()
        self._writer.close()
        return memoryview(self._sink.getvalue())

    def _write_group(self) -> None:
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._rows = [], 0


def _write(writer: Writer, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one task does: writes the files of its batches, yields their names."""
    context = TaskContext.get()
    assert context is not None
    names = writer.write(_rows(parts), context.partitionId())
    yield pa.RecordBatch.from_arrays([pa.array(names, pa.string())], names=["name"])
