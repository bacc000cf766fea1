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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from experiments.studies.design.estimator import choose
from experiments.studies.design.study import metrics_of
from experiments.studies.estimation import why
from experiments.studies.estimation.clusters import cluster_document
from experiments.studies.estimation.controlled import controlled, total_of
from experiments.studies.estimation.estimates import CellSums, FailoverTimes, estimate_cells
from experiments.studies.estimation.growth import Reweighting
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import Products
from experiments.studies.estimation.times import CATCH_UP, FAILOVER, KINDS, RECOVERED, Quantiles, measured_document
from experiments.studies.pipeline import gold, manifest
from experiments.studies.pipeline.bronze import Checked, Writer, check_batches, listed, run_folder, write_tables
from experiments.studies.pipeline.controls import control_sums, controlled_trials
from experiments.studies.pipeline.growth import TABLE as HARMS
from experiments.studies.pipeline.growth import reweighting_of
from experiments.studies.pipeline.options import GOLD, READING, SILVER_STAGE, report
from experiments.studies.pipeline.schemas import ddl, digests
from experiments.studies.pipeline.tables import NAMES, tables_of
from experiments.studies.sweeps.batches import parquet, trace_bytes
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.sweeps.storage import Folder, ObjectStore, Store
from experiments.studies.trials.batch import Batch, trial_seed
from experiments.support.atomic import replaced_folder
from experiments.support.errors import InputError

HERE_BYTES = 4 * 2**20
"""Batches whose traces are smaller are checked and made into silver by this process, unless Spark runs elsewhere:
its tasks need a second or two for the start of their own processes."""
ROWS_PER_TASK = 5_000_000
"""So many rows of trace add a partition to the exchanges of gold. Adaptive execution joins those that get little."""
AT_ONCE = 6
"""Up to so many cells, the products of all pairs are one query: each query takes its planning."""
NONE = FailoverTimes(None, None, None)


class LossesDisagree(RuntimeError):
    """The simulator counted other losses than the trace shows: a defect. The message names the trial."""


@dataclass(frozen=True, slots=True)
class Work:
    """The study in `store`, which Spark finds below `root`; its batches, and the trials that each cell rests on."""

    store: Store
    root: str
    record: StudyRecord
    batches: Sequence[Batch]
    targets: Sequence[int]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the study's metrics."""
        return tuple(metric.name for metric in metrics_of(self.record.study))

    def size(self, batches: Sequence[Batch]) -> float:
        """The bytes of the traces of batches in a folder; infinite in an object store, where they are not looked up."""
        return trace_bytes(self.store, batches) if isinstance(self.store, Folder) else math.inf

    def seed_of(self, cell: int, trial: int) -> int:
        """The seed of a trial."""
        study = self.record.study
        return trial_seed(study.seed, trial, None if study.pairing else study.cells[cell].parameters)


def analyse(spark: SparkSession, work: Work) -> None:
    """Trace to silver to gold."""
    found = manifest.usable(manifest.read_manifest(work.store), work.batches)
    manifest.remove_unlisted(work.store, found, NAMES)
    report("stage", READING)
    new = [batch for batch in work.batches if batch not in found.batches]
    here = work.size(new) < HERE_BYTES and (spark.sparkContext.master or "").startswith("local")
    checked = check_batches(None if here else spark, work.store, new)
    bad = [each for each in checked if each.reason is not None]
    for each in bad:
        report("note", f"{each.file}: quarantined, {each.reason}")
    good = [each for each in checked if each.reason is None]
    _require_trials(work, {*found.batches, *(each.batch for each in good)})
    report("stage", SILVER_STAGE)
    if good:
        _add_run(spark, work, found.next_run, good, here=here)
        run = manifest.AnalysisRun(tuple(each.batch for each in good), sum(each.size for each in good))
        found = _listed(work, manifest.Manifest({**found.runs, found.next_run: run}))
    small, one = manifest.compacted(found)
    if small:
        _compact(spark, work, small, one)
        found = _listed(work, one)
    report("stage", GOLD)
    _write_gold(spark, work, list(found.runs), bad)


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


