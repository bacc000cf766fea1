"""How often the 95 % intervals of importance sampling hold a loss rate that is known by hand, for each failure model.

A *study* of a cell is `TRIALS` trials with their interval, as a report would have it; other seeds give other studies.
Intervals are right if 95 % of many studies hold the value, up to chance: of 200 studies 180 or more do in 999 of 1,000
cases. An estimator that misses a way to a loss has narrow intervals that hold it in few studies or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from scipy.stats import binom

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.intervals import rate_limits
from experiments.studies.estimation.moments import Sums
from experiments.studies.theory.first_order import loss_rate
from experiments.studies.trace.metrics import measure
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.importance import run_importance_trial
from experiments.support.declared import declared
from experiments.support.processes import process_pool

TRIALS = 8
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class _Cells:
    """The content of `coverage.yaml`, which says what the parts are."""

    base: dict[str, object]
    catch_up: dict[str, object]
    models: dict[str, dict[str, object]]


_CELLS = declared(_Cells, __file__, "coverage.yaml")
MODELS = _CELLS.models


@dataclass(frozen=True, slots=True)
class Coverage:
    """A cell: its failure model in words, the loss rate by hand per partition-year, the mean of the studies' estimates,
    and how many of the `studies` hold the value by hand in their interval."""

    model: str
    catch_up: bool
    by_hand: float
    mean: float
    covered: int
    studies: int

    @property
    def agrees(self) -> bool:
        """Whether so few studies hold the value by chance in a thousandth of cases at least."""
        return float(binom.cdf(self.covered, self.studies, CONFIDENCE)) >= 0.001


def cells() -> Iterator[tuple[str, bool, CellParameters]]:
    """Every failure model, without and with catch-up."""
    for name, fields in MODELS.items():
        for catch_up in (False, True):
            base = _CELLS.base | fields | ({"catch_up": _CELLS.catch_up} if catch_up else {})
            (cell,) = study_from({"name": "coverage", "trials": 1, "duration": "1d", "base": base}, "coverage").cells
            yield name, catch_up, cell.parameters


def coverage(studies: int, jobs: int) -> Iterator[Coverage]:
    """The coverage of every failure model in so many studies each, run in `jobs` processes (1: in this one)."""
    with ExitStack() as stack:
        run: Callable[..., Iterable[tuple[float, float, float]]]
        run = map if jobs == 1 else stack.enter_context(process_pool(jobs, "spawn")).map
        for name, catch_up, params in cells():
            by_hand = loss_rate(params)
            assert by_hand is not None
            found = list(run(_study, [params] * studies, range(studies)))
            covered = sum(low <= by_hand <= high for _, low, high in found)
            mean = sum(estimate for estimate, *_ in found) / studies
            yield Coverage(name, catch_up, by_hand, mean, covered, studies)


def _study(params: CellParameters, number: int) -> tuple[float, float, float]:
    """The loss rate that one study estimates, and its limits."""
    seeds = [trial_seed(number, trial, params) for trial in range(TRIALS)]
    measures = [measure(run_importance_trial(params, seed).rows) for seed in seeds]
    values = [found.values["losses"] for found in measures]
    sums = Sums.of(values, [found.exposure for found in measures], sum(found.events["losses"] for found in measures))
    sums = sums.with_mean_weight(1.0)
    return (sums.ratio, *rate_limits(sums, 1.0))
