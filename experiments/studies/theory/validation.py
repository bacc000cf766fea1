"""The simulation against the Markov chain: many trials of a cell, and for each metric how far apart the two are.

Trials are sized by the chain: as many as give `WANTED_EVENTS` of the rarest metric that can be had within
`MAX_FAILURES` broker failures. Metrics of which fewer than `MIN_EVENTS` are expected are left out.

The z-score compares the sum over trials with the value that the chain predicts. If the chain is right, the sum behaves
like a sum of random portions at the times of a Poisson process, which a gamma distribution of the same mean and
variance describes well, including its skewness; a normal one would make low sums too unlikely and high ones too likely.
The variance is that of the trials, scaled to the predicted mean (a sum of random portions has a variance proportional
to its mean), and at least Poisson's for counts. The probability of a smaller sum becomes a quantile of Student's t,
because the variance is estimated, and then z.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from scipy.stats import gamma, norm, t

from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.estimation.statistics import Estimate, Moments, fraction, rate
from experiments.studies.theory.answers import Answer, model_of, solved
from experiments.studies.theory.measure import COUNTED, Observed, observe
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.trial import run_trial

MIN_EVENTS = 50
WANTED_EVENTS = 120
MAX_FAILURES = 2_000
"""Broker failures simulated per cell, unless the cell says how many trials of what duration it has."""
FAILURES_PER_TRIAL = 40
MIN_REPAIRS_PER_TRIAL = 50
"""Shortest trial, in mean times to repair."""
MIN_TRIALS = 30
TRIALS_PER_TASK = 4
Z_LIMIT = float(norm.ppf(1.0 - 0.001 / 2.0))
"""A result beyond it lies outside the interval of 99.9 %."""
Z_MAX = 37.0
"""Beyond it a normal probability is no longer a float; a larger z is this one."""

Observations = Sequence[Mapping[str, Observed]]


@dataclass(frozen=True, slots=True)
class ValidationCell:
    """A cell as its file gives it (`given`) and resolved (`parameters`); its number of trials."""

    given: Mapping[str, object]
    parameters: CellParameters
    trials: int

    @property
    def answers(self) -> Mapping[str, Answer]:
        """What the chain gives for each metric, per year. ValueError for a cell that no chain covers."""
        model = model_of(self.parameters)
        if model is None:
            raise ValueError(f"no Markov model for {self.parameters!r}")
        return solved(model)


@dataclass(frozen=True, slots=True)
class Comparison:
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


def sized(given: Mapping[str, object], parameters: CellParameters) -> ValidationCell:
    """The cell with a duration of its trials and a number of them that give enough events."""
    broker_failures = parameters.replication_factor / (parameters.broker_mttf.mean_ms + parameters.broker_mttr.mean_ms)
    shortest_ms = MIN_REPAIRS_PER_TRIAL * parameters.broker_mttr.mean_ms
    duration_ms = round(max(shortest_ms, FAILURES_PER_TRIAL / broker_failures))
    cell = ValidationCell(given, parameters.model_copy(update={"duration_ms": duration_ms}), MIN_TRIALS)
    most_ms = MAX_FAILURES / broker_failures
    needed_ms = [
        WANTED_EVENTS / answer.events * YEAR_MS / parameters.partitions
        for answer in cell.answers.values()
        if answer.events * most_ms / YEAR_MS * parameters.partitions >= MIN_EVENTS
    ]
    trials = math.ceil(min(most_ms, max(needed_ms, default=most_ms)) / duration_ms)
    return ValidationCell(given, cell.parameters, max(MIN_TRIALS, trials))


# -- trials ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """Trials `first` up to, not including, `stop` of the cell with that index."""

    cell: int
    parameters: CellParameters
    first: int
    stop: int

    def run(self) -> Observations:
        """Every cell has trials of its own (no common random numbers), so that z-scores are independent."""
        numbers = range(self.first, self.stop)
        return [
            observe(run_trial(self.parameters, trial_seed(0, number, self.parameters)).rows) for number in numbers
        ]


def compare(
    cells: Sequence[ValidationCell], jobs: int, report: Callable[[int, int], None] = lambda done, total: None
) -> list[Comparison]:
    """Runs the trials of all cells in `jobs` processes; `report` is called with the trials done and those to do.

    The result does not depend on `jobs`. ValueError for a cell that no chain covers.
    """
    tasks = [
        _Task(index, cell.parameters, first, min(first + TRIALS_PER_TASK, cell.trials))
        for index, cell in enumerate(cells)
        for first in range(0, cell.trials, TRIALS_PER_TASK)
    ]
    total, done = sum(cell.trials for cell in cells), 0
    answers = [cell.answers for cell in cells]
    observed: dict[int, Observations] = {}
    for index, observations in _results(tasks, jobs):
        observed[index] = observations
        done += len(observations)
        report(done, total)
    trials: list[list[Mapping[str, Observed]]] = [[] for _ in cells]
    for index, task in enumerate(tasks):
        trials[task.cell].extend(observed[index])
    return [
        comparison
        for cell, answer, found in zip(cells, answers, trials, strict=True)
        for comparison in compared(cell, answer, found)
    ]


def _results(tasks: Sequence[_Task], jobs: int) -> Iterator[tuple[int, Observations]]:
    """The observations of each task, by its index, as they are complete."""
    if jobs == 1:
        yield from ((index, task.run()) for index, task in enumerate(tasks))
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures: dict[Future[Observations], int] = {pool.submit(task.run): i for i, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


# -- comparison --------------------------------------------------------------------------------------------------------


def compared(cell: ValidationCell, answers: Mapping[str, Answer], trials: Observations) -> Iterator[Comparison]:
    """The metrics of a cell of which enough events are expected, or seen."""
    years = cell.parameters.partition_years
    for metric, answer in answers.items():
        events = sum(trial[metric].events for trial in trials)
        if max(events, answer.events * years * len(trials)) < MIN_EVENTS:
            continue
        is_count = metric in COUNTED
        exposure = years if is_count else years * YEAR_MS
        values = [trial[metric].value for trial in trials]
        estimate = _estimate(values, exposure, is_count)
        z = z_score(values, answer.value * exposure, is_count)
        yield Comparison(
            cell.given,
            metric,
            estimate.estimate,
            estimate.ci_low,
            estimate.ci_high,
            answer.value,
            z,
            len(trials),
            events,
        )


def _estimate(values: Sequence[float], exposure: float, is_count: bool) -> Estimate:
    if is_count:
        return rate(Moments.of(list(values)), exposure * len(values))
    return fraction(Moments.of([value / exposure for value in values]))


def z_score(values: Sequence[float], expected: float, is_count: bool) -> float:
    """How far the mean of one value per trial is from `expected`, in standard deviations, at most `Z_MAX`.

    `is_count`: the values count events; otherwise they are amounts. Without anything expected, 0 or `Z_MAX`.
    """
    total, mean = sum(values), expected * len(values)
    if mean == 0.0 or total == 0.0:
        return 0.0 if mean == total else math.copysign(Z_MAX, total - mean)
    variance = len(values) * Moments.of(list(values)).variance * mean / total
    if is_count:
        variance = max(variance, mean)
    shape, scale = mean * mean / variance, variance / mean
    below = total < mean
    tail = gamma.cdf(total, shape, scale=scale) if below else gamma.sf(total, shape, scale=scale)
    distance = -float(norm.ppf(tail)) if tail > 0.0 else Z_MAX
    distance = min(Z_MAX, -float(norm.ppf(max(t.sf(distance, len(values) - 1), 1e-299))))
    return -distance if below else distance
