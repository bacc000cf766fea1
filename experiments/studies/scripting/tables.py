"""The numbers of a study as one table: a row per cell, a column per number.

Columns, in this order: each swept parameter as the study gives it; for a swept duration or distribution also its (mean)
length, `NAME_ms`; then the keys of `gold/cells.json`. A metric `loss_rate` has the columns `loss_rate`,
`loss_rate_ci_low` and `loss_rate_ci_high`; other nested numbers are joined with `_`: `failover_ms_p50`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import PARAMETERS
from experiments.studies.design.study import Cell, StudyPlan
from experiments.support.yaml_input import flow_yaml

ESTIMATE = "estimate"


def cells_table(study: StudyPlan, documents: Sequence[Mapping[str, object]]) -> pa.Table:
    """The objects of `gold/cells.json` as a table; null where a cell has no such number."""
    rows = []
    for cell, document in zip(study.cells, documents, strict=True):
        numbers = {name: value for name, value in document.items() if name not in cell.swept}
        rows.append({**swept_columns(cell), **dict(_flat(numbers, ""))})
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
        joined = prefix if name == ESTIMATE and prefix else f"{prefix}_{name}" if prefix else name
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


def with_columns(table: pa.Table, constants: Mapping[str, object]) -> pa.Table:
    """The table with these columns first, each of one value; they replace columns of the same name."""
    names = [name for name in table.column_names if name not in constants]
    added = {name: _column([value] * table.num_rows) for name, value in constants.items()}
    return pa.table({**added, **{name: table[name] for name in names}})


def split_custom(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table of trials with a column for each custom metric of the study instead of the list `custom`."""
    values = {name: pc.list_element(table["custom"], index) for index, name in enumerate(names)}
    rest = table.drop_columns(["custom"])
    return pa.table({**{name: rest[name] for name in rest.column_names}, **values})
