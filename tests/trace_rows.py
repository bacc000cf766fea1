"""Traces in tests: the rows of files as the types of their kinds, and back, and the rules of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from experiments.studies.trace.kinds import KINDS, LAYOUTS, Stamped, TraceError
from experiments.studies.trace.rules import broken_rule
from experiments.studies.trace.schema import TRACE_SCHEMA, TraceRow


def typed(rows: Iterable[TraceRow]) -> list[Stamped]:
    """The rows as the types of their kinds; a column that a kind does not use is dropped."""
    found = []
    for row in rows:
        kind = KINDS[row.kind]
        fields = {name: getattr(row, each.column) for name, each in LAYOUTS[kind].columns.items()}
        found.append(Stamped(row.time_ms, kind(**fields), row.log_weight))
    return found


def as_rows(rows: Iterable[Stamped]) -> list[TraceRow]:
    """The rows as files have them."""
    return [row.row() for row in rows]


def check_trace(rows: Sequence[TraceRow], partitions: int, duration_ms: int) -> None:
    """Raises TraceError unless a trial with these rows keeps the rules of a trace."""
    end_ms = rows[-1].time_ms if rows else -1
    columns = (
        zip(*(("c", 0, seq, *row) for seq, row in enumerate(rows)), strict=True) if rows else ([],) * len(TRACE_SCHEMA)
    )
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, TRACE_SCHEMA, strict=True)]
    trial = {"trial": [0], "trace_rows": [len(rows)], "duration_ms": [end_ms], "partitions": [partitions]}
    broken = broken_rule(pa.Table.from_arrays(arrays, schema=TRACE_SCHEMA), pa.table(trial))
    if broken is not None or end_ms < duration_ms:
        raise TraceError(f"{broken}, {end_ms} of {duration_ms} ms")
