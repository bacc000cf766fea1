"""From the batches of a study to `silver/` and `gold/`: reads and writes the tables that the pure functions connect.

The losses that the simulator counted (`counts`) are checked by joins over tables of silver. An acknowledged record is
lost if a later election cuts the log at or below the record's offset while the record is followed (`cuts`). And
`records` says of each record whether it is lost. All three have to agree in every partition of every trial
(docs/pipeline.md).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from experiments.studies.design.study import metrics_of
from experiments.studies.estimation import why
from experiments.studies.estimation.clusters import cluster_document
from experiments.studies.estimation.controlled import controlled, total_of
from experiments.studies.estimation.estimates import CellSums, FailoverTimes, estimate_cells
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import Products
from experiments.studies.estimation.times import FAILOVER, KINDS, Quantiles, measured_document
from experiments.studies.pipeline import gold, manifest, queries
from experiments.studies.pipeline.bronze import Checked, Writer, check_batches, listed, run_folder, write_tables
from experiments.studies.pipeline.growth import reweighting_of
from experiments.studies.pipeline.options import GOLD, READING, SILVER_STAGE, STARTING, report
from experiments.studies.pipeline.queries import Asked, Summed, Tables
from experiments.studies.pipeline.tables import NAMES, readme, tables_of
from experiments.studies.sweeps.batches import parquet, trace_bytes
from experiments.studies.sweeps.output import README, StudyRecord, read_record
from experiments.studies.sweeps.storage import Folder, ObjectStore, Store, spark_path, store_at
from experiments.studies.trials.batch import Batch, trial_seed
from experiments.support.atomic import replaced_folder
from experiments.support.errors import InputError

HERE_BYTES = 4 * 2**20
"""Batches whose traces are smaller are checked and made into silver by this process, unless Spark runs elsewhere:
its tasks need a second or two for the start of their own processes."""
ROWS_PER_TASK = 5_000_000
"""So many rows of trace add a partition to the exchanges of gold. Adaptive execution joins those that get little."""
NONE = FailoverTimes(None, None, None)


class LossesDisagree(RuntimeError):
    """The simulator counted other losses than the trace shows: a defect. The message names the trial."""


@dataclass(frozen=True, slots=True)
class Work:
    """The study in `store`, which Spark finds below `root`; its batches, and the trials that each cell rests on.
    `is_local`: whether Spark's tasks run on this machine."""

    store: Store
    root: str
    record: StudyRecord
    batches: Sequence[Batch]
    targets: Sequence[int]
    is_local: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the study's metrics."""
        return tuple(metric.name for metric in metrics_of(self.record.study))

    def size(self, batches: Sequence[Batch]) -> float:
        """The bytes of the traces of batches in a folder; infinite in an object store, where they are not looked up."""
        return trace_bytes(self.store, batches) if isinstance(self.store, Folder) else math.inf

    def is_here(self, batches: Sequence[Batch]) -> bool:
        """Whether these are so little data that this process makes silver of them."""
        return self.is_local and self.size(batches) < HERE_BYTES

    def seed_of(self, cell: int, trial: int) -> int:
        """The seed of a trial."""
        study = self.record.study
        return trial_seed(study.seed, trial, None if study.pairing else study.cells[cell].parameters)


def carry_out(session: Callable[[], SparkSession], asked: Mapping[str, Any], *, is_local: bool = True) -> None:
    """Writes silver, gold and the README of the directory `out`; `asked` as `analysis.work_of` has it. Raises
    InputError if no trial of a cell can be read, LossesDisagree."""
    store, record = store_at(asked["out"]), read_record(asked["out"])
    batches = [Batch(*batch) for batch in asked["batches"]]
    analyse(session, Work(store, spark_path(store), record, batches, asked["targets"], is_local))
    store.write(README, readme(record).encode())


