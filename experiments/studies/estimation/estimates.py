"""From a cell's sums to its numbers with intervals, and those as one object of `gold/cells.json`.

The Spark pipeline (`pipeline/gold.py`) adds up the trials of a cell; :func:`estimate` turns the sums into an interval
per metric (`metrics.py` says which, `statistics.py` how). The report and the tables read the numbers back from
`gold/cells.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, TypeAdapter

from experiments.studies.design.model import Cell
from experiments.studies.estimation.statistics import Estimate, Moments, fraction, rate
from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES, Metric
from experiments.support.errors import InputError


@dataclass(frozen=True, slots=True)
class FailoverTimes:
    """Quantiles of the outages' lengths in ms, over all trials of a cell; None where no outage ended."""

    p50: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class CellSums:
    """What the trials of a cell add up to. `moments`: by the column of each metric. `loss_size_squares`: the sum of the
    squared numbers of records of the single losses."""

    trials: int
    partition_years: float
    moments: Mapping[str, Moments]
    loss_size_squares: float
    failover_ms: FailoverTimes


@dataclass(frozen=True, slots=True)
class CellEstimates:
    """The numbers of one cell: `estimates` by the names of the metrics."""

    trials: Annotated[int, Field(ge=1)]
    partition_years: float
    estimates: Mapping[str, Estimate]
    failover_ms: FailoverTimes

    def value(self, metric: str) -> float:
        """The estimate of the metric of that name, without its interval."""
        return self.estimates[metric].estimate

    def document(self, swept: Mapping[str, object]) -> dict[str, object]:
        """The cell's object in `gold/cells.json`, beginning with the swept parameters."""
        fields = asdict(self)
        estimates, failover_ms = fields.pop("estimates"), fields.pop("failover_ms")
        return {**swept, **fields, **estimates, "failover_ms": failover_ms}


def estimate(sums: CellSums) -> CellEstimates:
    """Every metric of a cell with its interval."""
    estimates = {metric.name: _estimate(metric, sums) for metric in METRICS}
    return CellEstimates(sums.trials, sums.partition_years, estimates, sums.failover_ms)


def _estimate(metric: Metric, sums: CellSums) -> Estimate:
    moments = sums.moments[metric.column]
    if metric.name in FRACTIONS:
        return fraction(moments)
    assert metric.name in RATES
    sizes = sums.loss_size_squares / moments.total if metric.sums_values and moments.total else 1.0
    return rate(moments, sums.partition_years, sizes)


_DOCUMENTS = TypeAdapter(list[dict[str, JsonValue]])
_ESTIMATES = TypeAdapter(CellEstimates)


def read_cells(out: Path, cells: Sequence[Cell]) -> list[CellEstimates]:
    """The numbers in `gold/cells.json` of the study in `out`, which has `cells`.

    Raises InputError if the file is missing, is damaged or holds the cells of another study.
    """
    path = out / "gold" / "cells.json"
    allowed = "what `isray study analyze` writes; run it again"
    try:
        documents = _DOCUMENTS.validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(str(path), "", error.strerror, "a study that was analysed (`isray study analyze`)") from error
    except ValueError as error:
        raise InputError(str(path), "", "a damaged file", allowed) from error
    swept = [dict(cell.swept) for cell in cells]
    try:
        found = [{name: document[name] for name in names} for document, names in zip(documents, swept, strict=True)]
        estimates = [_read_document(document) for document in documents]
    except (KeyError, ValueError) as error:
        raise InputError(str(path), "", "cells of another study or version", allowed) from error
    if found != swept:
        raise InputError(str(path), "", "cells of another study", allowed)
    return estimates


def _read_document(document: Mapping[str, JsonValue]) -> CellEstimates:
    estimates = {metric.name: document[metric.name] for metric in METRICS}
    fields = {name: document[name] for name in ("trials", "partition_years", "failover_ms")}
    return _ESTIMATES.validate_python({**fields, "estimates": estimates})
