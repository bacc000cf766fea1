"""Targets: what is met, missed and not shown, what it takes, and how far failures may grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from experiments.studies.design.model import CellParameters
from experiments.studies.design.targets import Targets
from experiments.studies.estimation.growth import Cause, Cycle, Harms, growth, upper_limit
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.selection import cost_of_copies
from experiments.studies.estimation.targets import Measured, TargetAnswer, answer, cheapest, measured
from tests.synthetic_studies import study_of

SIZES = {"unwritable": 1e-4}


def asked(incidents: float | None = None, writable: float | None = None, **base: object) -> Measured:
    (found,) = measured(Targets(incidents=incidents, writable=writable), study_of(base=base).cells[0].parameters)
    return found


def answered(asked: Measured, losses: list[float], statements: int = 1, events: int | None = None) -> TargetAnswer:
    """The answer of trials of one year each."""
    sums = Sums.of(losses, [1.0] * len(losses), events)
    return answer(asked, sums, SIZES, float(len(losses)), statements)


@pytest.mark.parametrize(
    ("limit", "losses", "statements", "verdict", "trials"),
    [
        # None in 300 years: -ln(0.05) / 300 = 1 in 100.1 years, one-sided; with two statements -ln(0.025) / 300.
        (0.01, [0.0] * 300, 1, "met", None),
        (0.01, [0.0] * 300, 2, "not shown", 370),
        # 10 in 100 years: Garwood's are chi2(0.05; 20) / 200 = 0.0543 and chi2(0.95; 22) / 200 = 0.1696, one-sided.
        (0.17, [1.0] * 10 + [0.0] * 90, 1, "met", None),
        (0.05, [1.0] * 10 + [0.0] * 90, 1, "missed", None),
        # ((0.1696 - 0.1) / (0.15 - 0.1))^2 = 1.94 times 100 trials.
        (0.15, [1.0] * 10 + [0.0] * 90, 1, "not shown", 190),
        (0.1, [1.0] * 10 + [0.0] * 90, 1, "not shown", None),
    ],
)
def test_incidents_by_hand(
    limit: float, losses: list[float], statements: int, verdict: str, trials: int | None
) -> None:
    found = answered(asked(incidents=limit), losses, statements)
    assert (found.verdict, found.level) == (verdict, pytest.approx(1.0 - 0.05 / statements))
    assert found.trials == (None if trials is None else pytest.approx(trials, rel=0.03))
    assert found.cluster_years == found.trials


def test_limits_of_incidents_are_garwoods_one_sided() -> None:
    found = answered(asked(incidents=0.1), [1.0] * 10 + [0.0] * 90)
    assert found.low == pytest.approx(chi2.ppf(0.05, 20) / 200.0)
    assert found.high == pytest.approx(chi2.ppf(0.95, 22) / 200.0)


def test_incidents_are_those_of_all_partitions_and_writable_is_the_rest_of_the_time() -> None:
    several = asked(incidents=0.1, partitions=4)
    assert answer(several, Sums.of([1.0] * 10, [4.0] * 10), SIZES, 10.0, 1).estimate == 1.0
    writable = answered(asked(writable=0.999), [0.002 + 0.0001 * (index % 3) for index in range(90)], events=9000)
    assert (writable.value, writable.verdict, writable.limit) == ("99.9%", "missed", pytest.approx(0.001))
    assert answered(asked(writable=0.99), [0.002] * 45 + [0.003] * 45, events=9000).verdict == "met"


def test_degenerate_weights_give_no_number_of_trials() -> None:
    sums = replace(Sums.of([1e-3] * 3 + [0.0] * 97, [1.0] * 100, 3), weight=3e-3, weight_squares=3e-6)
    found = answer(asked(incidents=0.01), sums, SIZES, 100.0, 1)
    assert (found.verdict, found.trials) == ("not shown", None)


def test_statements_about_poisson_counts_hold_together() -> None:
    """Studies of two cells, the target at 1.02 times the one rate and at 0.98 times the other, so that each wrong
    statement is as probable as it can be: at most 5 % of the studies make one. Over 2,000 studies, standard error 0.5
    %."""
    random, wrong, studies = np.random.default_rng(20261128), 0, 2_000
    for counts in random.poisson((20.0, 30.0), (studies, 2)):
        within, beyond = (
            answered(asked(incidents=limit), [float(count), *[0.0] * 99], 2)
            for count, limit in zip(counts, (0.2 * 1.02, 0.3 * 0.98), strict=True)
        )
        wrong += within.verdict == "missed" or beyond.verdict == "met"
    assert wrong / studies <= 0.05


def test_cheapest_has_the_fewest_replicas_then_one_to_spare_then_the_most_copies() -> None:
    met, missed = (answered(asked(incidents=limit), [1.0] * 10 + [0.0] * 90) for limit in (0.2, 0.05))
    answers = [(met, met), (met, met), (met, missed), (met, met), (), (met, met)]
    settings = [(5, 3), (3, 1), (1, 1), (3, 2), (1, 1), (3, 3)]
    cells = (CellParameters(brokers=5, replication_factor=rf, min_insync_replicas=least) for rf, least in settings)
    costs = [(*cost_of_copies(cell), 0.1) for cell in cells]
    assert costs[2] == (1, True, -1, 0.1)
    assert costs[3] == (3, False, -2, 0.1)
    assert cheapest(answers, costs, range(6)) == 3
    assert cheapest(answers, costs, [0, 5]) == 5
    assert cheapest(answers, costs, [2, 4]) is None


# -- growth ------------------------------------------------------------------------------------------------------------

ALPHA = 0.05
QUICK = Cause("burst", 0.1, 1e-12)
"""Events that end at once, so that no cycle has two."""


def harmed(
    events: list[int], trials: int, expected: float = 0.0, cycles: Sequence[int] | None = None
) -> tuple[Sums, Harms]:
    """Trials of one year, with a harm in as many of them as `events` has, each after so many events of the cause."""
    ones = np.ones(len(events))
    found = Harms(
        np.arange(len(events)), np.array(events, float), expected * ones, ones, ones, ones,
        dict.fromkeys(events if cycles is None else cycles, Cycle(expected, 1.0)),
    )  # fmt: skip
    return Sums.of([1.0] * len(events) + [0.0] * (trials - len(events)), [1.0] * trials), found


def test_growth_of_a_cause_that_always_harms_is_that_of_its_count() -> None:
    """Harm if and only if an event: s times the rate is s times the count, so the target t fails at s = t / u with
    Garwood's one-sided upper limit u = chi2(0.95; 2 (k + 1)) / 2 T of k events in T years."""
    sums, harms = harmed([1] * 12, 1_000)
    found = growth(asked(incidents=0.1), sums, 1.0, harms, QUICK, ALPHA)
    assert found is not None
    assert found.is_limit
    assert found.factor == pytest.approx(0.1 / (chi2.ppf(0.95, 26) / 2_000.0), rel=0.03)


