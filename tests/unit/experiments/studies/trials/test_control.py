"""The control of a trial against the trial: the same failures, the same losses, the same times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from experiments.studies.design.estimator import biased_losses
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import DAY_MS, YEAR_MS, CellParameters
from experiments.studies.trace.kinds import CONTROLLED, TrialResult
from experiments.studies.trace.metrics import METRICS, Measures, measure
from experiments.studies.trials import multifidelity
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.control import ControlMeasures, control_model
from experiments.studies.trials.importance import run_importance_trial
from experiments.studies.trials.multifidelity import (
    Effort,
    control_seed,
    controls_per_trial,
    draw_weights,
    drawing_work,
    drawn_trial,
    joined,
    piloted_places,
    run_multifidelity_trial,
)
from experiments.studies.trials.trial import run_trial

HARSH = {
    "broker_mttf": "10d",
    "broker_mttr": "1d",
    "tail_loss_probability": 0.6,
    "unclean_probability": 0.9,
    "writeback": "never",
    "start": "fresh",
}
SECONDS = 5_000 / YEAR_MS


def cell(duration: str, **base: object) -> CellParameters:
    document = {"name": "controls", "trials": 1, "duration": duration, "base": base}
    return study_from(document, "controls").cells[0].parameters


def plain_control(params: CellParameters, seed: int) -> dict[str, float]:
    """What the control of a plain trial has measured, by `CONTROLLED`."""
    return dict(zip(CONTROLLED, control_model(params).run(seed, in_cycles=False).values, strict=True))


@pytest.mark.parametrize(
    ("generation", "detection"),
    [*itertools.product(["kip-497", "kip-966-elr", "kip-966"], ["instant", "9s"]), ("kip-966-elr", "100s")],
)
def test_a_control_has_the_losses_and_times_of_its_trial(generation: str, detection: str) -> None:
    """Losses and unclean recoveries are equal in every trial; times within 5 s per change of the trial's states. A
    stall lasts until a session expires, with 100 s until the leader removes a silent follower: 20 ms more or less."""
    params = cell("120d", generation=generation, detection=detection, min_insync_replicas=1, **HARSH)
    losses = 0.0
    for number in range(8):
        seed = trial_seed(5, number)
        found = measure(run_trial(params, seed).rows)
        control = plain_control(params, seed)
        losses += control["losses"]
        for column in ("losses", "unclean_recoveries"):
            assert control[column] == found.values[column], (number, column)
        for column in ("offline", "refuses", "unwritable", "stalled"):
            assert control[column] == pytest.approx(found.values[column], abs=SECONDS), (number, column)
    assert losses > 0 or generation == "kip-966-elr"


def test_after_a_loss_of_power_a_control_waits_for_the_broker_of_its_trial() -> None:
    """All sessions expire within a heartbeat's interval, and the broker that is fenced last decides on a loss; a
    control that took any other order would have other losses in most trials."""
    params = cell("1y", broker_mttf="30d", broker_mttr="6h", power_events_per_year=12, power_loss_probability=0.5)
    losses = 0.0
    for number in range(8):
        found = measure(run_trial(params, trial_seed(5, number)).rows).values["losses"]
        control = control_model(params).run(trial_seed(5, number), in_cycles=False).values[0]
        assert abs(control - found) <= 1.0, number
        losses += found
    assert losses > 20


def test_before_time_0_replicas_catch_up_as_after_it() -> None:
    """Rolling restarts of the warm-up are over when it ends, where catching up takes 5 minutes."""
    params = cell(
        "1h",
        broker_mttf="never",
        catch_up={"rate": "20MB/s"},
        rolling_restart={"every": "1d", "down": "10m", "pause": "1m"},
    )
    for number in range(40):
        control = plain_control(params, number)
        found = measure(run_trial(params, number).rows).values["refuses"]
        assert control["refuses"] == pytest.approx(found, abs=SECONDS), number


@pytest.mark.parametrize("release", ["4.1.2", "4.4"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_of_a_control_move_as_those_of_its_trial(release: str, replicas: int) -> None:
    """By the completion rule of each release, and where the controller refuses a move: 52 a year, each of which copies
    for 83 minutes, while brokers fail."""
    params = cell(
        "1y",
        kafka_release=release,
        replication_factor=replicas,
        brokers=6,
        broker_mttf="60d",
        broker_mttr="5d",
        catch_up={"rate": "200MB/s", "backlog": "1TB"},
        reassignments={"per_year": 52},
    )
    refused = 0.0
    for number in range(3):
        found = measure(run_trial(params, trial_seed(5, number)).rows).values
        control = plain_control(params, trial_seed(5, number))
        for column in ("losses", "unclean_recoveries"):
            assert control[column] == found[column], (number, column)
        for column in ("offline", "refuses", "unwritable", "stalled"):
            assert control[column] == pytest.approx(found[column], abs=SECONDS), (number, column)
        refused += control["refuses"]
    assert refused > 100 * SECONDS


def test_with_acks_1_a_control_has_the_losses_of_its_trial() -> None:
    """Each election of another leader after a crash of the leader is one, `acknowledged_losses` of the trial."""
    params = cell("240d", acks=1, broker_mttf="20d", broker_mttr="2d", tail_loss_probability=0.3)
    place, losses = CONTROLLED.index("acknowledged_losses"), 0.0
    for number in range(4):
        found = measure(run_trial(params, trial_seed(5, number)).rows).values["acknowledged_losses"]
        assert control_model(params).run(trial_seed(5, number), in_cycles=False).values[place] == found
        losses += found
    assert losses > 20


def test_cycles_of_a_control_are_those_of_its_trial() -> None:
    """In importance sampling the weights are the trial's, too: equal weighted losses in each of 6 trials."""
    params = cell("1y", generation="kip-966", detection="instant", writeback="never")
    total = 0.0
    for number in range(6):
        seed = trial_seed(1, number)
        found, control = (
            measure(run_importance_trial(params, seed).rows),
            control_model(params).run(seed, in_cycles=True),
        )
        assert control.values[0] == pytest.approx(found.values["losses"], rel=1e-6)
        assert control.exposure == pytest.approx(found.exposure, rel=1e-3)
        total += control.values[0]
    assert total > 0.0


