"""Lengths of time of a cell, by kind: as a distribution and as quantiles with limits.

The pipeline writes the distribution as buckets of equal ratio (`gold/distributions`), and the quantiles, which are
exact, into `gold/cells.json`. Handovers, where the leader had not failed, are a kind of their own: they would else pass
for fast failovers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from experiments.studies.estimation.estimates import FailoverTimes
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


_DOCUMENTS = TypeAdapter(list[dict[str, object]])
_QUANTILES = TypeAdapter(FailoverTimes)


def read_times(out: Path) -> list[Mapping[str, Times]]:
    """The times of each cell of the study in `out` by the kinds that it has any of, in the order of
    `gold/cells.json`. Raises InputError if a file is missing or damaged."""
    path = out / TABLE
    try:
        documents = _DOCUMENTS.validate_json((out / "gold" / "cells.json").read_bytes())
        rows = pq.read_table(path, columns=["cell", "kind", "up_to_ms", "share"]).to_pylist()
        quantiles = [
            {kind: _QUANTILES.validate_python(document[f"{kind}_ms"]) for kind in KINDS} for document in documents
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
