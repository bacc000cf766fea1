"""From the sums of a study's cells (`pipeline/gold.py`) to their numbers with intervals (`intervals.py`), comparisons
(`pairs.py`) and the cell to recommend (`selection.py`), and those as objects of `gold/cells.json`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, TypeAdapter

from experiments.studies.design.estimator import choose, sentence
from experiments.studies.design.study import Cell, StudyPlan, decided, groups_of, metrics_of
from experiments.studies.estimation import selection, targets
from experiments.studies.estimation.clusters import cluster_interval
from experiments.studies.estimation.controlled import LEAST_EVENTS, ControlSums, drawing_gain
from experiments.studies.estimation.growth import Reweighting
from experiments.studies.estimation.intervals import assumed_sizes, limits
from experiments.studies.estimation.moments import ALPHA, Estimate, Sums, degeneracy
from experiments.studies.estimation.pairs import Comparison, Products, compare
from experiments.studies.estimation.stopping import shortfall
from experiments.studies.estimation.targets import TargetAnswer
from experiments.studies.trace.metrics import MEAN, METRICS, PROBABILITY, UNWRITABLE, WRITABLE, Metric
from experiments.support.errors import InputError

ProductsWith = Callable[[int], Mapping[tuple[int, str], Products]]
"""The products of the paired trials of every cell with the cell of that index, by cell and name of the metric."""


PAIRED_AT_MOST = 24
"""Cells of a study up to which each pair that differs in one decision gets products of its trials, by jobs of Spark."""


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
    """What the trials of a cell add up to, by metric. `changes`: of state, per partition and trial on average.
    `controls`: the sums of trials with controls, by the metrics that have one."""

    trials: int
    partition_years: float
    sums: Mapping[str, Sums]
    failover_ms: FailoverTimes
    changes: float = 1.0
    controls: Mapping[str, ControlSums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellEstimates:
    """The numbers of one cell: `estimates` by the names of the metrics, and comparisons by them too.

    `estimator`: that of the trials (`plain`, `importance`, `splitting`, `multifidelity`, if they have controls).
    `controls`: how many controls of other failures the trials have; `correlation`: of a trial and the control of its
    failures; `gain`: by what factor the controls reduce the variance; `drawing_gain`: by what factor drawn trials do,
    each of the study's objective, or, if that has fewer than `LEAST_EVENTS` events, of the time not writable; None
    without controls, and of trials that are not drawn.

    `compared_with_first`: each at 95 %. The other fields are about the group of cells that share all assumptions
    (`design/study.py`). `reference`: the cell that the others of its group are compared with, which is the
    recommended one, or the one with the lowest estimate if none is. `compared_with_reference`: they hold together,
    for all cells of the group, at 95 %. `compared_with_neighbours`: with the earlier cells of the group that differ
    in one decision only, by their indexes, the objective and the times without service; all pairs of the group hold
    together at 95 %. `may_be_best`: the study does not eliminate this cell. `recommended`: the study shows that it
    is the best. `trials_to_distinguish`: how many trials would distinguish this cell from the one with the lowest
    estimate; None where they are, or nothing follows. `targets`: the answers to the study's; `cheapest`: of its
    group, this cell meets all of them at the lowest cost (`targets.py`)."""

    trials: Annotated[int, Field(ge=1)]
    partition_years: float
    estimator: str
    estimates: Mapping[str, Estimate]
    failover_ms: FailoverTimes
    compared_with_first: Mapping[str, Comparison] = field(default_factory=dict)
    compared_with_reference: Mapping[str, Comparison] = field(default_factory=dict)
    compared_with_neighbours: Mapping[int, Mapping[str, Comparison]] = field(default_factory=dict)
    may_be_best: bool = False
    recommended: bool = False
    reference: bool = False
    trials_to_distinguish: int | None = None
    targets: tuple[TargetAnswer, ...] = ()
    cheapest: bool = False
    warnings: tuple[str, ...] = ()
    controls: int = 0
    correlation: float | None = None
    gain: float | None = None
    drawing_gain: float | None = None

    def value(self, metric: str) -> float:
        """The estimate of the metric of that name, without its interval."""
        return self.estimates[metric].estimate

    def document(self, swept: Mapping[str, object]) -> dict[str, object]:
        """The cell's object in `gold/cells.json`, beginning with the swept parameters."""
        rest = asdict(self)
        estimates = rest.pop("estimates")
        begin = {name: rest.pop(name) for name in ("trials", "partition_years", "estimator")}
        found = self.estimates[UNWRITABLE]
        writable = replace(found, estimate=1.0 - found.estimate, ci_low=1.0 - found.ci_high, ci_high=1.0 - found.ci_low)
        return {**swept, **begin, **estimates, WRITABLE: asdict(writable), **rest, "warnings": list(self.warnings)}