@pytest.mark.parametrize(
    "base",
    [
        {"generation": "kip-966", "broker_mttf": "130d", "broker_mttr": "2h"},
        {"generation": "kip-966-elr", "broker_mttf": "20d", "broker_mttr": "12h"},
        {"generation": "kip-497", "brokers": 6, "racks": 3, "rack_power_events_per_year": 0.5, "broker_mttr": "6h"},
    ],
)
def test_controls_in_cycles_see_the_losses_that_are_expected_of_importance_sampling(base: dict[str, object]) -> None:
    """Within a factor of two of 0.1 to 0.3 a trial, in 300 trials; few have two. `auto` decides by that number."""
    params = cell("1y", **base)
    seen = sum(
        control_model(params).run(trial_seed(7, number), in_cycles=True).values[0] > 0.0 for number in range(300)
    )
    assert 0.5 < biased_losses(params) * 300 / seen < 2.0


def test_a_control_costs_little() -> None:
    """Steps of the control, each about as costly as an event, against events of the simulator: a fiftieth or less."""
    params = cell("1y", generation="kip-966", detection="9s", **HARSH)
    steps, events = control_model(params).run(3, in_cycles=False).steps, run_trial(params, 3).events
    assert events > 30 * steps > 0


def test_what_a_control_leaves_out_costs_correlation_only() -> None:
    """Slow brokers are no part of a control: it runs on the failures alone, as if there were none."""
    slow = {"per_year": 50, "duration": "10m", "delay": "3s"}
    with_slow, without = cell("60d", slow=slow, **HARSH), cell("60d", **HARSH)
    assert control_model(with_slow).run(4, in_cycles=False) == control_model(without).run(4, in_cycles=False)


def controls_of(params: CellParameters, seed: int, runs: int, in_cycles: bool) -> list[ControlMeasures]:
    """The control of a trial, and the further ones."""
    seeds = [seed, *(control_seed(seed, number) for number in range(runs))]
    return [control_model(params).run(each, in_cycles) for each in seeds]


