"""Limits of quantiles: ranks of order statistics, and their widening where outages of a trial depend on each other."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.studies.estimation.intervals import independent_times, rank_shares, shares_of
from experiments.studies.estimation.moments import Sums


def up_to(groups: list[list[float]], p: float) -> Sums:
    """The sums over trials for the p-quantile of all times; a trial is a list of times."""
    times = np.sort(np.concatenate([np.asarray(group) for group in groups]))
    quantile = times[int(np.ceil(p * len(times) - 1e-9)) - 1]
    below = [float(sum(time <= quantile for time in group)) for group in groups]
    return Sums.of(below, [float(len(group)) for group in groups], events=len(times))


def test_ranks_equal_the_printed_table() -> None:
    """Ranks for the median of 20 times: the 6th and the 15th (David and Nagaraja, 7.1)."""
    shares = rank_shares(0.5, 20)
    assert (shares.low, shares.high) == (pytest.approx(6 / 20), pytest.approx(15 / 20))


def test_high_quantile_of_few_times_has_no_upper_limit() -> None:
    assert rank_shares(0.99, 100).high is None
    assert rank_shares(0.99, 1_000).high is not None
    assert rank_shares(0.5, 3).low is None
    assert rank_shares(0.5, 0.5).low is rank_shares(0.5, 0.5).high is None


def test_outages_that_agree_within_trials_count_as_one_per_trial() -> None:
    random = np.random.default_rng(1)
    single = [[float(value)] for value in random.exponential(1.0, 50)]
    repeated = [group * 10 for group in single]
    independent, dependent = independent_times(0.5, up_to(single, 0.5)), independent_times(0.5, up_to(repeated, 0.5))
    assert independent == pytest.approx(50, rel=0.1)
    assert dependent == pytest.approx(independent, rel=0.05)


def test_both_quantiles_use_the_smaller_number_of_times() -> None:
    groups = [[float(index)] * 20 for index in range(40)]
    median, high = shares_of([(0.5, up_to(groups, 0.5)), (0.99, up_to(groups, 0.99))])
    assert median.low is not None
    assert median.low < 0.4
    assert high.high is None
