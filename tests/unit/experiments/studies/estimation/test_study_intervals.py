"""Limits of rates and shares of time: printed values, the guards, and what is reported where nothing was seen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.intervals import (
    assumed_sizes,
    effective_trials,
    fraction_limits,
    gamma_limits,
    interval,
    limits,
    rate_limits,
    zero_bound,
)
from experiments.studies.estimation.moments import Sums, degeneracy, effective_years, widening
from experiments.studies.trace.metrics import METRICS
from experiments.studies.trace.schema import YEAR_MS

BY_NAME = {metric.name: metric for metric in METRICS}
SIZES = dict.fromkeys((metric.column for metric in METRICS), 1.0) | {"offline": 1e-3, "refuses": 1e-3, "stalled": 1e-5}


def counted(counts: list[int]) -> Sums:
    return Sums.of(counts, [1.0] * len(counts))


@pytest.mark.parametrize(
    ("events", "low", "high"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (5, 1.6235, 11.6683), (10, 4.7954, 18.3904)],
)
def test_rate_limits_of_independent_events_equal_the_printed_tables(events: int, low: float, high: float) -> None:
    trials = 1_000
    found = rate_limits(counted([1] * events + [0] * (trials - events)))
    assert found[0] * trials == pytest.approx(low, abs=1e-3)
    assert found[1] * trials == pytest.approx(high, abs=0.02)


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=50))
def test_limits_are_never_narrower_than_those_of_independent_events(counts: list[int]) -> None:
    low, high = rate_limits(counted(counts))
    total = sum(counts)
    exact = gamma_limits(total, total, 1.0, 0.05) if total else (0.0, 3.6888)
    assert low * len(counts) <= exact[0] + 1e-9
    assert high * len(counts) >= exact[1] - 1e-9


def test_zero_events_give_the_one_sided_bound() -> None:
    found = interval(BY_NAME["loss_rate"], counted([0] * 50), SIZES)
    assert (found.estimate, found.ci_low, found.one_sided) == (0.0, 0.0, True)
    assert found.ci_high == pytest.approx(-math.log(0.05) / 50)
    assert zero_bound(1.0) == pytest.approx(2.9957, abs=1e-4)


def test_share_never_seen_is_bounded_by_its_episodes() -> None:
    found = interval(BY_NAME["offline_fraction"], counted([0] * 80), SIZES)
    assert found.one_sided
    assert found.ci_high == pytest.approx(3.00 / 80 * 1e-3, rel=0.01)


def test_assumed_episodes_follow_from_repair_and_detection() -> None:
    years = assumed_sizes(CellParameters(replication_factor=2, min_insync_replicas=1, detection_ms=9_000))
    assert years["stalled"] * YEAR_MS == pytest.approx(10_000)
    assert years["offline"] * YEAR_MS == pytest.approx(1.5 * 900_000 + 10_000)


def test_lost_records_that_were_never_seen_are_bounded_by_records_at_risk() -> None:
    sizes = assumed_sizes(CellParameters(), records=20.0)
    assert sizes["losses"] == 1.0
    found = interval(BY_NAME["lost_records_per_year"], counted([0] * 50), sizes)
    assert found.ci_high == pytest.approx(3.00 / 50 * 20, rel=0.01)
    few = Sums.of([4.0] + [0.0] * 49, [1.0] * 50, events=1)
    assert rate_limits(few, size=20.0)[1] > rate_limits(few, size=4.0)[1]


@settings(deadline=None)
@given(n=st.integers(300, 500), share=st.floats(0.05, 0.95))
def test_share_of_ones_and_zeros_is_close_to_clopper_and_pearson(n: int, share: float) -> None:
    ones = round(n * share)
    found = fraction_limits(Sums.of([1.0] * ones + [0.0] * (n - ones), [1.0] * n, events=10**6), 0.0)
    exact = binomtest(ones, n).proportion_ci(method="exact")
    assert found[0] == pytest.approx(exact.low, abs=0.02)
    assert found[1] == pytest.approx(exact.high, abs=0.02)


def test_effective_trials_are_fewer_the_more_trials_differ() -> None:
    alike = Sums.of([0.1, 0.11] * 20, [1.0] * 40, events=10**6)
    apart = Sums.of([0.0, 0.21] * 20, [1.0] * 40, events=10**6)
    assert effective_trials(alike) > 1_000 > effective_trials(apart)
    assert effective_trials(Sums.of([0.1] * 40, [1.0] * 40, events=40)) == 40


def test_ratio_estimator_removes_what_the_exposure_explains() -> None:
    exposures = [1.0, 2.0, 3.0, 4.0]
    proportional = Sums.of([2.0 * each for each in exposures], exposures)
    assert proportional.ratio == 2.0
    assert proportional.variance == 0.0
    assert Sums.of([8.0, 6.0, 4.0, 2.0], exposures).variance > 10.0


def test_few_trials_widen_by_t() -> None:
    assert widening(8, 0.05) == pytest.approx((2.3646 / 1.96) ** 2, rel=1e-3)
    assert widening(1, 0.05) == 1.0
    assert widening(10_000, 0.05) == pytest.approx(1.0, abs=1e-3)


def weighted(weights: list[float], trials: int = 100) -> Sums:
    """One event of each weight, each in a trial of its own."""
    sums = Sums.of([*weights, *[0.0] * (trials - len(weights))], [1.0] * trials, events=len(weights))
    squares = sum(weight * weight for weight in weights)
    return replace(
        sums,
        weight=sum(weights),
        weight_squares=squares,
        largest_weight=max(weights),
        size_squares=squares,
        largest_size=max(weights),
    )


def test_equal_weights_scale_the_limits_of_counts() -> None:
    low, high = rate_limits(weighted([1e-6] * 40))
    exact = rate_limits(weighted([1.0] * 40))
    assert (low * 1e6, high * 1e6) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("sums", "reason"),
    [
        (weighted([1e-6] * 40), None),
        (weighted([1.0] * 3), None),
        (weighted([1e-6] * 5), "5 events are worth 5.0"),
        (weighted([1e-6] * 30 + [1e-3]), "worth 1.1"),
        (weighted([1e-6] * 100 + [2.6e-5], 200), "one event has 21 %"),
        (replace(weighted([1e-6] * 40), exposure=30.0), "mean weight of the exposure is 0.3"),
        (replace(weighted([1e-6] * 40), value_squares=4e-10), "100 trials are worth 4.1 independent events"),
    ],
)
def test_degenerate_weights_are_found(sums: Sums, reason: str | None) -> None:
    found = degeneracy(sums)
    assert found is reason if reason is None else reason in str(found)


def test_degenerate_weights_never_give_a_tight_interval() -> None:
    sums = weighted([1e-6] * 30 + [1e-3])
    found = interval(BY_NAME["loss_rate"], sums, SIZES)
    assert found.degenerate
    assert found.ci_low == 0.0
    assert found.ci_high == limits(BY_NAME["loss_rate"], sums, SIZES)[1] == pytest.approx(3.689 / 100, rel=1e-3)
    uneven = replace(sums, exposure=100.1, exposure_squares=100.1**2 / 4)
    assert effective_years(uneven) == pytest.approx(4.0)
    assert interval(BY_NAME["loss_rate"], uneven, SIZES).ci_high > 0.9
