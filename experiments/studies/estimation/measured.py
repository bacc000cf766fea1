"""What clients and operators would have measured, as numbers of `gold/cells.json`: quantiles over all trials of a cell.

The values are those of the trace's measured rows (`trace/kinds.py`), unweighted and in real time. A quantile is null
where nothing was measured: the simulator has no throughput, acknowledgement or restart times, since it charges no time
for work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from experiments.studies.trace.kinds import Throughput
from experiments.support.declared import declared


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the values of one kind of row in one cell, in ms, or records/s for `throughput`."""

    p50: float
    p99: float
    max: float


class MeasuredKey(NamedTuple):
    """A key of `gold/cells.json`: the kind of row that it is measured by, the unit, the meaning."""

    kind: str
    unit: str
    meaning: str


KEYS = declared(dict[str, MeasuredKey], __file__, "measured.yaml")


_DOCUMENTS = TypeAdapter(list[dict[str, object]])
_QUANTILES = TypeAdapter(Quantiles)


def read_measured(out: Path) -> list[dict[str, Quantiles | float]]:
    """What was measured of each cell in `out/gold/cells.json`, which :func:`read_cells` has checked, by the keys of
    `KEYS`; a key is missing where nothing was measured."""
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
    for key, (kind, _, _) in KEYS.items():
        values = found.get(kind)
        if kind == Throughput.KIND:
            document[key] = None if values is None else values.p50
        else:
            document[key] = {"p50": None, "p99": None, "max": None} if values is None else asdict(values)
    return document