def estimate_cells(
    plan: StudyPlan,
    cells: Sequence[CellSums],
    products_with: ProductsWith,
    reweighting: Sequence[Reweighting | None] = (),
) -> list[CellEstimates]:
    """Every number of every cell. `cells`: the sums of the plan's cells in their order. `products_with`: asked, once
    each, for the first cell and for the cells that others are compared with, if there are two cells or more.
    `reweighting`: of each cell, what says how far failures may grow."""
    comparing = _Comparing(plan, cells, products_with)
    single = [_single(plan, *parts) for parts in zip(plan.cells, cells, comparing.sizes, strict=True)]
    single = _with_targets(plan, cells, comparing.sizes, single, reweighting or [None] * len(cells))
    if len(cells) == 1:
        return [replace(single[0], may_be_best=True, reference=True)]
    with_first = comparing.compared(range(len(cells)), 0, ALPHA)
    found = [replace(cell, compared_with_first=with_first[index]) for index, cell in enumerate(single)]
    for group in groups_of(plan.cells):
        for index, cell in _selected(plan, found, group, comparing).items():
            found[index] = cell
        for index in group:
            found[index] = replace(found[index], compared_with_neighbours=comparing.with_neighbours(plan, index, group))
    return found


def _with_targets(
    plan: StudyPlan,
    cells: Sequence[CellSums],
    sizes: Sequence[Mapping[str, float]],
    found: Sequence[CellEstimates],
    reweighting: Sequence[Reweighting | None],
) -> list[CellEstimates]:
    """The cells with the answers to the targets, and which is the cheapest of each group that meets all."""
    asked = [targets.measured(plan.targets, cell.parameters) for cell in plan.cells]
    statements = sum(map(len, asked))
    answers: list[tuple[TargetAnswer, ...]] = []
    partitions_of = (cell.parameters.partitions for cell in plan.cells)
    for measured, cell, size, grows, partitions in zip(asked, cells, sizes, reweighting, partitions_of, strict=True):
        each = []
        for item in measured:
            sums, assumed = cell.sums[item.metric.name], size.get(item.metric.column, 1.0)
            answer = targets.answer(item, sums, size, cell.partition_years / partitions, statements)
            each.append(answer if grows is None else grows.applied(answer, item, sums, assumed))
        answers.append(tuple(each))
    costs = [
        (*selection.cost_of_copies(cell.parameters), each.value(UNWRITABLE))
        for cell, each in zip(plan.cells, found, strict=True)
    ]
    chosen = {targets.cheapest(answers, costs, group) for group in groups_of(plan.cells)}
    return [replace(cell, targets=answers[index], cheapest=index in chosen) for index, cell in enumerate(found)]


class _Comparing:
    """Comparisons between the cells of a plan; asks for the products of each reference once."""

    def __init__(self, plan: StudyPlan, cells: Sequence[CellSums], products_with: ProductsWith) -> None:
        pairs = zip(plan.cells, cells, strict=True)
        self.sizes = [assumed_sizes(cell.parameters, sums.changes) for cell, sums in pairs]
        self._cells, self._metrics = cells, metrics_of(plan)
        self._products_with: ProductsWith = cache(self._asked(products_with)) if plan.pairing else lambda _: {}
        self._references: set[int] = set()

    def _asked(self, products_with: ProductsWith) -> ProductsWith:
        def ask(reference: int) -> Mapping[tuple[int, str], Products]:
            self._references.add(reference)
            return products_with(reference)

        return ask

    def with_neighbours(self, plan: StudyPlan, index: int, group: Sequence[int]) -> dict[int, dict[str, Comparison]]:
        """The cell against each earlier one of its group that differs from it in one decision only. Beyond
        `PAIRED_AT_MOST` cells in the study, comparisons use pairs of trials only where others have asked for them."""
        mine, alpha = decided(plan.cells[index].swept), selection.simultaneous_alpha(len(group))
        found = {}
        for other in group:
            its = decided(plan.cells[other].swept)
            if other < index and sum(mine[name] != its[name] for name in mine) == 1:
                turned = other not in self._references and (
                    index in self._references or len(self._cells) > PAIRED_AT_MOST
                )
                found[other] = self._compare(
                    index, other, alpha, turned, {plan.objective, "offline_fraction", UNWRITABLE}
                )
        return found

    def compared(self, among: Iterable[int], reference: int, alpha: float) -> dict[int, dict[str, Comparison]]:
        """The cells `among` against the cell `reference`, which itself is compared with nothing."""
        return {index: self._compare(index, reference, alpha) if index != reference else {} for index in among}

    def _compare(
        self, index: int, reference: int, alpha: float, turned: bool = False, names: Collection[str] = ()
    ) -> dict[str, Comparison]:
        """The cell against another one, in the metrics `names` or all. `turned`: by the products of the other's trials
        with those of this one, if they were asked for."""
        if turned:
            asked = self._products_with(index) if index in self._references else {}
            products = {(index, name): each.turned() for (cell, name), each in asked.items() if cell == reference}
        else:
            products = dict(self._products_with(reference))
        mine, its = self._cells[index].sums, self._cells[reference].sums
        return {
            metric.name: compare(
                mine[metric.name],
                its[metric.name],
                limits(metric, mine[metric.name], self.sizes[index], alpha),
                limits(metric, its[metric.name], self.sizes[reference], alpha),
                products.get((index, metric.name)),
            )
            for metric in self._metrics
            if metric.estimator not in (PROBABILITY, MEAN) and (not names or metric.name in names)
        }