def _add_run(spark: SparkSession, work: Work, run: int, good: Sequence[Checked], *, here: bool) -> None:
    """Writes the run's folders of silver."""
    tasks = sum(each.rows for each in good) // ROWS_PER_TASK
    if tasks > int(str(spark.conf.get("spark.sql.shuffle.partitions"))):
        spark.conf.set("spark.sql.shuffle.partitions", tasks)
    files = max(spark.sparkContext.defaultParallelism, sum(each.size for each in good) // manifest.FILE_BYTES)
    cells = dict(zip(work.record.cells, (cell.parameters for cell in work.record.study.cells), strict=True))
    batches = listed([each.batch for each in good], cells)
    clusters = {digest: parameters.cluster for digest, parameters in cells.items()}
    makers = {name: table.rows for name, table in tables_of(work.record).items()}
    writer = Writer(work.store, run, makers, clusters)
    names = writer.write(batches) if here else write_tables(spark, files, batches, writer)
    for folder in (run_folder(table, run) for table in makers):
        for name in work.store.names(folder):
            if f"{folder}/{name}" not in names:  # left by an attempt of a task that was killed
                work.store.remove(f"{folder}/{name}")
    _check_losses(spark, work, run)


def _stored(spark: SparkSession, work: Work, name: str, runs: Sequence[int]) -> DataFrame:
    """These runs of a table of silver."""
    columns = tables_of(work.record)[name].columns
    return spark.read.schema(ddl(digests(columns))).parquet(*(f"{work.root}/{run_folder(name, run)}" for run in runs))


def _check_losses(spark: SparkSession, work: Work, run: int) -> None:
    """Raises LossesDisagree if the simulator counted other losses in a trial of the run than its records show."""
    found = disagreements(*(_stored(spark, work, name, [run]) for name in ("records", "cuts", "counts")))
    for row in found.orderBy("cell", "trial", "partition").limit(1).collect():
        raise LossesDisagree(
            f"trial {row['trial']} of cell {row['cell']}, partition {row['partition']}: the simulator counted "
            f"{row['counted']} lost records, elections cut {row['cut']} off, silver/records has {row['recorded']}"
        )


def _silver(spark: SparkSession, work: Work, name: str, runs: Sequence[int]) -> DataFrame:
    """All runs of a table of silver, with the indexes of cells, without cells and trials that the study lacks."""
    stored = _stored(spark, work, name, runs)
    cells, targets = (
        f"map({', '.join(f'{digest!r}, {number}' for digest, number in zip(work.record.cells, numbers, strict=True))})"
        for numbers in (range(len(work.record.cells)), work.targets)
    )
    needed = stored.where(f"trial < try_element_at({targets}, cell)")
    return needed.selectExpr(f"element_at({cells}, cell) AS cell", *(f"`{name}`" for name in stored.columns[1:]))


def _write_gold(spark: SparkSession, work: Work, runs: Sequence[int], bad: Sequence[Checked]) -> None:
    """Writes `gold/`, `cells.json` last."""
    study, per_trial = work.record.study, _silver(spark, work, "trials", runs)
    times = _times(spark, work, runs).cache()
    placed = gold.places(times).cache()
    with _gold_folder(work) as store:
        with_controls = [choose(cell.parameters, study.functions is not None).estimator for cell in study.cells]
        folds = control_sums(per_trial) if "multifidelity" in with_controls else {}
        per_trial = controlled_trials(per_trial, folds)
        by_cell = defaultdict[int, list[dict[str, Any]]](list)
        for row in _write_table(store, gold.per_cell(per_trial, work.metrics).toArrow(), "cells"):
            by_cell[row["cell"]].append(row)
        _write_table(store, gold.distributions(placed).toArrow(), "distributions")
        found_times = gold.quantiles(times, placed)
        cells = []
        for cell, (row, *others) in sorted(by_cell.items()):
            sums = {each["metric"]: _read(each, Sums) for each in (row, *others)}
            failovers, changes = found_times.get((cell, FAILOVER), NONE), row["states"] / row["partitions"]
            controls = {metric: total_of(each) for (index, metric), each in folds.items() if index == cell}
            sums |= {metric: controlled(sums[metric], each) for metric, each in controls.items()}
            cells.append(CellSums(row["trials"], row["years"], sums, failovers, changes, controls))

        products_with = _ProductsWith(store, per_trial, work)
        estimates = estimate_cells(work.record.study, cells, products_with, _reweighting(spark, work, runs))
        observed = defaultdict[int, dict[str, Quantiles]](dict)
        measured = gold.measured_quantiles(_silver(spark, work, "measured", runs))
        for row in _write_table(store, measured.toArrow(), "measured"):
            observed[row["cell"]][row["kind"]] = Quantiles(row["p50"], row["p99"], row["max"])
        reasons = _write_table(store, gold.reasons(_silver(spark, work, "reasons", runs)).toArrow(), "reasons")
        attributed = why.attributions(reasons, work.seed_of)
        documents = [
            values.document(cell.swept)
            | cluster_document(cell.parameters, values.estimates)
            | {f"{kind}_ms": asdict(found_times.get((cell.index, kind), NONE)) for kind in KINDS if kind != FAILOVER}
            | measured_document(observed[cell.index])
            | {"reasons": why.documents(attributed[cell.index])}
            for cell, values in zip(work.record.study.cells, estimates, strict=True)
        ]
        quarantined = [{"file": each.file, "reason": each.reason, "trials": list(each.batch[1:])} for each in bad]
        store.write("quarantine.json", (json.dumps(quarantined, indent=1) + "\n").encode())
        store.write("cells.json", (json.dumps(documents, indent=1) + "\n").encode())
    times.unpersist()
    placed.unpersist()


def _write_table(store: Store, rows: pa.Table, name: str) -> list[dict[str, Any]]:
    """Writes a table of gold in its order; returns its rows. `name`: its folder below that of gold."""
    rows = rows.sort_by(gold.ORDER[name.partition("/")[0]])
    store.write(f"{name}/part-00000.parquet", parquet(rows))
    return list(rows.to_pylist())


class _ProductsWith:
    """The products of the other cells' trials with those of a reference, which it writes when they are asked for."""

    def __init__(self, store: Store, per_trial: DataFrame, work: Work) -> None:
        self._store, self._per_trial, self._metrics = store, per_trial, work.metrics
        self._cells, self._found = len(work.record.study.cells), dict[int, pa.Table]()

    def __call__(self, reference: int) -> dict[tuple[int, str], Products]:
        if reference not in self._found:
            asked = range(self._cells) if self._cells <= AT_ONCE else [reference]
            rows = gold.products(self._per_trial, asked, self._cells, self._metrics).toArrow()
            self._found |= {each: gold.of_reference(rows, each, self._cells) for each in asked}
        found = _write_table(self._store, self._found[reference], f"pairs/reference={reference}")
        return {(row["cell"], row["metric"]): _read(row, Products) for row in found}


def _reweighting(spark: SparkSession, work: Work, runs: Sequence[int]) -> Sequence[Reweighting | None]:
    """What says how far failures may grow, of each cell of a study with targets that has it."""
    study = work.record.study
    if study.targets is None:
        return ()
    return reweighting_of(study, _silver(spark, work, HARMS, runs).toArrow())


def _times(spark: SparkSession, work: Work, runs: Sequence[int]) -> DataFrame:
    """The times of all `KINDS`."""
    names = ("outages", "recoveries", "catch_ups")
    outages, recoveries, catch_ups = (_silver(spark, work, name, runs) for name in names)
    recovered = gold.lasting_times(recoveries, RECOVERED, "time_ms", "recovered_ms")
    caught_up = gold.lasting_times(catch_ups, CATCH_UP, "start_ms", "in_sync_ms")
    return gold.outage_times(outages).unionByName(recovered).unionByName(caught_up)


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