def test_in_cycles_the_further_controls_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multifidelity, "effort", lambda params: Effort(3))
    params = cell("1y", generation="kip-966", detection="instant", writeback="never", estimator="multifidelity")
    drawn = drawn_trial(params, 11)
    own, *others = controls_of(params, 11, 3, True)
    assert (drawn.seed, drawn.weight) == (11, 1.0)
    assert drawn.controls is not None
    assert drawn.controls.values == own.values
    assert drawn.controls.means == pytest.approx(
        [sum(each) / 3 for each in zip(*(o.values for o in others), strict=True)]
    )


def test_weights_of_drawn_trials_by_hand() -> None:
    """Four controls with 0, 0, 1 and 3 incidents (mean 1), not writable for 0, 4, 0 and 0 h (mean 1): a quarter
    of the probability goes to all equally, a half by incidents, a quarter by time. So q is 1/16 for the first, 1/16 +
    1/4, 1/16 + 1/8, and 1/16 + 3/8, in all 1; the weights 1 / (4 q) are 4, 4/5, 4/3 and 4/7. Without any incident or
    time, and where more than half have some, all are drawn with weight 1."""
    incidents, unwritable = CONTROLLED.index("incidents"), CONTROLLED.index("unwritable")

    def control(count: float, hours: float) -> ControlMeasures:
        values = [0.0] * len(CONTROLLED)
        values[incidents], values[unwritable] = count, hours / 8_760
        return ControlMeasures(1.0, tuple(values), 1)

    found = draw_weights([control(0, 0), control(0, 4), control(1, 0), control(3, 0)])
    assert found == pytest.approx([4.0, 4 / 5, 4 / 3, 4 / 7])
    assert sum(1.0 / (4.0 * weight) for weight in found) == pytest.approx(1.0)
    assert draw_weights([control(0, 0)] * 3) == [1.0] * 3
    assert draw_weights([control(0, 0), control(1, 2), control(2, 0), control(3, 1)])[0] == 2.0
    assert draw_weights([control(1, 2), control(2, 3), control(0, 0)]) == [1.0] * 3


def test_a_drawn_trial_has_the_failures_weight_and_control_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the seeds all of the 4 controls are drawn, with weights other than 1. d = c - C is 4/3 of the distance of
    the weighted control to the mean of all four, so that its expectation over what is drawn is 0: the sum of q d over
    the four, which is that of (c / 4 - q / 4 sum(c)) in units of 4/3."""
    monkeypatch.setattr(multifidelity, "effort", lambda params: Effort(3, ("incidents", "unwritable")))
    params = cell("30d", estimator="multifidelity", **HARSH)
    places, weights = set(), set()
    for seed in range(8):
        drawn, controls = drawn_trial(params, seed), controls_of(params, seed, 3, False)
        seeds = [seed, *(control_seed(seed, number) for number in range(3))]
        place = seeds.index(drawn.seed)
        assert drawn.controls is not None
        assert drawn.weight == draw_weights(controls)[place]
        assert drawn.controls.values == pytest.approx([drawn.weight * each for each in controls[place].values])
        mean = [sum(each) / 4 for each in zip(*(each.values for each in controls), strict=True)]
        for own, others, of_all in zip(drawn.controls.values, drawn.controls.means, mean, strict=True):
            assert own - others == pytest.approx(4 / 3 * (own - of_all), abs=1e-12)
        assert drawn.controls.exposure == pytest.approx(drawn.weight * 30 / 365)
        places.add(place)
        weights.add(round(drawn.weight, 6))
    assert places == {0, 1, 2, 3}
    assert len(weights) > 1
    found, plain = run_multifidelity_trial(params, 7), run_trial(params, drawn.seed)
    assert [row._replace(log_weight=0.0) for row in found.rows] == plain.rows
    assert {row.log_weight for row in found.rows} == {math.log(drawn.weight)}


def test_a_control_of_v3_elects_any_live_replica() -> None:
    """v3 has no decisions of its own in a control; those of kip-497 with unclean elections lose the same records in
    most trials. Correlation of 8 trials' time without writes."""
    params = cell("120d", generation="v3", detection="9s", min_insync_replicas=1, **HARSH)
    place, pairs = CONTROLLED.index("losses"), []
    for number in range(8):
        seed = trial_seed(5, number)
        losses = measure(run_trial(params, seed).rows).values["losses"]
        pairs.append((losses, control_model(params).run(seed, in_cycles=False).values[place]))
    assert np.corrcoef(np.array(pairs).T)[0, 1] > 0.7