def _selected(
    plan: StudyPlan, single: Sequence[CellEstimates], group: Sequence[int], comparing: _Comparing
) -> dict[int, CellEstimates]:
    """The cells of one group with the fields that say which of them may be the best, and how they compare."""
    parameters, objective = [cell.parameters for cell in plan.cells], plan.objective
    candidates = [index for index in group if selection.is_candidate(parameters[index], objective)]
    reliable = [index for index in candidates if not single[index].estimates[objective].degenerate]
    ratios = [{name: found.estimate for name, found in cell.estimates.items()} for cell in single]
    copies = [selection.least_copies(each) for each in parameters]
    least = selection.lowest(ratios, objective, reliable or candidates or group, copies)
    screened = comparing.compared(candidates, least, selection.screening_alpha(len(group)))
    eliminated = [index for index in reliable if index != least and screened[index][objective].difference.ci_low > 0.0]
    kept = [index for index in candidates if index not in eliminated]
    reference, alpha = least, selection.simultaneous_alpha(len(group))
    recommended = least if kept == [least] and least in reliable and len(group) > 1 else None
    if len(kept) > 1:
        available = selection.most_available(ratios, kept)
        rivals = comparing.compared([index for index in kept if index != available], available, alpha).values()
        if all(selection.is_surpassed(rival, objective, plan.equivalence_margin) for rival in rivals):
            reference = recommended = available
    compared = comparing.compared(group, reference, alpha)
    trials = {index: max(single[index].trials, single[least].trials) for index in kept if index != least}
    needed = {
        index: selection.trials_to_distinguish(screened[index][objective], most) for index, most in trials.items()
    }
    return {
        index: replace(
            single[index],
            compared_with_reference=compared[index],
            may_be_best=index in kept,
            recommended=index == recommended,
            reference=index == reference,
            trials_to_distinguish=needed.get(index),
        )
        for index in group
    }


def _single(plan: StudyPlan, asked: Cell, cell: CellSums, sizes: Mapping[str, float]) -> CellEstimates:
    """The numbers of a cell that need no other cell; `asked` is the cell in the plan."""
    scripted = plan.functions is not None
    choice, metrics = choose(asked.parameters, scripted), metrics_of(plan)
    estimates = {
        metric.name: cluster_interval(metric, cell.sums[metric.name], sizes, asked.parameters.partitions)
        for metric in metrics
    }
    reasons = ((metric.name, degeneracy(cell.sums[metric.name])) for metric in metrics)
    warnings = [f"weights degenerate: {name}: {reason}" for name, reason in reasons if reason is not None]
    warnings += [sentence(asked.parameters, scripted)] if choice.falls_back else []
    if plan.precision is not None:
        warnings += filter(None, [shortfall(plan.precision, estimates[plan.precision.metric], cell.trials)])
    shown = plan.objective if estimates[plan.objective].events >= LEAST_EVENTS else UNWRITABLE
    with_controls = cell.controls.get(shown)
    without = "importance" if choice.in_cycles else "plain"
    return CellEstimates(
        trials=cell.trials,
        partition_years=cell.partition_years,
        estimator=without if choice.estimator == "multifidelity" and not cell.controls else choice.estimator,
        estimates=estimates,
        failover_ms=cell.failover_ms,
        warnings=tuple(warnings),
        controls=round(with_controls.runs) if with_controls else 0,
        correlation=with_controls.correlation if with_controls else None,
        gain=cell.sums[shown].gain if with_controls else None,
        drawing_gain=drawing_gain(cell.sums[shown]) if with_controls and not choice.in_cycles else None,
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
    kept = [each.name for each in fields(CellEstimates) if each.name != "estimates"]
    try:
        found = [{name: document[name] for name in names} for document, names in zip(documents, swept, strict=True)]
        by_metric = [{metric.name: document[metric.name] for metric in metrics} for document in documents]
        estimates = [
            _ESTIMATES.validate_python({name: document[name] for name in kept} | {"estimates": each})
            for document, each in zip(documents, by_metric, strict=True)
        ]
    except (KeyError, ValueError) as error:
        raise InputError(str(path), "", "cells of another study or version", allowed) from error
    if found != swept:
        raise InputError(str(path), "", "cells of another study", allowed)
    return estimates
