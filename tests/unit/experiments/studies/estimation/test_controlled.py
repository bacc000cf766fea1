"""The control variate: values by hand, and how often its intervals hold a rate that is known."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.studies.estimation.controlled import (
    FOLDS,
    NO_CONTROL,
    Coefficient,
    Controls,
    coefficients,
    controlled,
    controlled_values,
    drawing_gain,
    folded,
    total_of,
)
from experiments.studies.estimation.intervals import fraction_limits, rate_limits
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.stopping import LeadingTrials

TRIALS = 60
RUNS = 20


def events(random: np.random.Generator, rate: float, agreement: float) -> LeadingTrials:
    """Trials of length 1 with Poisson counts of that rate. An event of the trial is one of its control, too, with
    probability `agreement`; otherwise the control has an independent one of its own."""
    shared = random.poisson(rate * agreement, TRIALS)
    values = shared + random.poisson(rate * (1.0 - agreement), TRIALS)
    control = shared + random.poisson(rate * (1.0 - agreement), TRIALS)
    means = random.poisson(rate * RUNS, TRIALS) / RUNS
    ones = np.ones(TRIALS)
    controls = Controls(ones * RUNS, ones, ones, control.astype(float), means)
    return LeadingTrials(values.astype(float), ones, values.astype(float), 1.0, controls=controls)


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.97, 1.0])
def test_intervals_hold_the_rate(agreement: float) -> None:
    """Of 400 studies at 95 %, 365 or more hold the rate in 999 of 1,000 cases (binomial). The mean of the estimates is
    the rate within 4 standard errors, those of the trials without control."""
    random = np.random.default_rng(17)
    found = [events(random, 1.5, agreement).estimate("loss_rate", TRIALS)[0] for _ in range(400)]
    assert sum(each.ci_low <= 1.5 <= each.ci_high for each in found) >= 365
    mean = sum(each.estimate for each in found) / 400
    assert mean == pytest.approx(1.5, abs=4 * math.sqrt(1.5 / TRIALS / 400))


def test_controls_that_agree_narrow_the_interval() -> None:
    """With R = 20 the variance falls to 1 / 21 where all agree. With 90 events the interval cannot be narrower than
    3.7 unseen disagreements allow: 1.96 sqrt(3.7) = 3.8 events on each side, of 90, against 1.96 sqrt(90) = 18.6."""
    random = np.random.default_rng(3)
    leading = events(random, 1.5, 1.0)
    plain = LeadingTrials(leading.values, leading.exposures, leading.events, 1.0)
    narrow, wide = (each.estimate("loss_rate", TRIALS)[0] for each in (leading, plain))
    assert 3.0 < wide.half_width / narrow.half_width < 18.6 / 3.8
    assert narrow.half_width * TRIALS >= 3.8


def test_no_disagreement_is_not_taken_for_none() -> None:
    """The unseen part by hand: 12 events of size 1, all of them the controls' too, no further control differs. Then the
    variance is that of 3.69 events: gamma limits of a total of 12."""
    values = np.array([1.0] * 12 + [0.0] * 8)
    ones = np.ones(20)
    leading = Controls(ones * 5, ones, ones, values, np.full(20, 0.6))
    sums = Sums.of(controlled_values(values, leading, [Coefficient(1.0, 0.6)] * FOLDS), ones, 12)
    assert sums.variance == 0.0
    found = controlled(sums, total_of(folded(values, ones, values, leading)))
    assert found.size_squares == pytest.approx(min(sums.size_squares, -math.log(0.025)))
    low, high = rate_limits(found)
    assert low * 20 < 12 - 1.9 * math.sqrt(3.69) + 1.0
    assert high * 20 > 12 + 1.9 * math.sqrt(3.69)


def test_shares_of_time_rest_on_the_episodes_times_the_gain() -> None:
    """Each of 40 trials is down for one episode of exponential length, which its control sees to 1 %; the mean of 20
    others is subtracted. Without control 40 episodes have the relative error sqrt(2 / 40) at least."""
    random = Random(5)
    lengths = np.array([random.expovariate(1.0) for _ in range(40)]) / 100.0
    control = lengths * np.array([1.0 + random.gauss(0.0, 0.01) for _ in range(40)])
    means = np.array([sum(random.expovariate(1.0) for _ in range(20)) / 2_000.0 for _ in range(40)])
    ones = np.ones(40)
    leading = LeadingTrials(lengths, ones, ones, 0.01, controls=Controls(ones * 20, ones, ones, control, means))
    found, _ = leading.estimate("offline_fraction", 40)
    plain = fraction_limits(Sums.of(lengths, ones, 40), 0.01)
    assert found.ci_low <= 0.01 <= found.ci_high
    assert found.half_width < 0.5 * (plain[1] - plain[0]) / 2.0


def test_one_more_episode_counts_for_the_years_of_the_controls() -> None:
    """20 episodes in 2 of 20 trials: Var(p) over trials, 4.7e-5, is more than the least of 20 episodes, 2 p^2 / 20 =
    1e-5. So the gain of 8 has no part but in the one more episode, of 0.2 / 8 = 0.025."""
    sums = Sums.of([0.1, 0.1, *[0.0] * 18], np.ones(20), 20)
    found = fraction_limits(replace(sums, gain=8.0), 0.2)
    assert found == pytest.approx(fraction_limits(sums, 0.025))
    assert found[1] < fraction_limits(sums, 0.2)[1]


@pytest.mark.parametrize("differing", [0.0, 0.1])
def test_intervals_of_shares_of_time_with_controls_hold_the_share(differing: float) -> None:
    """24 trials with 1 episode on average, of exponential length with half the assumed mean; a share of the controls
    is of other failures. 93 % of 150 studies at least, where 95 % are promised, and at most half the width without."""
    random, ones, held, widths = np.random.default_rng(3), np.ones(24), 0, np.zeros(2)

    def lengths(trials: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        episodes = random.poisson(1.0, trials)
        return random.gamma(np.maximum(episodes, 1e-9)) * 0.005, episodes.astype(float)

    for _ in range(150):
        values, episodes = lengths(24)
        control = np.where(random.random(24) < differing, lengths(24)[0], values)
        means = np.array([lengths(16)[0].mean() for _ in range(24)])
        controls = Controls(ones * 16, ones, ones, control, means)
        found, without = (
            LeadingTrials(values, ones, episodes, 0.01, controls=each).estimate("offline_fraction", 24)[0]
            for each in (controls, None)
        )
        held += found.ci_low <= 0.005 <= found.ci_high
        widths += found.half_width, without.half_width
    assert held >= 0.93 * 150
    assert widths[0] < 0.7 * widths[1]


def test_a_metric_with_few_events_has_no_control() -> None:
    values = np.array([1.0] * 9 + [0.0] * 31)
    ones = np.ones(40)
    controls = Controls(ones * 5, ones, ones, values, np.full(40, 0.2))
    assert coefficients(folded(values, ones, values, controls)) == [NO_CONTROL] * FOLDS


def test_the_coefficient_by_hand() -> None:
    """x is 0 or 2, c = 2 x, all exposures are 1: e is 1 up or down, f twice as much, so that Cov(e, f) / Var(f) = 1/2
    and rho = 1. With R = 3 beta is 1/2 * 3/4, in folds whose trials have the same mean as all others, the gain is
    1 / (1 - 3/4) = 4, and with C = 2, its mean, x' = x - 3/8 (2 x - 2) = 3/4 + x / 4."""
    values = np.tile(np.repeat([0.0, 2.0], FOLDS), 10)
    ones = np.ones(len(values))
    controls = Controls(ones * 3, ones, ones, 2.0 * values, ones * 2.0)
    sums = folded(values, ones, values, controls)
    assert [found.beta for found in coefficients(sums)] == pytest.approx([0.375] * FOLDS)
    assert controlled_values(values, controls, coefficients(sums)) == pytest.approx(0.75 + values / 4.0)
    assert total_of(sums).correlation == pytest.approx(1.0)
    assert total_of(sums).gain == pytest.approx(4.0)