def analyse(session: Callable[[], SparkSession], work: Work) -> None:
    """Trace to silver to gold. `session` waits for Spark, which little data needs for gold only."""
    found = manifest.usable(manifest.read_manifest(work.store), work.batches)
    manifest.remove_unlisted(work.store, found, NAMES)
    report("stage", READING)
    new = [batch for batch in work.batches if batch not in found.batches]
    here = work.is_here(new)
    checked = check_batches(None if here else session(), work.store, new)
    bad = [each for each in checked if each.reason is not None]
    for each in bad:
        report("note", f"{each.file}: quarantined, {each.reason}")
    good = [each for each in checked if each.reason is None]
    _require_trials(work, {*found.batches, *(each.batch for each in good)})
    report("stage", SILVER_STAGE)
    if good:
        _add_run(None if here else session(), work, found.next_run, good)
    little = work.is_here(work.batches)
    tables = Tables(session, work.store, work.root, work.record, work.targets, little)
    with _threads(queries.THREADS if little else 1) as threads:
        if little:
            report("stage", STARTING)
            for name, value in queries.ONE_PARTITION.items():
                session().conf.set(name, value)
            report("stage", GOLD)
        runs = [*found.runs, found.next_run] if good else [*found.runs]
        asked = queries.ask(threads, tables, runs, work.metrics) if little else None
        if good:
            threads.submit(_check_losses, replace(tables, here=here), found.next_run).result()
            run = manifest.AnalysisRun(tuple(each.batch for each in good), sum(each.size for each in good))
            found = _listed(work, manifest.Manifest({**found.runs, found.next_run: run}))
        small, one = manifest.compacted(found)
        if small:
            _compact(session(), work, small, one)
            found = _listed(work, one)
        if asked is None:
            report("stage", GOLD)
            asked = queries.ask(threads, tables, list(found.runs), work.metrics)
        _write_gold(work, asked, bad)


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for queries. After an error none begins; those that run end with the session."""
    found = ThreadPoolExecutor(count)
    try:
        yield found
    finally:
        found.shutdown(wait=False, cancel_futures=True)


def _listed(work: Work, found: manifest.Manifest) -> manifest.Manifest:
    """Makes these the runs of silver, and removes all others."""
    manifest.write_manifest(work.store, found)
    manifest.remove_unlisted(work.store, found, NAMES)
    return found


def _compact(spark: SparkSession, work: Work, small: Sequence[int], one: manifest.Manifest) -> None:
    """Writes the last run of `one`, which has the rows of the runs `small`, in files of about `FILE_BYTES`."""
    number = max(one.runs)
    files = 1 + one.runs[number].size // manifest.FILE_BYTES
    for name in work.store.names("silver"):
        if name not in NAMES:
            continue
        parts = (spark.read.parquet(f"{work.root}/{run_folder(name, run)}") for run in small)
        rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
        rows.coalesce(files).write.mode("overwrite").parquet(f"{work.root}/{run_folder(name, number)}")


def _require_trials(work: Work, good: set[Batch]) -> None:
    """Raises InputError for a cell that has no trial in a good batch."""
    for index, digest in enumerate(work.record.cells):
        if not any(batch.cell == digest for batch in good):
            allowed = "at least one finished trial in each cell; run `isray study sweep` again"
            raise InputError(work.store.place(), f"cell {index}", "no trial that can be read", allowed)


def _add_run(spark: SparkSession | None, work: Work, run: int, good: Sequence[Checked]) -> None:
    """Writes the run's folders of silver, in Spark's tasks; in this process without Spark."""
    cells = dict(zip(work.record.cells, (cell.parameters for cell in work.record.study.cells), strict=True))
    batches = listed([each.batch for each in good], cells)
    clusters = {digest: parameters.cluster for digest, parameters in cells.items()}
    makers = {name: table.rows for name, table in tables_of(work.record).items()}
    writer = Writer(work.store, run, makers, clusters)
    if spark is None:
        names = writer.write(batches)
    else:
        tasks = sum(each.rows for each in good) // ROWS_PER_TASK
        if tasks > int(str(spark.conf.get("spark.sql.shuffle.partitions"))):
            spark.conf.set("spark.sql.shuffle.partitions", tasks)
        files = max(spark.sparkContext.defaultParallelism, sum(each.size for each in good) // manifest.FILE_BYTES)
        names = write_tables(spark, files, batches, writer)
    for folder in (run_folder(table, run) for table in makers):
        for name in work.store.names(folder):
            if f"{folder}/{name}" not in names:  # left by an attempt of a task that was killed
                work.store.remove(f"{folder}/{name}")


def _check_losses(tables: Tables, run: int) -> None:
    """Raises LossesDisagree if the simulator counted other losses in a trial of the run than its records show."""
    found = disagreements(*(tables.stored(name, [run]) for name in ("records", "cuts", "counts")))
    for row in found.orderBy("cell", "trial", "partition").limit(1).collect():
        raise LossesDisagree(
            f"trial {row['trial']} of cell {row['cell']}, partition {row['partition']}: the simulator counted "
            f"{row['counted']} lost records, elections cut {row['cut']} off, silver/records has {row['recorded']}"
        )


def _write_gold(work: Work, asked: Asked, bad: Sequence[Checked]) -> None:
    """Writes `gold/`, `cells.json` last."""
    study, summed = work.record.study, asked.summed.result()
    with _gold_folder(work) as store:
        by_cell = defaultdict[int, list[dict[str, Any]]](list)
        for row in _write_table(store, summed.cells, "cells"):
            by_cell[row["cell"]].append(row)
        timed = asked.timed.result()
        _write_table(store, timed.distributions, "distributions")
        cells = []
        for cell, (row, *others) in sorted(by_cell.items()):
            sums = {each["metric"]: _read(each, Sums) for each in (row, *others)}
            failovers, changes = timed.quantiles.get((cell, FAILOVER), NONE), row["states"] / row["partitions"]
            controls = {metric: total_of(each) for (index, metric), each in summed.folds.items() if index == cell}
            sums |= {metric: controlled(sums[metric], each) for metric, each in controls.items()}
            cells.append(CellSums(row["trials"], row["years"], sums, failovers, changes, controls))

        reweighting = () if asked.harms is None else reweighting_of(study, asked.harms.result())
        estimates = estimate_cells(study, cells, _ProductsWith(store, summed, work), reweighting)
        observed = defaultdict[int, dict[str, Quantiles]](dict)
        for row in _write_table(store, asked.measured.result(), "measured"):
            observed[row["cell"]][row["kind"]] = Quantiles(row["p50"], row["p99"], row["max"])
        attributed = why.attributions(_write_table(store, asked.reasons.result(), "reasons"), work.seed_of)
        documents = [
            values.document(cell.swept)
            | cluster_document(cell.parameters, values.estimates)
            | {
                f"{kind}_ms": asdict(timed.quantiles.get((cell.index, kind), NONE))
                for kind in KINDS
                if kind != FAILOVER
            }
            | measured_document(observed[cell.index])
            | {"reasons": why.documents(attributed[cell.index])}
            for cell, values in zip(study.cells, estimates, strict=True)
        ]
        quarantined = [{"file": each.file, "reason": each.reason, "trials": list(each.batch[1:])} for each in bad]
        store.write("quarantine.json", (json.dumps(quarantined, indent=1) + "\n").encode())
        store.write("cells.json", (json.dumps(documents, indent=1) + "\n").encode())


def _write_table(store: Store, rows: pa.Table, name: str) -> list[dict[str, Any]]:
    """Writes a table of gold in its order; returns its rows. `name`: its folder below that of gold."""
    rows = rows.sort_by(gold.ORDER[name.partition("/")[0]])
    store.write(f"{name}/part-00000.parquet", parquet(rows))
    return list(rows.to_pylist())


class _ProductsWith:
    """The products of the other cells' trials with those of a reference, which it writes when they are asked for."""

    def __init__(self, store: Store, summed: Summed, work: Work) -> None:
        self._store, self._summed, self._metrics = store, summed, work.metrics
        self._cells = len(work.record.study.cells)

    def __call__(self, reference: int) -> dict[tuple[int, str], Products]:
        rows = self._summed.products
        if rows is None:
            rows = gold.products(self._summed.trials, [reference], self._cells, self._metrics).toArrow()
        rows = gold.of_reference(rows, reference, self._cells)
        found = _write_table(self._store, rows, f"pairs/reference={reference}")
        return {(row["cell"], row["metric"]): _read(row, Products) for row in found}