@pytest.mark.parametrize(
    ("estimator", "shared", "losses", "episodes", "runs"),
    [
        ("multifidelity", 1.0, 1, 1, 16),
        ("multifidelity", 0.0, 1, 1, 0),
        ("auto", 1.0, 2, 1, 32),
        ("auto", 1.0, 1, 1, 0),
        ("auto", 0.0, 2, 2, 0),
        ("auto", 1.0, 20, 20, 64),
        ("auto", 1.0, 0, 20, 16),
    ],
)
def test_the_pilot_decides_by_what_it_has_seen_often_enough(
    monkeypatch: pytest.MonkeyPatch, estimator: str, shared: float, losses: int, episodes: int, runs: int
) -> None:
    """Values of the 8 trials are 0 to 7, deviations from their mean -3.5 to 3.5. k = 700 / (0.35 x 40) = 50.
    Equal controls have rho = 1, of which n events show rho^2 = n / (n + 1): R = sqrt(k n), with 8, 16 and 160 events
    20.0, 28.3, and 70 by the highest correlation of 0.995; to a power of two 16, 32, 64. Controls of 2, 1, 1, 2, 2, 1,
    1, 2 have rho = 0: their products with the deviations cancel. For `auto` one loss in each of 8 trials is too few,
    two are enough; without them episodes of time are, with R of up to k / 3 = 16.7. The second pilot is the first: the
    answer is that of the parameters."""
    own = [shared * number + (1.0 - shared) * value for number, value in enumerate((2, 1, 1, 2, 2, 1, 1, 2))]
    results = itertools.cycle(own)
    numbers = itertools.cycle(range(8))
    columns = [metric.column for metric in METRICS]
    events = dict.fromkeys(columns, episodes) | {name: losses for name in columns if "loss" in name}

    class Model:
        def run(self, seed: int, in_cycles: bool) -> ControlMeasures:
            return ControlMeasures(1.0, (next(results),) * len(CONTROLLED), 40)

    monkeypatch.setattr(multifidelity, "control_model", lambda params: Model())
    monkeypatch.setattr(multifidelity, "_run", lambda params, seed, in_cycles: TrialResult([], "", 700))
    monkeypatch.setattr(
        multifidelity,
        "measure",
        lambda rows, counts: Measures(1.0, dict.fromkeys(columns, float(next(numbers))), events),
    )
    params = cell("1y", estimator=estimator, **HARSH)
    for _ in range(2):
        multifidelity.effort.cache_clear()
        assert multifidelity.effort(params) == Effort(runs)
    multifidelity.effort.cache_clear()


def losing(values: Sequence[float]) -> list[ControlMeasures]:
    """Controls with so many incidents each, which lose one record batch each."""
    counted = [tuple(value * (name in ("incidents", "losses")) for name in CONTROLLED) for value in values]
    return [ControlMeasures(1.0, each, 40) for each in counted]


def test_work_of_drawn_trials_by_hand() -> None:
    """One of four controls sees an incident: weights are 3, 3, 3 and 3 / (1 + 2 4) = 1/3, W = 7/3. Squares about the
    mean of 1/4 are 1/16, 1/16, 1/16 and 9/16, so D = (3 3/16 + 1/3 9/16) / (12/16) = 1. With R = 3 and k = 40 trials
    and controls cost 1.1. In agreement 1 - 3/4 of D is left, without any correlation W; with rho^2 = 1/2 it is (1 -
    3/8) (7/3) / (7/6 + 1/2) = 0.875."""
    controls = losing([0, 0, 0, 1])
    for correlation, variance in ((1.0, 0.25), (0.0, 7 / 3), (math.sqrt(0.5), 0.875)):
        assert drawing_work(controls, "incidents", 3, correlation, 40.0) == pytest.approx(1.1 * variance)
    assert drawing_work(controls, "unwritable", 3, 1.0, 40.0) == math.inf
    assert drawing_work(controls * 2, "incidents", 3, 1.0, 40.0) == pytest.approx(0.275)