def test_growth_allows_for_harm_by_events_that_did_none() -> None:
    """22 harmless bursts in 1,000 years: the next one may harm, so at s times their rate the bound of a rate of which
    nothing was seen is -ln(0.05) s / 1,000, and 1 in 50 years fails at s = 6.68. Not at the many times that a bound
    without the weight of the next event gives."""
    sums, harms = harmed([], 1_000, cycles=[0, 1])
    found = growth(asked(incidents=0.02), sums, 1.0, harms, QUICK, ALPHA)
    assert found is not None
    assert (found.is_limit, found.factor) == (True, pytest.approx(0.02 / (-math.log(0.05) / 1_000.0), rel=0.03))


def test_growth_allows_for_more_events_in_a_cycle_than_any_that_was_seen() -> None:
    """Events at 2 a year, each absent for 1/200 of a year, at most one in a cycle of those seen: two overlap 0.02 times
    a year at present, and s^2 times as often. With the bound of harms by one, 3.00 s / 10,000 + 0.02 (s^2 - 1) =
    0.1."""
    sums, harms = harmed([], 10_000, cycles=[1])
    found = growth(asked(incidents=0.1), sums, 1.0, harms, Cause("broker", 2.0, 1.0 / 200.0), ALPHA)
    half = -math.log(0.05) / 10_000.0 / 0.04
    assert found is not None
    assert found.factor == pytest.approx(-half + math.sqrt(half * half + 6.0), rel=0.03)


def test_short_pauses_meet_long_absences_of_other_causes() -> None:
    """36 pauses a year of 1e-6 years are two in a cycle 36 36e-6 times a year; of the 36 failures a year that keep a
    replica absent for 1/2,000 of a year, 36 (36 / 2,000)^2 see two."""
    cause = Cause("pause", 36.0, 1e-6, 36.0, 1.0 / 2_000.0)
    assert cause.unseen(1) == pytest.approx(36.0 * 36e-6 + 36.0 * 0.018**2)
    assert replace(cause, others_per_year=0.0).unseen(1) == pytest.approx(1.296e-3)


def test_growth_of_a_cause_of_which_nothing_was_seen_counts_all_its_events() -> None:
    """Rate 0.001, nothing seen in 1,000 years: -ln(0.05) / 1,000 + 0.001 (s - 1) = 0.01 at s = 8.0."""
    found = growth(
        asked(incidents=0.01),
        Sums.of([0.0] * 1_000, [1.0] * 1_000),
        1.0,
        Harms.none(),
        Cause("power", 1e-3, 0.0),
        ALPHA,
    )
    assert found is not None
    assert found.factor == pytest.approx(1.0 + (0.01 + math.log(0.05) / 1_000.0) / 1e-3, rel=0.03)


