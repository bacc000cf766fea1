"""Estimates of cells: what is written to `gold/cells.json` is read back, and other files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.estimates import (
    CellEstimates,
    CellSums,
    FailoverTimes,
    estimate_cells,
    read_cells,
)
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import Products
from experiments.studies.trace.metrics import METRICS
from experiments.support.errors import InputError

STUDY = study_from({"name": "s", "trials": 8, "sweep": {"min_insync_replicas": [1, 2, 3]}}, "s.yaml")
TRIALS = 8
ZEROS = [0.0] * TRIALS


def sums_of(losses: list[float], unwritable: list[float] | None = None) -> CellSums:
    """A cell of eight trials of one year; the time that is not writable is in 4,000 episodes."""
    values = {"loss_rate": losses, "acknowledged_loss_rate": losses, "unwritable_fraction": unwritable or ZEROS}
    events = {"unwritable_fraction": 4_000 if unwritable else 0}
    sums = {
        metric.name: Sums.of(values.get(metric.name, ZEROS), [1.0] * TRIALS, events.get(metric.name))
        for metric in METRICS
    }
    return CellSums(TRIALS, float(TRIALS), sums, FailoverTimes(None, None, None))


def estimates_of(*cells: CellSums, study: StudyPlan = STUDY) -> list[CellEstimates]:
    return estimate_cells(study, cells, lambda reference: {})


def documents_of(cells: list[CellEstimates], swept: str = "min_insync_replicas") -> list[dict[str, object]]:
    return [values.document({swept: index + 1}) for index, values in enumerate(cells)]


SMALL = estimates_of(sums_of([1.0] * 8), sums_of(ZEROS), sums_of([2.0] * 8))


def write_cells(out: Path, text: str) -> Path:
    path = out / "gold" / "cells.json"
    path.parent.mkdir()
    path.write_text(text)
    return out


def test_written_cells_are_read_back(tmp_path: Path) -> None:
    assert read_cells(write_cells(tmp_path, json.dumps(documents_of(SMALL))), STUDY.cells) == SMALL


def test_document_has_the_published_keys() -> None:
    first, second, _ = documents_of(SMALL)
    assert set(first) == {metric.name for metric in METRICS} | {
        *("min_insync_replicas", "trials", "partition_years", "estimator", "failover_ms", "warnings"),
        *("compared_with_first", "compared_with_reference", "may_be_best", "recommended", "reference"),
        *("trials_to_distinguish", "writable_fraction", "targets", "cheapest", "compared_with_neighbours"),
        *("controls", "correlation", "gain", "drawing_gain"),
    }
    unwritable, writable = (
        cast("dict[str, float]", first[name]) for name in ("unwritable_fraction", "writable_fraction")
    )
    assert writable["estimate"] == 1.0 - unwritable["estimate"]
    assert (writable["ci_low"], writable["ci_high"]) == (1.0 - unwritable["ci_high"], 1.0 - unwritable["ci_low"])
    assert first["loss_rate"] == {
        "estimate": 1.0,
        "ci_low": pytest.approx(0.4317, abs=1e-4),
        "ci_high": pytest.approx(1.9704, abs=1e-4),
        "events": 8,
        "effective_sample_size": 8.0,
        "one_sided": False,
        "degenerate": False,
    }
    assert first["compared_with_first"] == {}
    compared = cast("dict[str, dict[str, dict[str, float]]]", second["compared_with_first"])
    assert set(compared) == {metric.name for metric in METRICS}
    assert set(compared["loss_rate"]["difference"]) == set(compared["loss_rate"]["ratio"])
    assert compared["loss_rate"]["difference"]["estimate"] == -1.0


def test_products_are_asked_for_pairs_only() -> None:
    asked: list[int] = []

    def products_with(reference: int) -> dict[tuple[int, str], Products]:
        asked.append(reference)
        return {(1, "loss_rate"): Products(TRIALS, 0.0, 0.0, 8.0, 8.0, 0)}

    cells = [sums_of([1.0] * 8), sums_of(ZEROS), sums_of([2.0] * 8)]
    paired = estimate_cells(STUDY, cells, products_with)
    assert sorted(asked) == [0, 1]
    assert paired[1].compared_with_first["loss_rate"].pairs == TRIALS
    independent = estimate_cells(STUDY.model_copy(update={"pairing": False}), cells, products_with)
    assert len(asked) == 2
    assert independent[1].compared_with_first["loss_rate"].pairs == 0


def test_only_a_cell_that_is_shown_to_be_the_best_is_recommended() -> None:
    assert [cell.may_be_best for cell in SMALL] == [False, True, False]
    assert [cell.recommended for cell in SMALL] == [False, True, False]
    close = estimates_of(sums_of([1.0] * 8, [0.1] * 8), sums_of([1.0] * 7 + [0.0], [0.2] * 8), sums_of([9.0] * 8))
    assert [cell.may_be_best for cell in close] == [True, True, False]
    assert not any(cell.recommended for cell in close)
    assert [cell.reference for cell in close] == [False, True, False]
    assert close[1].trials_to_distinguish is None
    assert close[2].trials_to_distinguish is None
    assert (close[0].trials_to_distinguish or 0) > 100


def degenerate(cell: CellSums, weight: float) -> CellSums:
    """The cell with two loss events in its trials, of which one has nearly all of that weight."""
    found = {"weight": weight, "weight_squares": weight * weight, "largest_weight": weight, "value": weight}
    sums = {name: replace(sums, events=2, **found) for name, sums in cell.sums.items() if "loss_rate" in name}
    return replace(cell, sums={**cell.sums, **sums})


def test_an_estimate_of_degenerate_weights_decides_nothing() -> None:
    """4.4e-10 losses a year beside 1 and 2: the lowest estimate, neither recommended nor the base of comparisons; the
    setting with 2 is eliminated by the one with 1."""
    cells = [sums_of([1.0] * 8), degenerate(sums_of(ZEROS), 8 * 4.4e-10), sums_of([9.0] * 8)]
    found = estimates_of(*cells)
    assert found[1].estimates["loss_rate"].estimate == pytest.approx(4.4e-10)
    assert found[1].estimates["loss_rate"].degenerate
    assert [cell.may_be_best for cell in found] == [True, True, False]
    assert [cell.reference for cell in found] == [True, False, False]
    assert not any(cell.recommended for cell in found)
    assert [cell.trials_to_distinguish for cell in found] == [None] * 3
    assert found[1].compared_with_reference["loss_rate"].degenerate
    assert not found[2].compared_with_reference["loss_rate"].degenerate
    alone = estimates_of(*[degenerate(sums_of(ZEROS), weight) for weight in (1e-9, 2e-9, 3e-9)])
    assert [cell.may_be_best for cell in alone] == [True] * 3


def test_availability_decides_nothing_where_the_same_failures_lose() -> None:
    """As the next test has it, but for pairs of trials that do not differ: min ISR 2 stays the base."""
    study = STUDY.model_copy(update={"equivalence_margin": 0.1})
    cells = [sums_of([200.0] * 8, [0.1, 0.11] * 4), sums_of([200.0] * 8, [0.2, 0.21] * 4), sums_of([900.0] * 8)]

    def with_pairs(differing: int) -> list[CellEstimates]:
        products = Products(TRIALS, 8 * 200.0**2, 1_600.0, 1_600.0, 8.0, differing)
        return estimate_cells(
            study, cells, lambda reference: {(1 - reference, "loss_rate"): products} if reference < 2 else {}
        )

    same, other = with_pairs(0), with_pairs(1)
    assert same[1].compared_with_first["loss_rate"].identical
    assert [cell.recommended for cell in same] == [False] * 3
    assert [cell.reference for cell in same] == [False, True, False]
    assert [cell.recommended for cell in other] == [True, False, False]


def test_availability_decides_among_equivalent_cells_only() -> None:
    """200 losses a trial, so that the margin of a tenth shows; not writable for 10 % and 20 % of the time."""
    cells = [sums_of([200.0] * 8, [0.1, 0.11] * 4), sums_of([200.0] * 8, [0.2, 0.21] * 4), sums_of([900.0] * 8)]
    with_margin = STUDY.model_copy(update={"equivalence_margin": 0.1})
    assert [cell.recommended for cell in estimates_of(*cells, study=with_margin)] == [True, False, False]
    assert not any(cell.recommended for cell in estimates_of(*cells))
    alike = [cells[0], cells[0], cells[2]]
    assert not any(cell.recommended for cell in estimates_of(*alike, study=with_margin))


def test_cells_are_compared_within_the_same_assumptions_only() -> None:
    sweep = {"broker_mttf": ["10d", "1y"], "min_insync_replicas": [1, 2]}
    study = study_from({"name": "s", "trials": 8, "sweep": sweep}, "s.yaml")
    cells = estimates_of(
        *(sums_of([9.0] * 8), sums_of([5.0] * 8), sums_of([1.0] * 8), sums_of([1.0] * 7 + [0.0])), study=study
    )
    assert [cell.recommended for cell in cells] == [False, True, False, False]
    assert [cell.reference for cell in cells] == [False, True, False, True]
    assert cells[2].compared_with_reference["loss_rate"].difference.estimate == pytest.approx(0.125)


def test_acks_1_is_ranked_by_what_a_crash_of_the_leader_loses_and_acks_0_never() -> None:
    study = study_from({"name": "s", "trials": 8, "sweep": {"acks": ["all", 1, 0]}}, "s.yaml")
    assert study.objective == "acknowledged_loss_rate"
    cells = estimates_of(sums_of([1.0] * 8), sums_of([9.0] * 8), sums_of(ZEROS), study=study)
    assert [cell.recommended for cell in cells] == [True, False, False]
    close = estimates_of(sums_of([1.0] * 8), sums_of([1.0] * 8), sums_of(ZEROS), study=study)
    assert [cell.may_be_best for cell in close] == [True, True, False]


def test_acks_1_is_never_the_best_by_a_metric_that_leaves_out_what_was_in_flight() -> None:
    fields = {"name": "s", "trials": 8, "objective": "loss_rate", "sweep": {"acks": ["all", 1]}}
    cells = estimates_of(sums_of([1.0] * 8), sums_of(ZEROS), study=study_from(fields, "s.yaml"))
    assert [cell.may_be_best for cell in cells] == [True, False]
    assert [cell.reference for cell in cells] == [True, False]
    assert cells[1].compared_with_reference["loss_rate"].difference.estimate == -1.0


def test_objective_is_the_metric_that_the_study_names() -> None:
    study = STUDY.model_copy(update={"objective": "unwritable_fraction"})
    cells = estimates_of(
        sums_of(ZEROS, [0.2, 0.21] * 4), sums_of(ZEROS, [0.1, 0.11] * 4), sums_of(ZEROS, [0.3, 0.31] * 4), study=study
    )
    assert [cell.may_be_best for cell in cells] == [False, True, False]


def test_one_cell_is_its_own_reference_and_not_recommended() -> None:
    study = study_from({"name": "s", "trials": 8}, "s.yaml")
    (cell,) = estimates_of(sums_of(ZEROS), study=study)
    assert (cell.reference, cell.recommended) == (True, False)
    assert cell.compared_with_reference == {}


def test_warnings_name_weights_and_precision() -> None:
    precision = {"precision": {"relative_error": 0.1, "max_trials": 8}}
    study = study_from({"name": "s", **precision}, "s.yaml")
    cell = sums_of(ZEROS)
    sums = dict(cell.sums)
    sums["loss_rate"] = replace(
        Sums.of([0.001] * 8, [1.0] * 8, events=8), weight=0.008, weight_squares=8e-6, largest_weight=0.001
    )
    (estimates,) = estimates_of(replace(cell, sums=sums), study=study)
    weights, reached = estimates.warnings
    assert weights == "weights degenerate: loss_rate: 8 events are worth 8.0 of equal weight"
    assert "precision out of reach" in reached


def test_missing_cells_name_the_command_that_writes_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="isray study analyze"):
        read_cells(tmp_path, STUDY.cells)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[", "damaged"),
        ("{}", "damaged"),
        ("[1, 2]", "damaged"),
        ("[]", "another study"),
        ('[{"min_insync_replicas": 1}, {"min_insync_replicas": 2}, {"min_insync_replicas": 3}]', "another study"),
        (json.dumps(documents_of(SMALL)[::-1]), "another study"),
        (json.dumps(documents_of(SMALL, swept="acks")), "another study"),
    ],
)
def test_cells_that_are_damaged_or_of_another_study_are_refused(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read_cells(write_cells(tmp_path, text), STUDY.cells)
