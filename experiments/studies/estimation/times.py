"""Lengths of time of a cell by kind, and what clients and operators would have measured, as `gold/` has them.

`gold/distributions` has the distribution of a kind of time as buckets of equal ratio, `gold/cells.json` the quantiles,
which are exact. Handovers, where the leader had not failed, are a kind of their own: they would else pass for fast
failovers. What clients and operators would have measured are the values of the trace's measured rows
(`trace/kinds.py`), unweighted and in real time, over all trials of a cell. A quantile is null where nothing was
measured: the simulator has no throughput, acknowledgement or restart times, since it charges no time for work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from experiments.studies.estimation.estimates import FailoverTimes
from experiments.studies.trace.kinds import Throughput
from experiments.support.declared import declared
from experiments.support.errors import InputError

FAILOVER, HANDOVER, RECOVERED, CATCH_UP = "failover", "handover", "recovery", "catch_up"
KINDS = (FAILOVER, HANDOVER, RECOVERED, CATCH_UP)
TABLE = "gold/distributions"
ALLOWED = "what `isray study analyze` writes; run it again"


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one kind in one cell. `buckets`: (longest time in ms, share of times up to it), ascending to 1."""

    quantiles: FailoverTimes
    buckets: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the values of one kind of row in one cell, in ms, or records/s for `throughput`."""

    p50: float
    p99: float
    max: float


_DOCUMENTS = TypeAdapter(list[dict[str, object]])
_FAILOVER_TIMES = TypeAdapter(FailoverTimes)
_QUANTILES = TypeAdapter(Quantiles)


def read_times(out: Path) -> list[Mapping[str, Times]]:
    """The times of each cell of the study in `out` by the kinds that it has any of, in the order of
    `gold/cells.json`. Raises InputError if a file is missing or damaged."""
    path = out / TABLE
    try:
        documents = _DOCUMENTS.validate_json((out / "gold" / "cells.json").read_bytes())
        columns = ["cell", "kind", "up_to_ms", "share"]
        files = sorted(each for each in path.iterdir() if each.suffix == ".parquet")
        parts = [pq.ParquetFile(file).read(columns) for file in files]
        rows = [row for part in parts for row in part.to_pylist()]
        quantiles = [
            {kind: _FAILOVER_TIMES.validate_python(document[f"{kind}_ms"]) for kind in KINDS} for document in documents
        ]
    except FileNotFoundError as error:
        raise InputError(str(error.filename or path), "", "no such file", ALLOWED) from error
    except (OSError, pa.ArrowException, ValidationError, KeyError) as error:
        raise InputError(str(path), "", "damaged, or of another version", ALLOWED) from error
    buckets: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for row in rows:
        buckets.setdefault((row["cell"], row["kind"]), []).append((row["up_to_ms"], row["share"]))
    return [
        {kind: Times(of[kind], tuple(sorted(buckets[index, kind]))) for kind in KINDS if (index, kind) in buckets}
        for index, of in enumerate(quantiles)
    ]


class MeasuredKey(NamedTuple):
    """A key of `gold/cells.json`: the kind of row that it is measured by, the unit, the meaning."""

    kind: str
    unit: str
    meaning: str


KEYS = declared(dict[str, MeasuredKey], __file__, "measured.yaml")


def read_measured(out: Path) -> list[dict[str, Quantiles | float]]:
    """What was measured of each cell of an analysed study, by those keys of `KEYS` that have a value."""
    documents = _DOCUMENTS.validate_json((out / "gold" / "cells.json").read_bytes())
    return [
        {key: found for key in KEYS if (found := _measured(document.get(key))) is not None} for document in documents
    ]


def _measured(value: object) -> Quantiles | float | None:
    if isinstance(value, dict):
        return None if value["p50"] is None else _QUANTILES.validate_python(value)
    return value if isinstance(value, float) else None


def measured_document(found: Mapping[str, Quantiles]) -> dict[str, object]:
    """The keys of a cell from its quantiles by kind of row."""
    document: dict[str, object] = {}
    for key, (kind, *_) in KEYS.items():
        values = asdict(found[kind]) if kind in found else dict.fromkeys(("p50", "p99", "max"))
        document[key] = values["p50"] if kind == Throughput.KIND else values
    return document
