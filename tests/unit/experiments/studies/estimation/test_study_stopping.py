"""The stopping rule: where it looks, when it stops, what it says if it cannot, and its bias."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from experiments.studies.design.study import Precision
from experiments.studies.estimation.moments import Estimate
from experiments.studies.estimation.stopping import LEAST_EFFECTIVE_EVENTS, LeadingTrials, shortfall, wanted_trials

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
EPISODE_YEARS = 1e-4


def leading(values: list[float], events: list[int] | None = None) -> LeadingTrials:
    return LeadingTrials(values, [1.0] * len(values), events or [int(value) for value in values], EPISODE_YEARS)


def test_looks_approach_the_number_of_trials_that_the_precision_needs() -> None:
    precision = Precision(relative_error=0.2, max_trials=10_000)
    assert wanted_trials(precision, leading([])) == 64
    assert wanted_trials(precision, leading([0.0, 1.0] * 32)) == pytest.approx(
        0.8 * 2 * LEAST_EFFECTIVE_EVENTS, rel=0.1
    )
    assert wanted_trials(precision, leading([0.0] * 64)) == 128
    assert wanted_trials(precision, leading([0.0, 1.0] * 200)) <= 400


def test_weighted_trials_stop_at_the_precision() -> None:
    """Events that weigh a billionth of one of the model: one more of them changes the estimate by its own weight."""
    random = np.random.default_rng(1)
    counts = random.poisson(6.0, 2_000)
    values = [1e-9 * float(random.lognormal(0.0, 1.0, count).sum()) for count in counts]
    trials = LeadingTrials(values, [4.0] * 2_000, counts, 1.0, is_weighted=True)
    stop = wanted_trials(Precision(relative_error=0.1, max_trials=2_000), trials)
    estimate, effective = trials.estimate("loss_rate", stop)
    assert 64 < stop < 400
    assert estimate.half_width <= 0.1 * estimate.estimate
    assert effective >= LEAST_EFFECTIVE_EVENTS


def test_first_look_is_not_beyond_the_largest_number_of_trials() -> None:
    assert wanted_trials(Precision(relative_error=0.2, max_trials=20), leading([])) == 20
    assert wanted_trials(Precision(relative_error=0.2, max_trials=100), leading([0.0] * 100)) == 100


@pytest.mark.parametrize(
    ("estimate", "line"),
    [
        (Estimate(1.0, 0.91, 1.09), None),
        (Estimate(1.0, 0.69, 1.31), "0.31 reached with max_trials 1,000, about 9,600 trials needed"),
        (Estimate(0.0, 0.0, 0.003), "nothing seen in 1,000 trials"),
    ],
)
def test_precision_out_of_reach_says_by_how_much(estimate: Estimate, line: str | None) -> None:
    found = shortfall(Precision(relative_error=0.1, max_trials=1000), estimate, 1000)
    assert found == line if line is None else line in str(found)


def counts(random: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    events = random.poisson(0.5, trials)
    return events.astype(float), events


def outages(random: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    events = random.poisson(0.5, trials)
    return random.standard_gamma(np.maximum(events, 1e-9)) * (events > 0) * EPISODE_YEARS, events


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "draw", "mean"), [("loss_rate", counts, 0.5), ("offline_fraction", outages, 0.5 * EPISODE_YEARS)]
)
def test_bias_of_sequential_stopping_is_below_one_percent(metric: str, draw: Draw, mean: float) -> None:
    """By Wald's identity the sum of (value - mean) over the trials until a stop has mean 0. Divided by the mean number
    of trials it is a control variate, which leaves a standard error of the bias of 0.1 %."""
    precision = Precision(metric=metric, relative_error=0.2, max_trials=10_000)
    random = np.random.default_rng(7)
    stops, excesses = [], []
    for _ in range(200):
        values, events = draw(random, 2_000)
        trials = wanted_trials(precision, LeadingTrials(values, np.ones(2_000), events, EPISODE_YEARS))
        stops.append(trials)
        excesses.append(values[:trials].sum() - mean * trials)
    n, excess = np.array(stops), np.array(excesses) / mean
    bias = float((excess * (1.0 / n - 1.0 / n.mean())).mean())
    assert n.max() < 2_000
    assert abs(bias) < 0.01


def test_degenerate_weights_give_no_number_of_trials() -> None:
    """The interval does not rest on the weights, so that its length says nothing about the trials needed."""
    precision = Precision(relative_error=0.02, max_trials=3)
    said = shortfall(precision, Estimate(3.5e-8, 0.0, 0.36, events=15, degenerate=True), 3)
    assert said is not None
    assert said.endswith("weights degenerate after 3 trials (max_trials 3); how many trials are needed is not known")
