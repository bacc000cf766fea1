"""The comparison of simulation and Markov model: z-scores, the cells of a file, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from experiments.cli.main import application
from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.moments import Sums
from experiments.studies.theory import answer, validation
from experiments.studies.theory.answers import Answer, solved
from experiments.studies.theory.cells import default_cells, load_cells
from experiments.studies.theory.validation import (
    MIN_EVENTS,
    WEIGHTED_TRIALS,
    Z_LIMIT,
    Z_MAX,
    CellComparison,
    ValidationCell,
    compared,
    parts,
    validate,
    z_score,
)
from experiments.studies.trace.metrics import Measures
from experiments.support.errors import InputError
from tests.yaml_rows import rows

HOUR_MS = 3_600_000
HARSH = CellParameters(
    generation="kip-966",
    broker_mttf=Distribution(mean_ms=2 * HOUR_MS),
    broker_mttr=Distribution(mean_ms=HOUR_MS),
    min_insync_replicas=3,
    detection_ms=None,
    duration_ms=20 * HOUR_MS,
)


# -- z-scores ----------------------------------------------------------------------------------------------------------


def _portions(random: np.random.Generator, trials: int, mean_events: float) -> list[float]:
    """One total per trial: exponential portions, as many as a Poisson draw says."""
    return [float(random.exponential(size=random.poisson(mean_events)).sum()) for _ in range(trials)]


def test_z_scores_of_a_right_model_are_standard_normal() -> None:
    random = np.random.default_rng(3)
    scores = []
    for _ in range(600):
        values = _portions(random, trials=30, mean_events=2.0)
        scores.append(z_score(Sums.of(values, [10.0] * 30, 60), 0.2, is_count=False))
    assert abs(np.mean(scores)) < 0.15
    assert 0.9 < np.std(scores) < 1.1
    assert max(map(abs, scores)) < 4.0
    assert 0.002 < np.mean([score < -2.326 for score in scores]) + np.mean([score > 2.326 for score in scores]) < 0.045


def test_z_scores_of_a_share_above_one_half_are_those_of_the_rest() -> None:
    values = [0.7, 0.8, 0.9, 0.75]
    rest = [1.0 - value for value in values]
    score = z_score(Sums.of(values, [1.0] * 4, 50), 0.85, is_count=False)
    assert score == pytest.approx(-z_score(Sums.of(rest, [1.0] * 4, 50), 0.15, is_count=False))
    assert score < 0.0


def test_a_weighted_rate_above_one_half_is_no_share() -> None:
    values = [0.7, 0.8, 0.9, 0.75]
    assert z_score(Sums.of(values, [1.0] * 4, 50), 0.7, is_count=True, is_weighted=True) > 1.0
    assert z_score(Sums.of(values, [1.0] * 4, 50), 0.9, is_count=True, is_weighted=True) < -1.0


@pytest.mark.parametrize(("seen", "expected", "score"), [(0, 0.0, 0.0), (9, 0.0, Z_MAX), (0, 5.0, -Z_MAX)])
def test_z_scores_where_nothing_is_seen_or_expected(seen: int, expected: float, score: float) -> None:
    assert z_score(Sums.of([seen, seen], [1.0, 1.0]), expected, is_count=True) == score


def test_trials_that_all_agree_have_no_variance_to_explain_a_difference() -> None:
    assert z_score(Sums.of([0.25, 0.25], [1.0, 1.0], 50), 0.3, is_count=False) == -Z_MAX


def _measured(losses: int) -> Measures:
    columns = ("losses", "unclean_recoveries", "offline", "refuses", "stalled")
    return Measures(1.0, dict.fromkeys(columns, float(losses)), dict.fromkeys(columns, losses))


def test_a_wrong_model_is_found_even_where_the_simulation_sees_few_events() -> None:
    trials = [_measured(losses) for losses in (0, 1, 0, 2, 1, 0, 0, 1, 0, 0)]
    (found,) = compared(ValidationCell({}, HARSH, 10), {"loss_rate": Answer(8.0, 8.0)}, trials)
    assert (found.events, found.markov, found.trials) == (5, 8.0, 10)
    assert found.ci_low < found.simulated < found.ci_high < found.markov
    assert found.z < -Z_LIMIT
    assert not found.agrees


def test_metrics_with_few_events_are_left_out() -> None:
    assert list(compared(ValidationCell({}, HARSH, 2), {"loss_rate": Answer(2.0, 2.0)}, [_measured(2)] * 2)) == []


# -- cells -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_built_in_cells_cover_what_the_model_does() -> None:
    cells = default_cells()
    assert len({(cell.parameters, cell.trials) for cell in cells}) == len(cells) >= 36
    ratios = [cell.model.fail / cell.model.repair for cell in cells if cell.parameters.estimator == "plain"]
    assert (min(ratios), max(ratios)) == pytest.approx((0.003, 0.5), rel=1e-3)
    sizes = {(cell.model.replicas, cell.model.rules.min_isr) for cell in cells}
    assert sizes >= {(3, 1), (3, 2), (3, 3), (5, 2), (5, 3)}
    for cell in cells:
        if cell.model.rules.phases == 0:
            events = [
                found.events * cell.parameters.partition_years * cell.trials for found in solved(cell.model).values()
            ]
            assert max(events) >= MIN_EVENTS or any(part.is_weighted for part in parts(cell))
    assert min(solved(cell.model)["loss_rate"].value for cell in cells) < 1e-12


def test_what_is_too_rare_for_plain_trials_is_compared_by_importance_sampling() -> None:
    month = Distribution(mean_ms=30 * 24 * HOUR_MS)
    rare = ValidationCell({}, HARSH.model_copy(update={"broker_mttf": month, "min_insync_replicas": 2}), trials=10**6)
    plain, weighted = parts(rare)
    assert plain == rare
    assert weighted.is_weighted
    assert weighted.trials == WEIGHTED_TRIALS
    assert weighted.metrics == {"loss_rate", "offline_fraction", "unclean_recoveries_per_year"}
    assert [part.is_weighted for part in parts(replace(rare, trials=3))] == [True]
    asked = replace(rare, parameters=rare.parameters.model_copy(update={"estimator": "plain"}))
    assert parts(asked) == [asked]
    often_down = ValidationCell({}, HARSH, trials=3)
    assert parts(often_down) == [often_down]


def test_weighted_events_are_held_against_the_variance_over_trials() -> None:
    """Twelve events of weight 1e-9 in each of 40 trials, of which the model expects as many, or half as many."""
    trials = [_measured(12)._replace(values={"losses": 1e-9 * (10 + trial % 5)}) for trial in range(40)]
    cell = ValidationCell({}, HARSH.model_copy(update={"estimator": "importance"}), 40)
    (right,) = compared(cell, {"loss_rate": Answer(1.2e-8, 1.2e-8)}, trials)
    (wrong,) = compared(cell, {"loss_rate": Answer(6e-9, 6e-9)}, trials)
    assert (right.events, right.simulated) == (480, pytest.approx(1.2e-8))
    assert right.ci_low < 1.2e-8 < right.ci_high < 1.4e-8
    assert abs(right.z) < 0.1
    assert wrong.z > Z_LIMIT
    assert list(compared(replace(cell, metrics=frozenset()), {"loss_rate": Answer(1.2e-8, 1.2e-8)}, trials)) == []
    one = [_measured(60)._replace(values={"losses": 1e-9})] + [_measured(0)] * 39
    assert list(compared(cell, {"loss_rate": Answer(1.2e-8, 1.2e-8)}, one)) == [], "one trial has all of the weight"


def test_cells_of_a_list_and_of_a_study_file(tmp_path: Path) -> None:
    listed, study = tmp_path / "cells.yaml", tmp_path / "study.yaml"
    listed.write_text(
        "- {broker_mttf: 4h, broker_mttr: 1h, detection: instant, duration: 50h, trials: 7}\n- {detection: instant}\n"
    )
    study.write_text("{trials: 5, duration: 9d, base: {detection: instant}, sweep: {min_insync_replicas: [1, 2]}}")
    first, second = load_cells(listed)
    assert (first.trials, first.parameters.duration_ms) == (7, 50 * HOUR_MS)
    assert second.parameters.duration_ms > second.parameters.broker_mttr.mean_ms
    assert [(cell.trials, cell.given) for cell in load_cells(study)] == [
        (5, {"min_insync_replicas": 1}),
        (5, {"min_insync_replicas": 2}),
    ]


@pytest.mark.parametrize(("text", "message"), rows(__file__, "wrong-cells.yaml"))
def test_wrong_cells_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cells.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_cells(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_answers_by_the_names_of_the_metrics() -> None:
    found = answer(HARSH.model_copy(update={"generation": "kip-497"}))
    assert found is not None
    assert set(found) == {"loss_rate", "offline_fraction", "reject_fraction", "unclean_recoveries_per_year"}
    assert answer(HARSH.model_copy(update={"acks": "1"})) is None
    manual = HARSH.model_copy(update={"unclean_recovery_strategy": "manual"})
    assert answer(manual) is None
    assert answer(manual.model_copy(update={"unclean_probability": 0.0})) is not None
    for generation in ("kip-497", "kip-966-elr"):
        cell = HARSH.model_copy(update={"generation": generation})
        assert answer(cell) is not None
        assert answer(cell.model_copy(update={"unclean_recovery_strategy": "proactive"})) is None
    detected = answer(HARSH.model_copy(update={"detection_ms": 9_000}))
    assert detected is not None
    assert detected["stall_fraction"] > 0.0


# -- the command -------------------------------------------------------------------------------------------------------

CELL = "- {broker_mttf: 2h, broker_mttr: 1h, detection: instant, min_insync_replicas: 3, duration: 20h, trials: 8}"


def validated(folder: Path, cells: str, *options: str) -> Result:
    """The command on a file of these cells, in one process."""
    path = folder / "cells.yaml"
    path.write_text(cells)
    return CliRunner().invoke(application(), ["study", "validate", "--cells", str(path), "--jobs", "1", *options])


def test_command_prints_a_list_of_comparisons(tmp_path: Path) -> None:
    done = validated(tmp_path, CELL, "--json")
    assert done.exit_code == 0
    (found,) = json.loads(done.stdout)
    assert list(found) == ["cell", "metric", "simulated", "ci_low", "ci_high", "markov", "z", "trials", "events"]
    assert found["cell"]["min_insync_replicas"] == 3
    assert found["metric"] == "reject_fraction"
    assert found["trials"] == 8
    assert found["events"] >= MIN_EVENTS
    assert found["ci_low"] < found["simulated"] < found["ci_high"]


@pytest.mark.slow
def test_command_fails_where_the_model_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"reject_fraction": Answer(0.05, 5_000.0)}
    monkeypatch.setattr("experiments.studies.theory.validation.solved", lambda model: wrong)
    done = validated(tmp_path, CELL)
    assert done.exit_code == 1
    assert "reject_fraction" in done.stdout
    assert "1 differ by more than 99.9 %" in done.stdout
    assert "in 8 trials; the cell is repeated with 16 others" in done.stderr


def test_a_chance_result_does_not_repeat_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first trials have losses by chance, the others are as the model says."""
    cell = ValidationCell({}, HARSH, 6)
    right, wrong = _measured(50), _measured(500)
    monkeypatch.setattr(validation, "solved", lambda model: {"loss_rate": Answer(50.0, 50.0)})
    monkeypatch.setattr(
        validation, "_measured", lambda _, first, stop: [wrong if k < 6 else right for k in range(first, stop)]
    )
    doubts: list[CellComparison] = []
    (found,) = validate([cell], jobs=1, doubt=doubts.append)
    assert [(item.simulated, item.agrees) for item in doubts] == [(500.0, False)]
    assert (found.simulated, found.trials, found.agrees) == (50.0, 12, True)


