"""Pairs of simulated trials: two cells that differ in a protocol setting see the same failures, which saves trials."""

from __future__ import annotations

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.estimation.intervals import assumed_sizes, limits
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import Comparison, Products, compare
from experiments.studies.trace.metrics import FRACTIONS, Measures, measure
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.trial import run_trial

PAIRS = 16
BASE = CellParameters(
    broker_mttf=Distribution(mean_ms=12 * DAY_MS),
    broker_mttr=Distribution(mean_ms=3 * DAY_MS),
    tail_loss_probability=0.5,
    duration_ms=30 * DAY_MS,
)


def trials_of(generation: str) -> list[Measures]:
    cell = BASE.model_copy(update={"generation": generation})
    return [measure(run_trial(cell, trial_seed(1, number)).rows) for number in range(PAIRS)]


@pytest.fixture(scope="module")
def cells() -> tuple[list[Measures], list[Measures]]:
    return trials_of("kip-966"), trials_of("kip-497")


def compared(mine: list[Measures], reference: list[Measures], name: str, paired: bool) -> Comparison:
    metric, sizes = FRACTIONS[name], assumed_sizes(BASE)
    x, y = ([trial.values[metric.column] for trial in trials] for trials in (mine, reference))
    a, b = (
        Sums.of(values, [trial.exposure for trial in trials], sum(trial.events[metric.column] for trial in trials))
        for values, trials in ((x, mine), (y, reference))
    )
    years = mine[0].exposure
    both = sum(one * other for one, other in zip(x, y, strict=True))
    differing = sum(one != other for one, other in zip(x, y, strict=True))
    products = Products(PAIRS, both, sum(x) * years, sum(y) * years, PAIRS * years * years, differing)
    return compare(a, b, limits(metric, a, sizes), limits(metric, b, sizes), products if paired else None)


@pytest.mark.slow
def test_paired_trials_compare_rejecting_with_fewer_trials(cells: tuple[list[Measures], list[Measures]]) -> None:
    paired, independent = (compared(*cells, "reject_fraction", paired) for paired in (True, False))
    assert paired.pairing_gain is not None
    assert paired.pairing_gain > 4.0
    lengths = [found.difference.ci_high - found.difference.ci_low for found in (paired, independent)]
    assert lengths[0] < 0.7 * lengths[1]


@pytest.mark.slow
def test_settings_that_do_not_matter_for_a_metric_are_not_distinguished(
    cells: tuple[list[Measures], list[Measures]],
) -> None:
    """Detection is the same in both generations, and so is the time until a silent leader is fenced."""
    stalled = compared(*cells, "stall_fraction", paired=True).difference
    assert stalled.ci_low < 0.0 < stalled.ci_high
