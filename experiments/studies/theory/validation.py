"""The simulation against the Markov chain: many trials of a cell, and for each metric how far apart the two are.

docs/theory.md says how trials are sized, which metrics are compared by importance sampling or left out, and when a cell
is repeated. In importance sampling values are sums of weights, so all of the variance is that of the trials; results
that are worth fewer than `LEAST_EFFECTIVE` events of equal weight are left out.

The z-score compares the sum over trials with the value that the chain predicts. If the chain is right, the sum behaves
like a sum of random portions at the times of a Poisson process, which a gamma distribution of the same mean and
variance describes well, including its skewness; a normal one would make low sums too unlikely and high ones too likely.
The variance is that of the trials, scaled to the predicted mean (a sum of random portions has a variance proportional
to its mean), and at least Poisson's for counts. The probability of a smaller sum becomes a quantile of Student's t,
because the variance is estimated, and then z.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from scipy.special import gammainc, gammaincc, ndtri, stdtr

from experiments.studies.design.estimator import obstacle_to_importance
from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.intervals import assumed_sizes, fraction_limits, rate_limits
from experiments.studies.estimation.moments import Sums
from experiments.studies.theory.answers import Answer, model_of, solved
from experiments.studies.theory.model import Model
from experiments.studies.trace.metrics import BY_NAME, RATES, Measures, measure
from experiments.studies.trace.schema import YEAR_MS
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.importance import run_importance_trial
from experiments.studies.trials.trial import run_trial
from experiments.support.processes import process_pool

MIN_EVENTS = 50
WANTED_EVENTS = 120
MAX_FAILURES = 6_000
"""Broker failures simulated per cell, unless the cell says how many trials of what duration it has."""
FAILURES_PER_TRIAL = 25
MIN_REPAIRS_PER_TRIAL = 40
"""Shortest trial, in mean times to repair."""
MIN_TRIALS = 30
WEIGHTED_TRIALS = 60
LEAST_EFFECTIVE = 20.0
TRIALS_PER_TASK = 4
Z_LIMIT = float(ndtri(1.0 - 0.001 / 2.0))
"""A result beyond it lies outside the interval of 99.9 %."""
Z_MAX = 37.0
"""Beyond it a normal probability is no longer a float; a larger z is this one."""


@dataclass(frozen=True, slots=True)
class ValidationCell:
    """A cell as its file gives it (`given`) and resolved (`parameters`); how many trials, and the first one's index.
    `metrics`: those that are compared, by default all that the model has."""

    given: Mapping[str, object]
    parameters: CellParameters
    trials: int
    first: int = 0
    metrics: frozenset[str] | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether the trials use importance sampling."""
        return self.parameters.estimator == "importance"

    @property
    def model(self) -> Model:
        """The model of the cell. ValueError for a cell that none covers."""
        model = model_of(self.parameters)
        if model is None:
            raise ValueError(f"no Markov model for {self.parameters!r}")
        return model


@dataclass(frozen=True, slots=True)
class CellComparison:
    """A metric of a cell: what the simulation gives with its 95 % interval, what the chain gives, and the z-score."""

    cell: Mapping[str, object]
    metric: str
    simulated: float
    ci_low: float
    ci_high: float
    markov: float
    z: float
    trials: int
    events: int

    @property
    def agrees(self) -> bool:
        """Whether the difference lies within 99.9 %."""
        return abs(self.z) <= Z_LIMIT


def sized(cell: ValidationCell, most_failures: int = MAX_FAILURES) -> ValidationCell:
    """The cell with another duration and number of trials, which give enough events, and at most so many failures."""
    model, parameters = cell.model, cell.parameters
    years = max(MIN_REPAIRS_PER_TRIAL / model.repair, FAILURES_PER_TRIAL / model.failures)
    most_years = most_failures / model.failures
    rates = [answer.events * parameters.partitions for answer in solved(model).values()]
    needed_years = [WANTED_EVENTS / rate for rate in rates if rate * most_years >= MIN_EVENTS]
    trials = math.ceil(min(most_years, max(needed_years, default=most_years)) / years)
    parameters = parameters.model_copy(update={"duration_ms": round(years * YEAR_MS)})
    return ValidationCell(cell.given, parameters, max(MIN_TRIALS, trials))


def parts(cell: ValidationCell) -> list[ValidationCell]:
    """The cell, and where its trials are too few for a metric one that compares that by importance sampling, if the
    cell leaves the choice of the estimator open and importance sampling is possible."""
    if cell.parameters.estimator != "auto" or obstacle_to_importance(cell.parameters):
        return [cell]
    years = cell.trials * cell.parameters.partition_years
    possible = {name: found.events * years for name, found in solved(cell.model).items() if found.events > 0.0}
    rare = frozenset(name for name, events in possible.items() if events < MIN_EVENTS)
    parameters = sized(cell).parameters.model_copy(update={"estimator": "importance"})
    weighted = ValidationCell(cell.given, parameters, WEIGHTED_TRIALS, metrics=rare)
    return [*([cell] if rare != set(possible) else []), *([weighted] if rare else [])]


def left_out(cell: ValidationCell, found: Collection[str]) -> Iterator[str]:
    """A line for each metric of the chain that is not among those `found` of the cell."""
    years = cell.trials * cell.parameters.partition_years
    for metric, answer in solved(cell.model).items():
        if metric in found or answer.events == 0.0:
            continue
        if cell.is_weighted:
            yield f"{metric}: the weights of {cell.trials} trials say too little; not compared"
            continue
        needed = math.ceil(cell.trials * MIN_EVENTS / (answer.events * years))
        few = f"{answer.events * years:.2g} events expected in {cell.trials} trials"
        yield f"{metric}: {few}, {MIN_EVENTS} of them would take {needed:,} trials; not compared"


