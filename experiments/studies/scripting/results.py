"""What a study of a script leaves, as tables: its trials, and a row per cell with its numbers.

The columns of the numbers, in this order: each swept parameter as the study gives it; for a swept duration or
distribution also its (mean) length, `NAME_ms`; then the keys of `gold/cells.json`, nested ones joined with `_`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import PARAMETERS
from experiments.studies.design.study import Cell, StudyPlan
from experiments.studies.sweeps.batches import committed, disjoint, file_names
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.staging import CELLS, local_copy
from experiments.studies.sweeps.storage import Location, store_at
from experiments.support.errors import InputError
from experiments.support.yaml_input import flow_yaml

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
        """The rows of all trials by cell, trial and time: `cell`, and the columns of `trace/`; all in memory."""
        return self._table(0, swept=False)

    def _table(self, which: int, swept: bool) -> pa.Table:
        store, digests = store_at(self.out), read_record(self.out).cells
        tables = []
        batches = list(disjoint(committed(store), set(digests)))
        for index, digest in enumerate(digests):
            columns = {"cell": index} | (swept_columns(self.study.cells[index]) if swept else {})
            for batch in (batch for batch in batches if batch.cell == digest):
                name = file_names(batch)[which]
                content = store.read(name)
                if content is None:
                    raise InputError(store.place(name), "", "no such file", "a complete sweep; run it again")
                table = pq.read_table(pa.BufferReader(content))
                added = {name: _column([value] * table.num_rows) for name, value in columns.items()}
                rest = {name: table[name] for name in table.column_names if name not in columns}
                tables.append(pa.table(added | rest))
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
        return spark.createDataFrame(self.to_arrow())

    def report(self) -> str:
        """Writes `report.html` into the output directory; returns its path or URL."""
        from experiments.studies.report.render import write_report

        with local_copy(self.out, traces=False) as folder:
            write_report(folder, self.out)
        return store_at(self.out).place("report.html")


def cells_table(study: StudyPlan, documents: Sequence[Mapping[str, object]]) -> pa.Table:
    """The objects of `gold/cells.json` as a table; null where a cell has no such number."""
    rows = []
    for cell, document in zip(study.cells, documents, strict=True):
        numbers = {name: value for name, value in document.items() if name not in cell.swept}
        rows.append(swept_columns(cell) | dict(_flat(numbers, "")))
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def swept_columns(cell: Cell) -> dict[str, object]:
    """The swept parameters of a cell, as columns."""
    columns: dict[str, object] = {}
    for name, value in cell.swept.items():
        columns[name] = flow_yaml(value) if isinstance(value, Mapping | list) else value
        if PARAMETERS[name].unit == "duration":
            resolved = getattr(cell.parameters, PARAMETERS[name].field)
            columns[f"{name}_ms"] = resolved.mean_ms if isinstance(resolved, Distribution) else resolved
    return columns


def _flat(document: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        joined = prefix if name == "estimate" and prefix else f"{prefix}_{name}" if prefix else name
        if isinstance(value, Mapping):
            yield from _flat(value, joined)
        else:
            yield joined, value


def _column(values: Sequence[object]) -> pa.Array:
    """The values as one Arrow type; as text if they have none in common."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


def split_custom(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table of trials with a column for each custom metric of the study instead of the list `custom`."""
    values = {name: pc.list_element(table["custom"], index) for index, name in enumerate(names)}
    rest = table.drop_columns(["custom"])
    return pa.table(dict(zip(rest.column_names, rest.columns, strict=True)) | values)