@contextmanager
def _gold_folder(work: Work) -> Iterator[Store]:
    """Where gold is written: beside the old one, or in place in an object store."""
    if isinstance(work.store, Folder):
        with replaced_folder(work.store.root / "gold") as folder:
            yield Folder(folder)
    else:
        yield ObjectStore(work.store.place("gold"))


T = TypeVar("T", Sums, Products)


def _read(row: Mapping[str, Any], kind: type[T]) -> T:
    """The dataclass with the row's columns as its fields."""
    return kind(**{field.name: row[field.name] for field in fields(kind) if field.name in row})


PARTITION = ("cell", "trial", "partition")


def disagreements(records: DataFrame, cuts: DataFrame, counts: DataFrame) -> DataFrame:
    """One row per partition of a trial in which the numbers of lost records differ: cell, trial, partition, `counted`
    by the simulator, `cut` off by elections, `recorded` as lost in `records`. The arguments are the tables of silver
    of these names; a partition whose records were not followed has no row in `counts` and is left out."""
    acknowledged = records.where("acknowledged_ms IS NOT NULL").alias("record")
    same = " AND ".join(f"record.{name} = cut.{name}" for name in PARTITION)
    later = "cut.seq > record.seq AND cut.offset <= record.offset AND cut.since <= record.seq"
    cut = acknowledged.join(cuts.alias("cut"), F.expr(f"{same} AND {later}"), "left_semi")
    lost = acknowledged.where("lost_ms IS NOT NULL")
    sides = (("lost AS counted", counts), ("1L AS cut", cut), ("1L AS recorded", lost))
    rows = (frame.selectExpr(*PARTITION, column) for column, frame in sides)
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows)
    sums = (F.expr(f"coalesce(sum({name}), 0L) AS {name}") for name in ("cut", "recorded"))
    found = together.groupBy(*PARTITION).agg(F.expr("sum(counted) AS counted"), *sums)
    return found.where("counted != cut OR counted != recorded")
