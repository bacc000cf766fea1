"""`isray bench sim`: the measured study is the reference study, and the shape of the report; no test of a time."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.bench.sim import REFERENCE, bare_events, exchange, run, simulate
from experiments.cli.main import application
from experiments.engines.sim.memory import YOUNG_OBJECTS, rare_collections
from experiments.hunt.fuzz.run import simulate_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.studies.design.loader import load_study
from experiments.studies.design.model import DAY_MS, CellParameters

SHORT = (
    CellParameters(duration_ms=5 * DAY_MS, generation="kip-966"),
    CellParameters(duration_ms=10 * DAY_MS, generation="kip-497"),
)


def test_the_reference_cells_are_those_of_the_reference_study() -> None:
    assert [
        cell.parameters for cell in load_study(Path(__file__).parent / "testdata" / "reference-study.yaml").cells
    ] == list(REFERENCE)


def test_every_measurement_has_the_same_events() -> None:
    assert simulate(SHORT[0], 2) == simulate(SHORT[0], 2) > 0


def test_the_baseline_dispatches_the_given_number_of_events() -> None:
    ends = [bare_events(count) for count in (1, 10, 100)]
    assert ends[0] == 0
    assert ends == sorted(set(ends))


@pytest.mark.slow
def test_the_report_has_a_row_per_cell_and_one_for_all() -> None:
    report = run(trials=1, repeats=1, cells=SHORT, seeds=1, lengths_ms=(DAY_MS, 2 * DAY_MS))
    cells, total = report.document["cells"], report.document["total"]
    assert isinstance(cells, list)
    assert isinstance(total, dict)
    assert [cell["name"] for cell in cells] == ["kip-966, min ISR 2", "kip-497, min ISR 2"]
    for figure in ("trials", "events", "cluster_years", "elapsed_ms", "baseline_ms"):
        assert total[figure] == pytest.approx(sum(cell[figure] for cell in cells))
    assert all(value > 0 for cell in cells for name, value in cell.items() if name != "name")
    assert [row[0] for row in report.rows][:3] == ["kip-966, min ISR 2", "kip-497, min ISR 2", "all"]
    assert {row[0] for row in report.rows[5:]} >= {"invariants_off", "invariants_on", "fuzz"}
    lengths = report.document["lengths"]
    assert isinstance(lengths, list)
    assert [length["trials"] for length in lengths] == [2, 1]
    assert lengths[0]["cluster_years"] == lengths[1]["cluster_years"]
    growth = lengths[1]["elapsed_ms"] / lengths[1]["events"] / (lengths[0]["elapsed_ms"] / lengths[0]["events"])
    assert report.document["growth"] == pytest.approx(growth, abs=0.001)
    assert all(len(row) == len(report.columns) for row in report.rows)


def test_plans_have_the_same_trace_with_and_without_invariants_and_each_time() -> None:
    """Without the invariants, crashes may lose more records."""
    drawn = draw(1)
    kept = tuple(fault for fault in drawn.faults if fault.kind not in ("crash", "power_loss"))
    plan = drawn.model_copy(update={"faults": kept})
    assert kept
    quiet, watched = simulate_plan(plan, invariants=False), simulate_plan(plan, invariants=True)
    assert quiet == watched == simulate_plan(plan, invariants=False)


@pytest.mark.slow
def test_plans_of_the_default_fuzz_run_without_invariants() -> None:
    """Without invariants visible records are not tracked, so crashes must not depend on them."""
    for seed in range(1, 9):
        events, _ = simulate_plan(draw(seed), invariants=False)
        assert events


def test_simpy_exchanges_as_many_events() -> None:
    assert [exchange(count) for count in (2, 3, 100)] == [2, 2, 100]


def test_garbage_collections_are_rare_during_a_run_only() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() == (max(before[0], YOUNG_OBJECTS), *before[1:])
    assert gc.get_threshold() == before


@pytest.mark.slow
def test_json_is_one_document() -> None:
    done = CliRunner().invoke(
        application(), ["bench", "sim", "--trials", "1", "--repeats", "1", "--seeds", "1", "--json"]
    )
    figures = json.loads(done.stdout)["benches"]["sim"]
    assert [cell["cluster_years"] for cell in figures["cells"]] == [1.0] * len(REFERENCE)
    assert sorted(figures) == ["build", "cells", "growth", "lengths", "plans", "repeats", "total"]