@contextmanager
def mapping(jobs: int | None) -> Iterator[Callable[..., Iterable[Any]]]:
    """The function `map`, in that many processes (1: in this one; None: as many as there are processors to use)."""
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1:
        yield map
    else:
        with process_pool(jobs, "spawn") as pool:
            yield pool.map


def _measured(parameters: CellParameters, first: int, stop: int) -> list[Measures]:
    """Every cell has trials of its own (no common random numbers), so that z-scores are independent."""
    trial = run_importance_trial if parameters.estimator == "importance" else run_trial
    seeds = (trial_seed(0, number, parameters) for number in range(first, stop))
    return [measure(trial(parameters, seed).rows) for seed in seeds]


Report = Callable[[int, int], None]
"""Is called with the number of trials that are done, and of those to do."""


def validate(
    cells: Sequence[ValidationCell],
    jobs: int | None,
    report: Report = lambda done, total: None,
    doubt: Callable[[CellComparison], None] = lambda first: None,
) -> list[CellComparison]:
    """Compares all cells, and those of which a result does not agree again; `doubt` is called with such results.

    ValueError for a cell that no chain covers.
    """
    cells = [part for cell in cells for part in parts(cell)]
    found = compare(cells, jobs, report)
    again = [index for index, items in enumerate(found) if not all(item.agrees for item in items)]
    for item in (item for index in again for item in found[index] if not item.agrees):
        doubt(item)
    repeated = [replace(cells[i], first=cells[i].first + cells[i].trials, trials=2 * cells[i].trials) for i in again]
    for index, items in zip(again, compare(repeated, jobs, report), strict=True):
        found[index] = items
    return [item for items in found for item in items]


def compare(
    cells: Sequence[ValidationCell], jobs: int | None, report: Report = lambda done, total: None
) -> list[list[CellComparison]]:
    """The comparisons of each cell, after its trials have run in `jobs` processes, on which the result does not depend.

    ValueError for a cell that no chain covers.
    """
    answers = [solved(cell.model) for cell in cells]
    tasks = [
        (index, first, min(first + TRIALS_PER_TASK, cell.first + cell.trials))
        for index, cell in enumerate(cells)
        for first in range(cell.first, cell.first + cell.trials, TRIALS_PER_TASK)
    ]
    total, done = sum(cell.trials for cell in cells), 0
    trials: list[list[Measures]] = [[] for _ in cells]
    with mapping(jobs) as run:
        arguments = zip(*((cells[index].parameters, first, stop) for index, first, stop in tasks), strict=True)
        for (index, *_), measures in zip(tasks, run(_measured, *arguments) if tasks else (), strict=True):
            trials[index] += measures
            done += len(measures)
            report(done, total)
    return [list(compared(*parts)) for parts in zip(cells, answers, trials, strict=True)]


def compared(
    cell: ValidationCell, answers: Mapping[str, Answer], trials: Sequence[Measures]
) -> Iterator[CellComparison]:
    """The metrics of a cell of which enough events are expected, or seen; if weighted, of enough effective number."""
    exposures = [trial.exposure for trial in trials]
    for metric, answer in answers.items():
        if cell.metrics is not None and metric not in cell.metrics:
            continue
        column = BY_NAME[metric].column
        values = [trial.values[column] for trial in trials]
        sums = Sums.of(values, exposures, sum(trial.events[column] for trial in trials))
        if cell.is_weighted and sums.value**2 < LEAST_EFFECTIVE * sums.variance:
            continue
        if max(sums.events, 0.0 if cell.is_weighted else answer.events * sums.exposure) < MIN_EVENTS:
            continue
        size = assumed_sizes(cell.parameters)[column]
        sums = sums.with_mean_weight(size) if cell.is_weighted else sums
        limits = (rate_limits if metric in RATES else fraction_limits)(sums, size)
        z = z_score(sums, answer.value, is_count=metric in RATES, is_weighted=cell.is_weighted)
        yield CellComparison(cell.given, metric, sums.ratio, *limits, answer.value, z, len(trials), sums.events)


def z_score(sums: Sums, expected: float, *, is_count: bool, is_weighted: bool = False) -> float:
    """How far the ratio of `sums` is from the `expected` one, in standard deviations, at most `Z_MAX`.

    `is_count`: the values count events, each as its weight if `is_weighted`; otherwise they are shares of time. With a
    ratio of 0, or 0 expected, the answer is 0 or `Z_MAX`.
    """
    if not is_count and expected > 0.5:
        return -_z_score(sums.exposure - sums.value, (1.0 - expected) * sums.exposure, sums)
    least = expected * sums.exposure if is_count and not is_weighted else 0.0
    return _z_score(sums.value, expected * sums.exposure, sums, least)


def _z_score(total: float, mean: float, sums: Sums, least: float = 0.0) -> float:
    """The z-score of a `total` with the variance of `sums`, at least `least`, if `mean` is expected."""
    if mean == 0.0 or total == 0.0:
        return 0.0 if mean == total else math.copysign(Z_MAX, total - mean)
    variance = max(least, sums.variance * mean / total)
    if variance == 0.0:
        return math.copysign(Z_MAX, total - mean)
    shape, scale = mean * mean / variance, variance / mean
    below = total < mean
    tail = gammainc(shape, total / scale) if below else gammaincc(shape, total / scale)
    distance = -float(ndtri(tail)) if tail > 0.0 else Z_MAX
    tail = stdtr(sums.trials - 1, -distance)
    distance = min(Z_MAX, -float(ndtri(tail))) if tail > 0.0 else Z_MAX
    return -distance if below else distance