def test_weights_are_those_of_two_poisson_processes() -> None:
    """Two events where 0.3 were expected, at twice the rate: 2^2 exp(-0.3). At the present rate the limit is the
    answer's."""
    sums, harms = harmed([2] * 40, 1_000, expected=0.3)
    assert harms.ratios(2.0) == pytest.approx(4.0 * math.exp(-0.3))
    limit = asked(incidents=0.1)
    present = answer(limit, sums, SIZES, 1_000.0, 1)
    assert upper_limit(limit, sums, 1.0, harms, QUICK, 1.0, ALPHA) == pytest.approx(present.high)
    assert harms.grown(sums, 2.0).ratio == pytest.approx(0.04 * 4.0 * math.exp(-0.3))


def test_growth_says_nothing_beyond_what_the_trials_are_worth() -> None:
    """One harm of 41 came after five events: at twice the rate it is as heavy as 16 of the others, and the 41 are worth
    (40 + 16)^2 / (40 + 256) = 10.6 of equal weight; below 10 nothing is said. Nor where the cluster is rarely whole."""
    sums, harms = harmed([1] * 40 + [5], 100_000)
    found = growth(asked(incidents=0.9), sums, 1.0, harms, QUICK, ALPHA)
    assert found is not None
    assert not found.is_limit
    assert 1.9 <= found.factor <= 2.1
    rarely = growth(asked(incidents=100.0), sums, 1.0, Harms.none(), Cause("broker", 10.0, 0.01), ALPHA)
    assert rarely is None, "harms that the table does not have"
    sums, none = harmed([], 100)
    rarely = growth(asked(incidents=100.0), sums, 1.0, none, Cause("broker", 10.0, 0.01), ALPHA)
    assert rarely is not None
    assert (rarely.is_limit, rarely.factor) == (False, pytest.approx(5.0, rel=0.03))
    sums, harms = harmed([1] * 20, 1_000)
    assert growth(asked(incidents=0.9), replace(sums, weight=1.0), 1.0, harms, QUICK, ALPHA) is None, "degenerate"


def test_next_harm_of_a_weighted_cycle_counts_as_much_as_the_cycle() -> None:
    """In importance sampling the harms weigh 1e-6 and harmless cycles of one event 4: at s times the rate the next harm
    is one of the former by s^3, or of the latter by 4 (s - 1) beyond what it counts at present."""
    _, plain = harmed([3] * 20, 1_000)
    harms = replace(plain, cycles={1: Cycle(0.0, 4.0), 3: Cycle(0.0, 1e-6)})
    assert harms.largest(1.0, 1e-6) == pytest.approx(1e-6)
    assert harms.largest(1.01, 1e-6) == pytest.approx(0.04 + 1e-6)
    assert replace(harms, cycles={}).largest(2.0, 1e-6) == pytest.approx(8e-6)


def test_next_harm_of_a_drawn_trial_weighs_as_much_as_those_seen() -> None:
    """The losses of drawn trials have the weight 1/4, cycles without a loss have one event of the cause or three: at
    twice the rate the largest weight of the next loss is 1/4 times the likelihood ratio 2^3."""
    _, plain = harmed([1] * 20, 1_000)
    harms = replace(plain, cycles={1: Cycle(0.0, None), 3: Cycle(0.0, None)})
    assert harms.largest(1.0, 0.25) == 0.25
    assert harms.largest(2.0, 0.25) == pytest.approx(2.0)


def test_controls_do_not_narrow_what_the_weights_of_the_harms_vary() -> None:
    """Ten trials, of which four have a loss, in cycles with 1, 1, 3 and 3 events of the cause: at twice the rate their
    likelihood ratios w are 2, 2, 8 and 8, with the mean b = 5 and sum (w - b)^2 = 36. If the values that controls have
    corrected are 0.4 in all trials, the variance of the total is that of b alone, 36 10 / 9 = 40. Without controls it
    is that of the ten values: 136 - 10 2^2 = 96, times 10 / 9."""
    sums, harms = harmed([1, 1, 3, 3], 10)
    assert harms.grown(sums, 2.0).variance == pytest.approx(960.0 / 9.0)
    equal = replace(sums, value_squares=10 * 0.4**2)
    assert equal.variance == 0.0
    assert harms.grown(equal, 2.0).ratio == pytest.approx(2.0)
    assert harms.grown(equal, 2.0).variance == pytest.approx(40.0)