def test_correlation_and_gain_of_few_trials_do_not_depend_on_other_controls() -> None:
    """8 trials that agree with their controls, R = 20, and means C of others that vary: rho is 1 and the gain 21. A
    correlation of e and d, 0.67 with these means, would give 1.8."""
    values = np.array([1.0, 3.0, 0.0, 2.0, 2.0, 5.0, 1.0, 2.0])
    ones = np.ones(8)
    means = np.array([1.2, 4.9, 1.8, 4.1, 2.5, 2.2, 1.9, 2.4])
    sums = total_of(folded(values, ones, values, Controls(ones * 20, ones, ones, values, means)))
    assert np.corrcoef(values, values - means)[0, 1] == pytest.approx(0.67, abs=0.01)
    assert (sums.correlation, sums.gain) == pytest.approx((1.0, 21.0))


def test_correlation_and_gain_of_ratios_by_numpy() -> None:
    """Trials and controls of various lengths and weights: rho is numpy's of the residuals, which have mean 0."""
    random = np.random.default_rng(11)
    w, v = random.uniform(0.5, 2.0, 40), random.uniform(0.5, 2.0, 40)
    shared = random.poisson(3.0, 40)
    x, c = shared * w, shared * v + random.poisson(1.0, 40)
    ones = np.ones(40)
    sums = total_of(folded(x, w, shared, Controls(ones * 9, v, ones, c, ones * 4.0)))
    rho = np.corrcoef(x - x.sum() / w.sum() * w, c - c.sum() / v.sum() * v)[0, 1]
    assert sums.correlation == pytest.approx(rho)
    assert sums.gain == pytest.approx(1.0 / (1.0 - 0.9 * rho**2))


def test_weights_of_trials_and_controls_are_residuals() -> None:
    """A control whose exposure differs from the mean of others is corrected by s: a trial twice as long has twice the
    events, and x' says nothing more for that. x = 3 w exactly gives no variance without control, and none with it."""
    exposures = np.tile([1.0, 2.0], 20)
    values = 3.0 * exposures
    ones = np.ones(40)
    controls = Controls(ones * 4, exposures, ones * 1.5, values, ones * 4.5)
    sums = total_of(folded(values, exposures, values, controls))
    assert sums.rate == pytest.approx(3.0)
    assert sums.spread == pytest.approx(0.0, abs=1e-9)
    assert sums.correlation is None


def test_gain_of_drawing_is_that_of_the_weights_of_events() -> None:
    """Four events that weigh 1/4, 1/4, 1/2 and 1 stand for 2 plain ones: 2 / (1/16 + 1/16 + 1/4 + 1) = 16 / 11."""
    sums = Sums.of([1.0, 1.0, 1.0, 1.0], [1.0] * 4)
    assert drawing_gain(sums) is None
    assert drawing_gain(replace(sums, weight=2.0, weight_squares=1.375)) == pytest.approx(16 / 11)
    assert drawing_gain(Sums.of([0.0], [1.0])) is None
