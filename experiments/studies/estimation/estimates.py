"""From the sums of a study's cells to their numbers with intervals, and those as objects of `gold/cells.json`.

The Spark pipeline (`pipeline/gold.py`) adds up the trials of the cells, and the products of paired trials of two cells;
:func:`estimate_cells` turns them into an interval per metric (`intervals.py`), comparisons between cells (`pairs.py`),
and the cell to recommend (`selection.py`). The report and the tables read the numbers back from `gold/cells.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, TypeAdapter

from experiments.studies.design.estimator import choose, sentence
from experiments.studies.design.functions import metrics_of
from experiments.studies.design.model import Cell, StudyPlan
from experiments.studies.estimation import selection
from experiments.studies.estimation.intervals import interval, limits
from experiments.studies.estimation.moments import ALPHA, Estimate, Sums
from experiments.studies.estimation.pairs import Comparison, Products, compare
from experiments.studies.estimation.sizes import assumed_sizes
from experiments.studies.estimation.stopping import shortfall
from experiments.studies.estimation.weights import degeneracy
from experiments.studies.trace.metrics import METRICS, Metric
from experiments.support.errors import InputError

ProductsWith = Callable[[int], Mapping[tuple[int, str], Products]]
"""The products of the paired trials of every cell with the cell of that index, by cell and name of the metric."""


@dataclass(frozen=True, slots=True)
class FailoverTimes:
    """Quantiles of the outages' lengths in ms, over all outages of a cell that ended within their trial; None where
    none ended. `p50_ci_low` and the like: their 95 % limits, None where the outages are too few for a limit."""

    p50: float | None
    p99: float | None
    max: float | None
    p50_ci_low: float | None = None
    p50_ci_high: float | None = None
    p99_ci_low: float | None = None
    p99_ci_high: float | None = None
    outages: int = 0


@dataclass(frozen=True, slots=True)
class CellSums:
    """What the trials of a cell add up to. `sums`: by the names of the metrics. `changes`: of state, per
    partition and trial on average."""

    trials: int
    partition_years: float
    sums: Mapping[str, Sums]
    failover_ms: FailoverTimes
    changes: float = 1.0


@dataclass(frozen=True, slots=True)
class CellEstimates:
    """The numbers of one cell: `estimates` by the names of the metrics, and comparisons by them too.

    `estimator`: that of the trials (`plain`, `importance`, `splitting`). `compared_with_first`: each at 95 %.
    `compared_with_recommended`: they hold together, for all cells, at 95 %. `may_lose_least`: the study does not tell
    the loss rate of this cell from the lowest one.
    """

    trials: Annotated[int, Field(ge=1)]
    partition_years: float
    estimator: str
    estimates: Mapping[str, Estimate]
    failover_ms: FailoverTimes
    compared_with_first: Mapping[str, Comparison]
    compared_with_recommended: Mapping[str, Comparison]
    may_lose_least: bool
    recommended: bool
    warnings: tuple[str, ...]

    def value(self, metric: str) -> float:
        """The estimate of the metric of that name, without its interval."""
        return self.estimates[metric].estimate

    def document(self, swept: Mapping[str, object]) -> dict[str, object]:
        """The cell's object in `gold/cells.json`, beginning with the swept parameters."""
        fields = asdict(self)
        estimates = fields.pop("estimates")
        begin = {name: fields.pop(name) for name in ("trials", "partition_years", "estimator")}
        return {**swept, **begin, **estimates, **fields, "warnings": list(self.warnings)}


