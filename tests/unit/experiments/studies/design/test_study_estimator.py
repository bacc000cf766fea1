"""Which estimator a cell uses: by how rare losses are, and by what the failure model allows."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.estimator import (
    biased_losses,
    choose,
    fallbacks,
    obstacle_to_importance,
    rough_loss_rate,
    rough_times,
    sentence,
)
from experiments.studies.design.loader import study_from
from experiments.studies.design.mappings import Burst, CatchUp, Reassignments, RollingRestart
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.design.recorded import RecordedFailures, RecordedOutage
from experiments.studies.theory.answers import answer
from tests.synthetic_studies import cell_like as _cell
from tests.yaml_rows import rows

RARE = CellParameters(generation="kip-966")
FREQUENT = CellParameters(
    generation="kip-966",
    broker_mttf=Distribution(mean_ms=20 * DAY_MS),
    broker_mttr=Distribution(mean_ms=5 * DAY_MS),
    writeback_ms=None,
)
HOURS = Distribution(mean_ms=6 * 3_600_000)
WEIBULL = Distribution(dist="weibull", mean_ms=130 * DAY_MS, shape=0.7)


@pytest.mark.parametrize(
    ("cell", "estimator"),
    [
        (RARE, "importance"),
        (FREQUENT, "multifidelity"),
        (_cell(FREQUENT, duration_ms=120 * DAY_MS), "plain"),
        (_cell(FREQUENT, generation="v3"), "multifidelity"),
        (_cell(RARE, broker_mttf=WEIBULL, broker_mttr=HOURS), "splitting"),
        (
            _cell(RARE, broker_mttr=HOURS, rolling_restart=RollingRestart(every_ms=DAY_MS, down_ms=60_000)),
            "splitting",
        ),
        (_cell(RARE, broker_mttr=HOURS, unclean_recovery_strategy="manual"), "splitting"),
        (_cell(RARE, brokers=4, broker_mttr=HOURS, reassignments=Reassignments(per_year=12.0)), "splitting"),
        (_cell(RARE, brokers=200, broker_mttf=Distribution(mean_ms=2 * DAY_MS)), "splitting"),
        (_cell(RARE, burst=(Burst(per_year=1.0, size=2),)), "importance"),
        (_cell(RARE, tail_loss_probability=0.0), "plain"),
        (_cell(RARE, acks="1"), "plain"),
        (_cell(RARE, estimator="plain"), "plain"),
        (_cell(FREQUENT, estimator="splitting"), "splitting"),
        (_cell(RARE, time_compression=100.0), "plain"),
    ],
)
def test_the_estimator_follows_from_the_parameters(cell: CellParameters, estimator: str) -> None:
    choice = choose(cell)
    assert choice.estimator == estimator
    assert not choice.falls_back
    assert choice.reason


def test_importance_sampling_that_is_impossible_falls_back_to_splitting_and_says_so() -> None:
    cell = _cell(RARE, broker_mttf=WEIBULL, estimator="importance")
    assert choose(cell)[::2] == ("splitting", True)
    assert sentence(cell) == (
        "The study asks for importance sampling; splitting is used: importance sampling is impossible, as times to "
        "failure are weibull, not exponential."
    )
    plan = study_from(
        {
            "name": "s",
            "trials": 1,
            "base": {"estimator": "importance"},
            "sweep": {"broker_mttf": ["130d", {"dist": "weibull", "mean": "130d", "shape": 0.7}]},
        },
        "s.yaml",
    )
    assert [line.split(":")[0] for line in fallbacks(plan)] == ["cell 1"]


def test_plain_trials_where_neither_of_the_others_helps_are_a_warning() -> None:
    cell = _cell(RARE, broker_mttf=WEIBULL)
    assert choose(cell)[::2] == ("plain", True)
    assert sentence(cell).startswith("Losses are too rare for plain trials, which are used nevertheless: only about ")


def test_auto_takes_controls_where_a_trial_has_failures_enough_for_a_pilot() -> None:
    """3 brokers that fail every 130 days: 8.4 failures a year, 25.3 in 3 years. The trials are those of importance
    sampling; where those are impossible there are no controls either. 3 that fail every 20 days: 18 in 120 days, 54.8
    in a year, whose trials are plain."""
    long = _cell(RARE, duration_ms=3 * 365 * DAY_MS)
    assert choose(RARE).estimator == "importance"
    assert choose(long)[::2] == ("multifidelity", False)
    assert choose(long).in_cycles
    assert choose(_cell(long, estimator="importance")).estimator == "importance"
    assert choose(_cell(long, broker_mttf=WEIBULL, broker_mttr=HOURS)).estimator == "splitting"
    assert "importance sampling of the trials" in sentence(long)
    assert not choose(FREQUENT).in_cycles


@pytest.mark.parametrize(
    ("base", "times", "is_plain"),
    [
        ({"broker_mttf": "10d"}, 3 * 36.5 * 2 * 15 / 14_400, True),
        ({"broker_mttf": "10d", "min_insync_replicas": 1}, 3 * 36.5 * 2 * (15 / 14_400) ** 2 / 2, False),
        ({"broker_mttf": "40d", "min_insync_replicas": 3}, 3 * 365 / 40, True),
        ({"broker_mttf": "40d", "delivery_timeout": "8s"}, 3 * 365 / 40, True),
        ({"broker_mttf": "40d", "delivery_timeout": "9s"}, 3 * 365 / 40 * 2 * 15 / 57_600, False),
        ({"broker_mttf": "120d", "brokers": 4, "reassignments": {"per_year": 52}, "broker_mttr": "3d"}, 0.456, True),
    ],
)
def test_a_study_of_times_has_plain_trials_where_these_see_times(
    base: dict[str, object], times: float, is_plain: bool
) -> None:
    """A repair takes 15 minutes of 14,400 between two failures: two of three replicas are absent, one after the other,
    or all of them; each failure is a time without writes with min ISR 3, and if no client waits for 9 s."""
    asked = {"name": "s", "trials": 1, "duration": "1y", "base": base, "objective": "unwritable_fraction"}
    (cell,) = study_from(asked, "s.yaml").cells
    assert rough_times(cell.parameters) == pytest.approx(times, rel=1e-3)
    found = choose(cell.parameters)
    assert (found.estimator, found.in_cycles) == ("multifidelity", not is_plain)
    assert (sentence(cell.parameters) == "") == is_plain


@pytest.mark.parametrize(
    ("asked", "estimate"),
    [
        ({}, "losses"),
        ({"objective": "loss_rate"}, "losses"),
        ({"objective": "stall_fraction"}, "times"),
        ({"objective": "stall_fraction", "targets": {"writable": "99.9%"}}, "times"),
        ({"objective": "stall_fraction", "targets": {"incidents": "1 in 10y"}}, "losses"),
        ({"objective": "stall_fraction", "base": {"estimate": "losses"}}, "losses"),
        ({"base": {"estimate": "times"}}, "times"),
    ],
)
def test_what_a_study_estimates_follows_from_its_objective_and_targets(asked: dict[str, object], estimate: str) -> None:
    (cell,) = study_from({"name": "s", "trials": 1} | asked, "s.yaml").cells
    assert cell.parameters.estimate == estimate


DAYS = _cell(
    RARE,
    generation="kip-966-elr",
    broker_mttf=Distribution(mean_ms=20 * DAY_MS),
    broker_mttr=Distribution(mean_ms=2 * DAY_MS),
)


@pytest.mark.parametrize(
    ("cell", "by_hand"),
    [
        (RARE, 25 * 8 / 11 * 0.2 / (97 / 121) * 0.36),
        (_cell(RARE, generation="kip-966-elr"), 25 * 8 / 11 * 0.2 / (97 / 121) * 0.6),
        (_cell(RARE, brokers=6), 25 / 2 * 8 / 11 * 0.2 / (97 / 121) * 0.36),
        (_cell(RARE, writeback_ms=None), 25 * (64 / 121) / (97 / 121) * 0.36),
        (_cell(RARE, min_insync_replicas=1), 25 * (64 / 121) / (97 / 121) * 0.6),
        (_cell(RARE, replication_factor=2, min_insync_replicas=1), 25 * 2 / 3 * 8 / 11 * 0.6),
        (_cell(RARE, broker_mttf=None, power_events_per_year=1.0), 25 * 0.36),
        (DAYS, 365 / (20 / 3 + 6) * 8 / 11 * 0.8 * 30 / 17_310 / (97 / 121) * 0.6),
        (_cell(DAYS, unclean_recovery_strategy="proactive", generation="kip-966"), 365 / (20 / 3 + 6) * 64 / 97),
    ],
)
def test_losses_that_importance_sampling_sees(cell: CellParameters, by_hand: float) -> None:
    """25 cycles at least. A failure is forced with F = 0.8 / 1.1, so 1 - F (1 - F) = 97 / 121. Below min ISR it comes
    within 30 s with 0.8 30 / (30 + 0.2 900 / 2) = 0.2, with repairs of two days, 172,800 s, with 0.8 30 / 17,310. Each
    of one or two tails is lost with 0.6; proactive recovery needs none. Half of six brokers hold a replica."""
    assert biased_losses(cell) == pytest.approx(by_hand, rel=1e-6)


def test_a_rack_without_power_takes_the_two_replicas_that_are_left() -> None:
    """Two racks of two brokers, a replica of four on each: c_2 = F (p c_3 + 1 - p) + (1 - F) c_1 and so on, with p for
    the failures of single brokers. Min ISR 1, so nothing has to come within 30 s."""
    mttf = Distribution(mean_ms=365 * DAY_MS)
    cell = _cell(
        RARE,
        brokers=4,
        racks=2,
        replication_factor=4,
        min_insync_replicas=1,
        broker_mttf=mttf,
        rack_power_events_per_year=2.0,
    )
    forced, single = 8 / 11, (0.5 + 0.5) / 2
    equations = [[1, -forced * single, -forced * single], [forced - 1, 1, -forced * single], [0, forced - 1, 1]]
    one, two, _ = np.linalg.solve(equations, [0.0, forced * single, forced])
    assert biased_losses(cell) == pytest.approx(25 * (one + two) / 2 * 0.6, rel=1e-6)


def test_losses_too_rare_for_importance_sampling_are_left_to_plain_trials_and_the_cell_says_so() -> None:
    """2 losses in 100 trials of importance sampling. 55 failures a year, 18 in 120 days: too few for controls."""
    short = _cell(DAYS, duration_ms=120 * DAY_MS)
    assert choose(short) == ("plain", choose(short).reason, True, False)
    assert choose(DAYS) == ("multifidelity", choose(DAYS).reason, True, False)
    assert sentence(DAYS) == (
        "Losses are too rare for plain trials, which are used nevertheless: only about 0.02 loss events are expected "
        "in 1000 trials; losses are too rare for importance sampling as well: about 2 expected in 100 trials, so their "
        "rate is bounded by the exposure."
    )
    asked = _cell(DAYS, estimator="multifidelity")
    assert choose(asked)[::2] == ("multifidelity", False)
    assert not choose(asked).in_cycles
    assert "about 2 expected in 100 trials" in sentence(asked)
    assert choose(_cell(DAYS, estimator="importance")) == ("importance", "as the study asks", False, True)
    hours = _cell(DAYS, broker_mttr=Distribution(mean_ms=3_600_000))
    assert choose(hours).in_cycles


def test_recorded_failures_have_plain_trials() -> None:
    outages = (RecordedOutage(0, 10, 20, "lossy"),)
    record = RecordedFailures(file="a.csv", length_ms=RARE.duration_ms, outages=outages)
    assert choose(_cell(RARE, failures=record))[::2] == ("plain", False)
    assert choose(_cell(RARE, failures=record, estimator="splitting"))[::2] == ("plain", True)


def test_functions_of_a_script_have_plain_trials() -> None:
    assert choose(RARE, scripted=True)[::2] == ("plain", False)
    assert choose(_cell(RARE, estimator="importance"), scripted=True)[::2] == ("plain", True)


def test_sentences_name_the_estimator_and_the_reason() -> None:
    assert sentence(FREQUENT) == ""
    assert "plain sampling of the trials" in sentence(_cell(FREQUENT, estimator="multifidelity"))
    assert sentence(RARE).startswith("The estimator is importance sampling (docs/rare-events.md): only about ")


@pytest.mark.parametrize("changes", rows(__file__, "common-cells.yaml"))
def test_the_rough_rate_is_within_a_factor_of_ten_of_the_markov_model(changes: dict[str, object]) -> None:
    for base in (RARE, FREQUENT):
        cell = _cell(base, detection_ms=None, **changes)
        markov = answer(cell)
        assert markov is not None
        assert 0.1 < rough_loss_rate(cell) / markov["loss_rate"] < 10.0


ZONES = _cell(RARE, brokers=6, racks=3, partitions=4, broker_mttf=None, broker_mttr=HOURS)


@pytest.mark.parametrize(
    ("burst", "by_hand"),
    [
        (Burst(per_year=1.0, fraction=1.0, same_rack=1.0), 0.0),
        (Burst(per_year=1.0, size=6), 0.01),
        (Burst(per_year=1.0, fraction=0.5), 0.01 / 8),
        (Burst(per_year=1.0, size=3), 0.01 / 20),
        (Burst(per_year=2.0, size=6, same_rack=0.75), 0.005),
    ],
)
def test_bursts_of_a_rack_strike_one_replica_of_a_partition_that_is_spread(burst: Burst, by_hand: float) -> None:
    """Events per year, times the share of them that strikes all three replicas at once, times 0.1 for each of two
    tails. What follows upon a burst that leaves two replicas or one is rarer by the share of time without a broker."""
    assert rough_loss_rate(_cell(ZONES, burst=(burst,))) == pytest.approx(by_hand, rel=0.02, abs=1e-5)


def test_bursts_of_two_causes_add_up() -> None:
    causes = (Burst(per_year=1.0, size=6), Burst(name="deploys", per_year=1.0, fraction=0.5))
    assert rough_loss_rate(_cell(ZONES, burst=causes)) == pytest.approx(0.01 + 0.01 / 8, rel=0.02)


def test_zone_bursts_are_too_rare_for_plain_trials_if_replicas_are_spread() -> None:
    burst = Burst(per_year=1.0, fraction=1.0, same_rack=1.0)
    spread = _cell(ZONES, burst=(burst,), broker_mttf=Distribution(mean_ms=130 * DAY_MS), broker_mttr=HOURS)
    assert choose(spread).in_cycles
    assert not choose(_cell(spread, placement="together", brokers=9)).in_cycles


def test_a_catch_up_counts_as_absence() -> None:
    """Twice the time for which a replica is out of sync: twice the losses of two replicas."""
    two = _cell(RARE, replication_factor=2, min_insync_replicas=1, generation="kip-497")
    behind = _cell(two, catch_up=CatchUp(rate=10e6, write_rate=10e6))
    assert rough_loss_rate(behind) == pytest.approx(2 * rough_loss_rate(two))
    assert "catching up" in obstacle_to_importance(_cell(behind, catch_up=CatchUp(rate=1e3)))
