"""What a study of a script leaves: the trials, and the numbers of its cells, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.studies.design.study import StudyPlan
from experiments.studies.scripting.tables import cells_table, split_custom, swept_columns, with_columns
from experiments.studies.sweeps.batches import committed, disjoint, file_names
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.staging import CELLS, local_copy
from experiments.studies.sweeps.storage import Location, store_at
from experiments.support.errors import InputError

if TYPE_CHECKING:
    import pandas

    from experiments.studies.pipeline.frames import DataFrame, SparkSession


class Trials:
    """The trials of a study, in its output directory `out`; `study` has the cells with all parameters resolved."""

    def __init__(self, study: StudyPlan, out: Location, temporary: TemporaryDirectory[str] | None = None) -> None:
        self.study = study
        self.out = out
        self._temporary = temporary

    def trials(self) -> pa.Table:
        """One row per trial, by cell and trial: `cell` (its position in the study), the swept parameters as the study
        gives them, the columns of `trials/` (docs/reference/study-files.md), and the custom metrics by name."""
        functions = self.study.functions
        names = [] if functions is None else [metric.name for metric in functions.metrics]
        return split_custom(self._table(1, swept=True), names)

    def trace(self) -> pa.Table:
        """The rows of all trials in time order, by cell and trial: `cell`, and the columns of `trace/`. It is read into
        memory as a whole."""
        return self._table(0, swept=False)

    def _table(self, which: int, swept: bool) -> pa.Table:
        store, digests = store_at(self.out), read_record(self.out).cells
        tables = []
        batches = list(disjoint(committed(store), set(digests)))
        for index, digest in enumerate(digests):
            columns: Mapping[str, object] = swept_columns(self.study.cells[index]) if swept else {}
            for batch in (batch for batch in batches if batch.cell == digest):
                name = file_names(batch)[which]
                content = store.read(name)
                if content is None:
                    raise InputError(store.place(name), "", "no such file", "a complete sweep; run it again")
                tables.append(with_columns(pq.read_table(pa.BufferReader(content)), {"cell": index, **columns}))
        return pa.concat_tables(tables, promote_options="permissive")


class Results(Trials):
    """The numbers of a study that was run, one row per cell; beside them its trials."""

    def __init__(self, trials: Trials) -> None:
        super().__init__(trials.study, trials.out, trials._temporary)
        content = store_at(self.out).read(CELLS)
        assert content is not None
        self.cells: list[dict[str, object]] = json.loads(content)
        """The objects of `gold/cells.json`."""

    def to_arrow(self) -> pa.Table:
        """One row per cell. Columns: the swept parameters (a duration also as `NAME_ms`), `trials`, `partition_years`,
        and for each metric its estimate and its 95 % interval: `loss_rate`, `loss_rate_ci_low`, `loss_rate_ci_high`."""
        return cells_table(self.study, self.cells)

    def to_pandas(self) -> pandas.DataFrame:
        """The table of :meth:`to_arrow` as a pandas data frame."""
        return self.to_arrow().to_pandas()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """The table of :meth:`to_arrow` as a data frame of that Spark session."""
        from experiments.studies.pipeline.frames import to_spark

        return to_spark(spark, self.to_arrow())

    def report(self) -> str:
        """Writes `report.html` into the output directory; returns its path or URL."""
        from experiments.studies.report.render import write_report

        with local_copy(self.out, traces=False) as folder:
            write_report(folder, self.out)
        return store_at(self.out).place("report.html")