def estimate_cells(plan: StudyPlan, cells: Sequence[CellSums], products_with: ProductsWith) -> list[CellEstimates]:
    """Every number of every cell. `cells`: the sums of the plan's cells in their order. `products_with`: asked for the
    first cell, for the one with the lowest loss rate and for the recommended one, if there are two cells or more."""
    metrics = metrics_of(plan.functions)
    sizes = [assumed_sizes(cell.parameters, sums.changes) for cell, sums in zip(plan.cells, cells, strict=True)]

    def compared(reference: int, alpha: float) -> list[dict[str, Comparison]]:
        products = products_with(reference) if plan.pairing else {}
        return [
            {
                metric.name: compare(
                    mine.sums[metric.name],
                    cells[reference].sums[metric.name],
                    limits(metric, mine.sums[metric.name], sizes[index], alpha),
                    limits(metric, cells[reference].sums[metric.name], sizes[reference], alpha),
                    products.get((index, metric.name)),
                )
                for metric in metrics
                if index != reference
            }
            for index, mine in enumerate(cells)
        ]

    single = [_single(plan, *parts) for parts in zip(plan.cells, cells, sizes, strict=True)]
    if len(cells) == 1:
        return [replace(single[0], may_lose_least=True, recommended=True)]
    ratios = [{name: found.estimate for name, found in cell.estimates.items()} for cell in single]
    least = selection.least_losing(ratios)
    screened = compared(least, selection.screening_alpha(len(cells)))
    kept = [
        index
        for index, comparisons in enumerate(screened)
        if index == least or comparisons[selection.LOSS_RATE].difference.ci_low <= 0.0
    ]
    best = selection.most_available(ratios, kept)
    with_first, with_best = compared(0, ALPHA), compared(best, selection.simultaneous_alpha(len(cells)))
    return [
        replace(
            cell,
            compared_with_first=with_first[index],
            compared_with_recommended=with_best[index],
            may_lose_least=index in kept,
            recommended=index == best,
        )
        for index, cell in enumerate(single)
    ]


def _single(plan: StudyPlan, asked: Cell, cell: CellSums, sizes: Mapping[str, float]) -> CellEstimates:
    """The numbers of a cell that need no other cell; `asked` is the cell in the plan."""
    scripted = plan.functions is not None
    choice = choose(asked.parameters, scripted)
    metrics = metrics_of(plan.functions)
    estimates = {metric.name: interval(metric, cell.sums[metric.name], sizes) for metric in metrics}
    reasons = {metric.name: degeneracy(cell.sums[metric.name]) for metric in metrics}
    warnings = [f"weights degenerate: {name}: {reason}" for name, reason in reasons.items() if reason is not None]
    warnings += [sentence(asked.parameters, scripted)] if choice.falls_back else []
    if plan.precision is not None:
        line = shortfall(plan.precision, estimates[plan.precision.metric], cell.trials)
        warnings += [line] if line is not None else []
    return CellEstimates(
        trials=cell.trials,
        partition_years=cell.partition_years,
        estimator=choice.estimator,
        estimates=estimates,
        failover_ms=cell.failover_ms,
        compared_with_first={},
        compared_with_recommended={},
        may_lose_least=False,
        recommended=False,
        warnings=tuple(warnings),
    )


_DOCUMENTS = TypeAdapter(list[dict[str, JsonValue]])
_ESTIMATES = TypeAdapter(CellEstimates)


def read_cells(out: Path, cells: Sequence[Cell], metrics: Sequence[Metric] = METRICS) -> list[CellEstimates]:
    """The numbers in `gold/cells.json` of the study in `out`, which has `cells` and `metrics`.

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
    swept = [{name: value for name, value in cell.swept.items() if name != "estimator"} for cell in cells]
    try:
        found = [{name: document[name] for name in names} for document, names in zip(documents, swept, strict=True)]
        estimates = [_read_document(document, metrics) for document in documents]
    except (KeyError, ValueError) as error:
        raise InputError(str(path), "", "cells of another study or version", allowed) from error
    if found != swept:
        raise InputError(str(path), "", "cells of another study", allowed)
    return estimates


def _read_document(document: Mapping[str, JsonValue], metrics: Sequence[Metric]) -> CellEstimates:
    estimates = {metric.name: document[metric.name] for metric in metrics}
    fields = {
        field.name: document[field.name] for field in dataclass_fields(CellEstimates) if field.name != "estimates"
    }
    return _ESTIMATES.validate_python({**fields, "estimates": estimates})