def test_trials_of_a_pilot_are_drawn_at_equal_distances() -> None:
    """Weights 3, 3, 3 and 1/3 are parts of 1/12, 1/12, 1/12 and 3/4: 1/16 is in the first, 3/16 in the third, the other
    six of the eight numbers are in the fourth."""
    assert piloted_places([3.0, 3.0, 3.0, 1 / 3]) == [0, 2, 3]
    assert piloted_places([1.0] * 20) == list(range(8))


def test_parts_of_a_trial_add_up() -> None:
    found = joined(losing([0, 2, 1, 0, 1]), 2)
    assert [(each.exposure, each.values[0], each.steps) for each in found] == [(2.0, 2.0, 80), (2.0, 1.0, 80)]


@pytest.mark.parametrize(("shift", "found"), [(0, Effort(8, ("incidents",))), (1, Effort())])
def test_trials_are_drawn_where_those_of_the_pilot_agree(
    monkeypatch: pytest.MonkeyPatch, shift: int, found: Effort
) -> None:
    """A control of a fifth of a trial loses if 16 divides its seed, so a trial in 1 - (15 / 16)^5 = 0.28. As k = 700 /
    (0.35 40) = 50, R is 8: a control costs a quarter of a trial at most. Its trial loses as well, or that of the next
    number, which controls do not know."""
    run_seeds: list[int] = []

    class Model:
        def run(self, seed: int, in_cycles: bool) -> ControlMeasures:
            return losing([seed % 16 == 0])[0]

    def run(params: CellParameters, seed: int, in_cycles: bool) -> TrialResult:
        run_seeds.append(seed)
        return TrialResult([], "", 700)

    def measured(rows: object, counts: object) -> Measures:
        is_lost = run_seeds.pop(0) % 16 == shift
        return Measures(1.0, {"losses": float(is_lost)}, {"losses": int(is_lost)})

    monkeypatch.setattr(multifidelity, "control_model", lambda params: Model())
    monkeypatch.setattr(multifidelity, "_run", run)
    monkeypatch.setattr(multifidelity, "measure", measured)
    multifidelity.effort.cache_clear()
    assert multifidelity.effort(cell("1y", estimator="auto", **HARSH)) == found
    multifidelity.effort.cache_clear()


def test_trials_of_a_pilot_are_as_long_as_twenty_failures_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three brokers that fail every 10 days fail 20 times in 66.7 days; shorter trials stay as long as they are."""
    days: list[float] = []

    def run(params: CellParameters, seed: int, in_cycles: bool) -> TrialResult:
        days.append(params.duration_ms / DAY_MS)
        return run_trial(params.model_copy(update={"duration_ms": DAY_MS}), seed)

    monkeypatch.setattr(multifidelity, "_run", run)
    for duration in ("1y", "30d"):
        multifidelity.effort.cache_clear()
        multifidelity.effort(cell(duration, estimator="multifidelity", **HARSH))
    multifidelity.effort.cache_clear()
    assert days == pytest.approx([200.0 / 3.0] * 8 + [30.0] * 8)


def test_without_controls_a_trial_is_that_of_the_other_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multifidelity, "effort", lambda params: Effort())
    params = cell("30d", estimator="multifidelity", **HARSH)
    assert run_multifidelity_trial(params, 11) == run_trial(params, 11)


def test_no_controls_where_they_gain_nothing() -> None:
    """R = sqrt(k rho^2 / (1 - rho^2)): sqrt(80 * 0.81 / 0.19) = 18.5, to a power of two 16. With rho = 0.1 and k = 80
    it is 0.9, too little for one. With rho = 0.75 it is 10, to a power of two 8, and the work is (1 - 0.5625 8 / 9)
    (1 + 9 / 80) = 0.556: less than without, but not the half. A correlation of 1 is taken for 0.995, and sqrt(50 *
    0.990025 / 0.009975) = 70.
    """
    assert controls_per_trial(0.9, 80.0) == 16
    assert controls_per_trial(0.1, 80.0) == 0
    assert controls_per_trial(0.0, 80.0) == 0
    assert controls_per_trial(0.75, 80.0) == 0
    assert (
        controls_per_trial(1.0, 50.0) == 64
    )  # sqrt(50 * 0.990025 / 0.009975) = 70 with a correlation of at most 0.995
