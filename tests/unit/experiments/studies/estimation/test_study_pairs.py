"""Comparisons of paired cells, and the selection of the best one."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from experiments.studies.estimation.intervals import rate_limits
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import ROUNDING, Comparison, Products, _difference, _ratio, compare
from experiments.studies.estimation.selection import (
    are_equivalent,
    lowest,
    most_available,
    screening_alpha,
    simultaneous_alpha,
    trials_to_distinguish,
)

ONES = [1.0] * 40


def compared(mine: list[float], reference: list[float], paired: bool = True) -> Comparison:
    a, b = Sums.of(mine, ONES), Sums.of(reference, ONES)
    pairs = list(zip(mine, reference, strict=True))
    differing = sum(abs(x - y) > ROUNDING * max(x, y) for x, y in pairs)
    products = Products(40, sum(x * y for x, y in pairs), sum(mine), sum(reference), 40.0, differing)
    return compare(a, b, rate_limits(a), rate_limits(b), products if paired else None)


BUSY = [float(1 + 4 * (index % 3)) for index in range(40)]
ONE_MORE = [value + (index % 4 == 0) for index, value in enumerate(BUSY)]


def test_pairs_find_a_difference_that_independent_trials_do_not() -> None:
    paired, independent = compared(ONE_MORE, BUSY), compared(ONE_MORE, BUSY, paired=False)
    assert paired.difference.estimate == independent.difference.estimate == pytest.approx(0.25)
    assert paired.difference.ci_low > 0.0 > independent.difference.ci_low
    assert paired.ratio.ci_low > 1.0
    assert paired.pairs == 40
    assert paired.pairing_gain is not None
    assert paired.pairing_gain > 50
    assert (independent.pairs, independent.pairing_gain) == (0, None)


def test_cells_that_never_differ_have_an_interval_as_wide_as_a_few_events() -> None:
    same = compared(BUSY, BUSY)
    assert same.difference.estimate == 0.0
    assert same.difference.ci_low * 40 < -2.5
    assert same.difference.ci_high * 40 > 2.5
    assert (same.ratio.estimate, same.pairing_gain) == (1.0, None)


def test_sums_that_differ_by_rounding_are_equal() -> None:
    rounded = compared([value * (1.0 + 3e-11) * 1e-12 for value in BUSY], [value * 1e-12 for value in BUSY])
    assert rounded.difference.estimate == 0.0
    small = compared([value * (1.0 + 1e-8) * 1e-12 for value in BUSY], [value * 1e-12 for value in BUSY])
    assert small.difference.estimate == pytest.approx(1e-20 * sum(BUSY) / 40, rel=1e-6)


def test_few_differing_pairs_are_no_difference() -> None:
    """The exact sign test needs six pairs that all differ in one direction: 2 x 0.5^6 = 0.031."""

    def low(more: int) -> float:
        return compared([value + (index < more) for index, value in enumerate(BUSY)], BUSY).difference.ci_low

    assert low(5) <= 0.0 < low(12)


def test_ratio_without_an_upper_limit_says_so() -> None:
    none = [0.0] * 40
    some = compared(BUSY, none)
    assert (some.ratio.estimate, some.ratio.ci_high) == (None, None)
    assert some.ratio.ci_low > 1.0
    assert compared(none, BUSY).ratio.ci_low == 0.0
    assert compared(none, none).difference.ci_low < 0.0 < compared(none, none).difference.ci_high


@pytest.mark.parametrize(
    ("mine", "other", "rho", "low", "high"),
    [
        # Nothing seen in the reference: 0.2 - sqrt(0.1^2 + t^2 0.05^2) = 0 at t = sqrt(0.03) / 0.05.
        ((0.2, 0.1, 0.4), (0.0, 0.0, 0.05), 0.0, math.sqrt(0.03) / 0.05, None),
        # Nothing seen here: -0.2 t + sqrt(0.03^2 + t^2 0.1^2) = 0 at t = 0.03 / sqrt(0.03).
        ((0.0, 0.0, 0.03), (0.2, 0.1, 0.4), 0.0, 0.0, 0.03 / math.sqrt(0.03)),
        # Pairs that move together: with p = b = 0.2, q = 0.05, rho = 0.9 the roots are 0 and 2 (0.02 - 0.009) / 0.0075.
        # The latter is above the estimate 2, where nothing is excluded from below.
        ((0.2, 0.0, 0.3), (0.1, 0.0, 0.15), 0.9, 0.0, None),
    ],
)
def test_ratio_with_a_limit_of_0_inverts_the_difference(
    mine: tuple[float, float, float],
    other: tuple[float, float, float],
    rho: float,
    low: float,
    high: float | None,
) -> None:
    """By hand: where the limits of b - t a meet 0, with p and q the distances of the limits from b and a."""
    found = _ratio(mine, other, rho)
    assert (found.ci_low, found.ci_high) == (pytest.approx(low), None if high is None else pytest.approx(high))


def test_ratio_excludes_1_where_the_difference_excludes_0() -> None:
    """Over limits some of which are 0, with pairs that move together or apart."""
    excluded = 0
    for b, a in itertools.product((0.0, 0.01, 0.1, 0.3, 1.0), repeat=2):
        for low_b, low_a, rho in itertools.product((0.0, 0.5), (0.0, 0.5), (-0.5, 0.0, 0.7, 0.99)):
            if b + a > 0.0 and (b * low_b == 0.0 or a * low_a == 0.0) and (rho == 0.0 or a * b > 0.0):
                mine, other = (b, b * low_b, 1.6 * b + 0.02), (a, a * low_a, 1.6 * a + 0.02)
                ratio, (_, low, high) = _ratio(mine, other, rho), _difference(mine, other, rho)
                assert (ratio.ci_low > 1.0) == (low > 0.0)
                assert (ratio.ci_high is not None and ratio.ci_high < 1.0) == (high < 0.0)
                excluded += low > 0.0 or high < 0.0
    assert excluded > 40


@pytest.mark.parametrize(
    ("changed", "identical"),
    [(0, True), (1, False)],
)
def test_the_same_events_in_every_pair_are_no_lack_of_evidence(changed: int, identical: bool) -> None:
    assert compared(BUSY, [value + (index < changed) for index, value in enumerate(BUSY)]).identical == identical
    assert not compared(BUSY, BUSY, paired=False).identical, "trials that are no pairs show nothing of the kind"
    assert not compared([0.0] * 40, [0.0] * 40).identical, "nothing was seen"


def test_degenerate_weights_make_a_comparison_degenerate() -> None:
    """Two events, of which one has nearly all of the weight."""
    few = replace(Sums.of([1e-9, *[0.0] * 39], ONES, 2), weight=1e-9, weight_squares=1e-18, largest_weight=1e-9)
    many = Sums.of(BUSY, ONES)
    products = Products(40, 0.0, 1e-9, sum(BUSY), 40.0, 40)
    found = compare(many, few, rate_limits(many), (0.0, 9.0), products)
    assert (found.degenerate, compared(BUSY, BUSY).degenerate) == (True, False)
    assert found.difference.estimate > 0.0
    assert trials_to_distinguish(found, 40) is None
    assert trials_to_distinguish(replace(found, degenerate=False), 40) is not None
    assert not are_equivalent(replace(compared(BUSY, BUSY), degenerate=True), 100.0)


def test_selection_prefers_few_losses_then_copies_then_availability() -> None:
    def cell(loss: float, unwritable: float) -> dict[str, float]:
        return {"loss_rate": loss, "unwritable_fraction": unwritable}

    cells = [cell(0.2, 0.0), cell(0.1, 0.2), cell(0.1, 0.1)]
    assert lowest(cells, "loss_rate", [0, 1, 2], [1, 1, 1]) == 2
    assert lowest(cells, "loss_rate", [0, 1, 2], [2, 2, 1]) == 1
    nearly = [cell(0.1 * (1.0 + 1e-14), 0.2), cell(0.1, 0.1)]
    assert lowest(nearly, "loss_rate", [0, 1], [2, 1]) == 0, "a difference of rounding is none"
    assert most_available(cells, [1, 2]) == 2
    assert most_available(cells, [0, 1, 2]) == 0


def test_confidence_of_selection_is_shared_by_the_cells() -> None:
    assert [screening_alpha(cells) for cells in (2, 3, 11)] == pytest.approx([0.1, 0.05, 0.01])
    assert [simultaneous_alpha(cells) for cells in (2, 3, 5)] == pytest.approx([0.05, 0.05 / 3, 0.005])
