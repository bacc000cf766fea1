"""Importance sampling and splitting agree with plain sampling and with the Markov model."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst
from experiments.studies.design.model import DAY_MS, YEAR_MS, CellParameters
from experiments.studies.theory.answers import answer
from experiments.studies.trace.kinds import Crash, Loss, State, TrialResult
from experiments.studies.trace.metrics import Measures, measure
from experiments.studies.trials import importance, splitting
from experiments.studies.trials.importance import NoRegenerationError, RegenerativeTrial, run_importance_trial
from experiments.studies.trials.splitting import levels_of, losing_path, run_splitting_trial
from experiments.studies.trials.trial import run_trial
from tests.synthetic_studies import cell_like
from tests.trace_rows import as_rows, check_trace

REALISTIC = CellParameters(generation="kip-966", detection_ms=None, duration_ms=3 * YEAR_MS)
HARSH = CellParameters(
    generation="kip-966",
    broker_mttf=Distribution(mean_ms=8 * DAY_MS),
    broker_mttr=Distribution(mean_ms=DAY_MS),
    tail_loss_probability=0.8,
    min_insync_replicas=1,
    detection_ms=None,
    duration_ms=100 * DAY_MS,
)
AGEING = CellParameters(
    brokers=2,
    replication_factor=2,
    min_insync_replicas=1,
    broker_mttf=Distribution(dist="weibull", mean_ms=10 * DAY_MS, shape=2.0),
    broker_mttr=Distribution(mean_ms=2 * DAY_MS),
    tail_loss_probability=0.8,
    generation="kip-497",
    detection_ms=None,
    duration_ms=6 * DAY_MS,
    start="fresh",
)
Run = Callable[[CellParameters, int], TrialResult]


def _measured(run: Run, cell: CellParameters, seeds: range) -> list[Measures]:
    return [measure(run(cell, seed).rows) for seed in seeds]


def _estimate(found: list[Measures], column: str = "losses") -> tuple[float, float]:
    """The ratio estimate of a metric over trials, and its standard error by linearisation."""
    exposure, n = sum(trial.exposure for trial in found), len(found)
    ratio = sum(trial.values[column] for trial in found) / exposure
    residuals = [trial.values[column] - ratio * trial.exposure for trial in found]
    return ratio, math.sqrt(n / (n - 1) * sum(value * value for value in residuals)) / exposure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected", "trials"),
    [
        ({"writeback_ms": None}, 5.4e-10, 10),
        pytest.param({}, 3.4e-11, 40, marks=pytest.mark.proof),  # with a writeback: test_command_compares_rare_losses
        (
            {
                "writeback_ms": None,
                "broker_mttf": Distribution(mean_ms=YEAR_MS),
                "tail_loss_probability": 0.02,
                "duration_ms": 8 * YEAR_MS,
            },
            1e-12,
            12,
        ),
    ],
    ids=["5e-10", "3e-11", "1e-12"],
)
def test_importance_sampling_agrees_with_the_markov_model(
    changes: dict[str, object], expected: float, trials: int
) -> None:
    cell = cell_like(REALISTIC, **changes)
    markov = answer(cell)
    assert markov is not None
    assert markov["loss_rate"] == pytest.approx(expected, rel=0.05)
    estimate, error = _estimate(_measured(run_importance_trial, cell, range(trials)))
    assert error < 0.4 * estimate
    assert estimate == pytest.approx(markov["loss_rate"], abs=3.3 * error)


@pytest.mark.slow
def test_importance_sampling_agrees_with_plain_sampling() -> None:
    plain = _measured(run_trial, HARSH, range(25))
    biased = _measured(run_importance_trial, HARSH, range(100, 108))
    for column in ("losses", "refuses"):
        (expected, plain_error), (found, biased_error) = _estimate(plain, column), _estimate(biased, column)
        error = math.hypot(plain_error, biased_error)
        assert found == pytest.approx(expected, abs=3.3 * error)
        assert error < 0.7 * expected


def test_without_bias_all_weights_are_one() -> None:
    rows = RegenerativeTrial(HARSH, 3, bias=False).run().rows
    assert {row.log_weight for row in rows} == {0.0}
    assert len(rows) > 50


def test_a_biased_trial_keeps_the_rules_and_ends_between_cycles() -> None:
    result = run_importance_trial(REALISTIC, 1)
    check_trace(as_rows(result.rows), REALISTIC.partitions, REALISTIC.duration_ms)
    assert result.rows[-1].time_ms >= REALISTIC.duration_ms
    assert result.rows[-1].log_weight == 0.0
    states = [row for row in result.rows if row.what.KIND == State.KIND]
    long = [after for row, after in pairwise(states) if after.time_ms - row.time_ms > 5 * DAY_MS]
    assert len(long) > 10
    assert {row.log_weight for row in long} == {0.0}, "intervals between cycles have weight 1"
    assert any(row.log_weight < math.log(1e-3) for row in states), "and failures within cycles are biased"
    assert measure(result.rows).exposure == pytest.approx(result.rows[-1].time_ms / YEAR_MS, rel=0.01)
    assert run_importance_trial(REALISTIC, 1).rows == result.rows


def test_cycles_end_also_after_bursts_and_failures_of_brokers_without_replicas() -> None:
    cell = cell_like(REALISTIC, brokers=5, burst=(Burst(per_year=8.0, fraction=0.2),), duration_ms=YEAR_MS)
    rows = as_rows(run_importance_trial(cell, 4).rows)
    crashes = [row for row in rows if row.kind == Crash.KIND]
    assert any(row.node > 2 for row in crashes)
    between = [after.time_ms - row.time_ms for row, after in pairwise(rows) if after.log_weight == 0.0]
    assert sum(between) > 0.99 * YEAR_MS, "the cluster is in the regeneration state most of the time"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_write_follows_the_change_that_makes_the_isr_large_enough(seed: int) -> None:
    """Min ISR is RF, so that a write that comes before its leader has learned of the last change is refused."""
    cell = cell_like(REALISTIC, min_insync_replicas=3, duration_ms=30 * DAY_MS)
    rows = as_rows(run_importance_trial(cell, seed).rows)
    assert any(row.isr_size < 3 for row in rows if row.kind == State.KIND)
    assert rows[-1].log_weight == 0.0


def test_a_cluster_that_stays_without_a_leader_never_regenerates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "LONGEST_CYCLE_ABSENCES", 40)
    cell = cell_like(HARSH, unclean_recovery_strategy="manual", min_insync_replicas=2, tail_loss_probability=1.0)
    with pytest.raises(NoRegenerationError, match="no regeneration point"):
        run_importance_trial(cell, 0)


@pytest.mark.slow
def test_splitting_agrees_with_plain_sampling_where_failures_have_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "EFFORT", 20)
    plain, plain_error = _estimate(_measured(run_trial, AGEING, range(1_000, 1_300)))
    split, split_error = _estimate(_measured(run_splitting_trial, AGEING, range(6)))
    assert split == pytest.approx(plain, abs=3.3 * math.hypot(plain_error, split_error))
    assert split_error < 0.7 * split


@pytest.mark.slow
def test_splitting_weights_losses_with_the_shares_of_paths_that_came_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "EFFORT", 25)
    levels = levels_of(AGEING)
    assert list(levels) == sorted(set(levels))
    results = [run_splitting_trial(AGEING, seed) for seed in range(3)]
    losses = [row for result in results for row in result.rows if row.what.KIND == Loss.KIND]
    assert losses
    assert all(row.log_weight < math.log(0.5 / 25) for row in losses)
    with_loss = next(
        seed for seed, found in enumerate(results) if any(row.what.KIND == Loss.KIND for row in found.rows)
    )
    path = losing_path(AGEING, with_loss)
    assert path is not None
    assert any(row.what.KIND == Loss.KIND for row in path.run().rows)
    for result in results:
        check_trace(as_rows(result.rows), AGEING.partitions, AGEING.duration_ms)
        assert all(row.log_weight == 0.0 for row in result.rows if row.what.KIND == State.KIND)
        assert measure(result.rows).exposure == pytest.approx(AGEING.duration_ms / YEAR_MS)
