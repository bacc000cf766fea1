"""What gold asks of Spark: tables of silver as data frames, and the queries over them, in threads.

*Little data.* A table of some rows costs Spark the same as a large one: a file is listed, its footer read, a task
planned for it, and rows exchanged between tasks. So the driver reads silver itself where all traces together are small
(`spark.HERE_BYTES`), and gives Spark local relations of one partition. Spark then needs neither a file nor an exchange,
and queries run on two threads, since their time is that of planning.

*Other data* stays in its files. The queries follow each other in one thread, so that each has all of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from experiments.studies.design.estimator import choose
from experiments.studies.estimation.estimates import FailoverTimes
from experiments.studies.estimation.times import CATCH_UP, RECOVERED
from experiments.studies.pipeline import gold
from experiments.studies.pipeline.bronze import run_folder
from experiments.studies.pipeline.controls import Folds, control_sums, controlled_trials
from experiments.studies.pipeline.growth import TABLE as HARMS
from experiments.studies.pipeline.schemas import TYPES, Columns, ddl, digests
from experiments.studies.pipeline.tables import tables_of
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.sweeps.storage import Store

AT_ONCE = 6
"""Up to so many cells, the products of all pairs are one query: each query takes its planning."""
THREADS = 2
ONE_PARTITION = {"spark.sql.shuffle.partitions": "1", "spark.sql.leafNodeDefaultParallelism": "1"}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of silver of the study `record` in `store`, which Spark finds below `root`. `targets`: the trials that
    each cell rests on; `here`: whether the driver reads the tables."""

    session: Callable[[], SparkSession]
    store: Store
    root: str
    record: StudyRecord
    targets: Sequence[int]
    here: bool

    def stored(self, name: str, runs: Sequence[int]) -> DataFrame:
        """These runs of a table."""
        columns = digests(tables_of(self.record)[name].columns)
        folders = [run_folder(name, run) for run in runs]
        if self.here:
            nothing = ", ".join(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in columns.items())
            rows = rows_of(self.store, folders, columns)
            return self._local(rows) if len(rows) else self.session().sql(f"SELECT {nothing} WHERE false")
        return self.session().read.schema(ddl(columns)).parquet(*(f"{self.root}/{folder}" for folder in folders))

    def silver(self, name: str, runs: Sequence[int]) -> DataFrame:
        """These runs of a table, with the indexes of cells, without cells and trials that the study lacks."""
        stored, digests_of = self.stored(name, runs), self.record.cells
        cells, targets = (
            f"map({', '.join(f'{digest!r}, {number}' for digest, number in zip(digests_of, numbers, strict=True))})"
            for numbers in (range(len(digests_of)), self.targets)
        )
        needed = stored.where(f"trial < try_element_at({targets}, cell)")
        return needed.selectExpr(f"element_at({cells}, cell) AS cell", *(f"`{name}`" for name in stored.columns[1:]))

    def kept(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once though several queries read it."""
        if not self.here:
            return frame.cache()
        rows = frame.toArrow()
        return self._local(rows) if len(rows) else frame.where("false")

    def _local(self, rows: pa.Table) -> DataFrame:
        """The rows as a local relation, known to be one partition: grouping and joining them exchanges nothing."""
        return self.session().createDataFrame(rows).coalesce(1)

    def times(self, runs: Sequence[int]) -> DataFrame:
        """The times of all `KINDS`."""
        outages, recoveries, catch_ups = (self.silver(name, runs) for name in ("outages", "recoveries", "catch_ups"))
        recovered = gold.lasting_times(recoveries, RECOVERED, "time_ms", "recovered_ms")
        caught_up = gold.lasting_times(catch_ups, CATCH_UP, "start_ms", "in_sync_ms")
        found = gold.outage_times(outages).unionByName(recovered).unionByName(caught_up)
        return found.coalesce(1) if self.here else found


def rows_of(store: Store, folders: Sequence[str], columns: Columns) -> pa.Table:
    """The rows of all Parquet files in the folders, with these columns; a column that a file lacks is null in its
    rows, as Spark reads it."""
    schema = pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])
    found = []
    for folder in folders:
        for name in sorted(store.names(folder)):
            rows = pq.ParquetFile(pa.BufferReader(store.read(f"{folder}/{name}"))).read()
            arrays = [
                rows[field.name].cast(field.type)
                if field.name in rows.column_names
                else pa.nulls(len(rows), field.type)
                for field in schema
            ]
            found.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(found) if found else schema.empty_table()


@dataclass(frozen=True, slots=True)
class Summed:
    """The sums of trials. `folds`: of those with controls; `trials`: with the values that the controls have corrected;
    `products`: those of all pairs of cells, None where each reference is a query of its own."""

    folds: Folds
    trials: DataFrame
    cells: pa.Table
    products: pa.Table | None


@dataclass(frozen=True, slots=True)
class Timed:
    """`quantiles` by cell and kind of time."""

    distributions: pa.Table
    quantiles: Mapping[gold.Key, FailoverTimes]


@dataclass(frozen=True, slots=True)
class Asked:
    """The queries of gold. `harms`: None without targets."""

    summed: Future[Summed]
    timed: Future[Timed]
    measured: Future[pa.Table]
    reasons: Future[pa.Table]
    harms: Future[pa.Table] | None


def ask(threads: ThreadPoolExecutor, tables: Tables, runs: Sequence[int], metrics: Sequence[str]) -> Asked:
    """Begins the queries over these runs; `metrics`: the names of the study's."""
    has_targets = tables.record.study.targets is not None
    return Asked(
        threads.submit(_summed, tables, runs, metrics),
        threads.submit(_timed, tables, runs),
        threads.submit(lambda: gold.measured_quantiles(tables.silver("measured", runs)).toArrow()),
        threads.submit(lambda: gold.reasons(tables.silver("reasons", runs)).toArrow()),
        threads.submit(lambda: tables.silver(HARMS, runs).toArrow()) if has_targets else None,
    )


def _summed(tables: Tables, runs: Sequence[int], metrics: Sequence[str]) -> Summed:
    study, trials = tables.record.study, tables.silver("trials", runs)
    estimators = {choose(cell.parameters, study.functions is not None).estimator for cell in study.cells}
    folds = control_sums(trials) if "multifidelity" in estimators else {}
    trials = controlled_trials(trials, folds)
    cells, count = gold.per_cell(trials, metrics).toArrow(), len(study.cells)
    is_one_query = study.pairing and 1 < count <= AT_ONCE
    products = gold.products(trials, range(count), count, metrics).toArrow() if is_one_query else None
    return Summed(folds, trials, cells, products)


def _timed(tables: Tables, runs: Sequence[int]) -> Timed:
    times = tables.times(runs) if tables.here else tables.times(runs).cache()
    placed = tables.kept(gold.places(times))
    found = Timed(gold.distributions(placed).toArrow(), gold.quantiles(times, placed))
    for frame in () if tables.here else (times, placed):
        frame.unpersist()
    return found