def test_command_names_cells_without_enough_events(tmp_path: Path) -> None:
    given = "broker_mttf: 30d, broker_mttr: 1h, detection: instant, duration: 9d, trials: 2, writeback: never"
    done = validated(tmp_path, f"- {{{given}, estimator: plain, generation: kip-966}}", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    lines = [line for line in done.stderr.splitlines() if line.startswith("isray: cells[0]: ")]
    assert len(lines) == 4
    assert "loss_rate: 3.5e-08 events expected in 2 trials, 50 of them would take 2,890,413,712 trials" in lines[2]


@pytest.mark.slow
def test_command_compares_rare_losses(tmp_path: Path) -> None:
    given = "broker_mttf: 20d, broker_mttr: 6h, detection: instant, min_insync_replicas: 1, duration: 9d, trials: 24"
    done = validated(tmp_path, f"- {{generation: kip-966, {given}, estimator: importance}}", "--json")
    found = {item["metric"]: item for item in json.loads(done.stdout)}
    assert done.exit_code == 0
    assert found["loss_rate"]["markov"] < 1e-3
    assert 0.5 < found["loss_rate"]["simulated"] / found["loss_rate"]["markov"] < 2.0


@pytest.mark.slow
def test_result_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """The processes are those of a command that ends, and with them what Python starts beside them."""
    path = tmp_path / "cells.yaml"
    path.write_text(CELL)
    script = "from experiments.cli.main import run; run()"
    arguments = ["study", "validate", "--cells", str(path), "--json", "--jobs"]
    two = subprocess.run([sys.executable, "-c", script, *arguments, "2"], stdout=subprocess.PIPE, check=True)
    one = CliRunner().invoke(application(), [*arguments, "1"])
    assert json.loads(one.stdout) == json.loads(two.stdout)
