"""The files of `trace/`: their columns, whose meaning in a row of each kind is declared in `kinds.py`."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_type_hints

import pyarrow as pa
from numpy.typing import NDArray

VERSION: Final = 4
"""Of the trace's columns and rules."""
VERSION_KEY: Final = "isray.trace.version"
"""Key of the version in the metadata of a file's schema."""
YEAR_MS: Final = 365 * 86_400_000
INCIDENT_MS: Final = 86_400_000
"""The longest time between two losses of one incident of a cluster."""
Values: TypeAlias = NDArray[Any]
"""A column of a trace, or what is computed of some."""
NONE: Final = -1
"""No partition, no node, no leader."""
Wide: TypeAlias = Annotated[int, pa.int64()]
"""A whole number of 64 bits; others have 32."""
_TYPES: Final = {int: pa.int32(), str: pa.string(), bool: pa.bool_(), float: pa.float64(), Wide: pa.int64()}


class TraceRow(NamedTuple):
    """A row of a file, which functions of scripts see as well: `time_ms`, `kind` and `log_weight` as in
    :class:`~experiments.studies.trace.kinds.Stamped`, and a column for each field of any kind. A column that the kind
    of a row does not use is -1 (`partition`, `node`, `leader`, `epoch`, `offset`), 0, empty or False."""

    time_ms: Wide
    kind: str
    partition: int = NONE
    node: int = NONE
    leader: int = NONE
    leader_serves: bool = False
    isr_size: int = 0
    elr_size: int = 0
    min_isr: int = 0
    value: Wide = 0
    detail: str = ""
    log_weight: float = 0.0
    epoch: int = NONE
    isr: str = ""
    elr: str = ""
    recovering: bool = False
    offset: Wide = NONE
    stalls: bool = False
    expired: bool = False
    cause: str = ""
    why: str = ""


def columns(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """A Parquet schema without nulls."""
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


TRACE_SCHEMA: Final = columns(
    *(("cell", pa.string()), ("trial", pa.int32()), ("seq", pa.int32())),
    *((name, _TYPES[kind]) for name, kind in get_type_hints(TraceRow, include_extras=True).items()),
).with_metadata({VERSION_KEY: str(VERSION)})
"""`trace/`: the rows of :class:`TraceRow` with the cell's digest, the trial and the row's number within the trial."""
