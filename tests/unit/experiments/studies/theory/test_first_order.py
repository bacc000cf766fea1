"""Loss rates by hand for failure models that have no Markov chain, and how often intervals hold them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from experiments.cli.main import application
from experiments.studies.design.estimator import choose
from experiments.studies.theory import coverage as module
from experiments.studies.theory.answers import answer
from experiments.studies.theory.coverage import MODELS, Coverage, cells, coverage, loss_rate
from experiments.support.errors import InputError

CELLS = {(name, catch_up): params for name, catch_up, params in cells("multifidelity")}


def test_own_failures_agree_with_the_markov_model() -> None:
    for name in ("own failures", "three replicas"):
        cell = CELLS[name, False]
        markov = answer(cell.model_copy(update={"racks": 1}))
        assert markov is not None
        assert loss_rate(cell) == pytest.approx(markov["loss_rate"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "catch_up", "by_hand"),
    [
        # 2 u l q: l = 365 / 122 a year, q = 0.1, u = l T
        ("own failures", False, 2 * 2.9918 * (20 / 525_600) * 2.9918 * 0.1),
        # 20 min down, and 50 / 25 times as long to fetch what was written meanwhile
        ("own failures", True, 2 * 2.9918 * (60 / 525_600) * 2.9918 * 0.1),
        ("start of the process", True, 2 * 2.9918 * (150 / 525_600) * 2.9918 * 0.1),
        # 0.02 of the failures lose the disk, and fetch 1 TB at 25 MB/s: 666.7 min
        ("lost disks", True, 2 * 2.9918 * ((60 + 0.02 * 666.67) / 525_600) * 2.9918 * (0.02 + 0.98 * 0.1)),
        ("frequent failures, plain trials", False, 2 * 73 * (120 / 525_600) * 73),
        ("rack power", False, 2 * (2.9918 * 20 + 2 * 60) / 525_600 * (2.9918 * 0.1 + 2 * 0.5)),
    ],
)
def test_rates_by_hand(name: str, catch_up: bool, by_hand: float) -> None:
    assert loss_rate(CELLS[name, catch_up]) == pytest.approx(by_hand, rel=1e-3)


def test_cells_that_no_formula_covers() -> None:
    cell = CELLS["own failures", False]
    for changes in ({"min_insync_replicas": 2}, {"generation": "kip-966"}, {"detection_ms": 9_000}, {"racks": 1}):
        assert loss_rate(cell.model_copy(update=changes)) is None


@pytest.mark.slow
def test_intervals_hold_the_values_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MODELS", {name: MODELS[name] for name in ("lost disks", "bursts")})
    found = list(coverage(3, 1))
    assert [(item.model, item.catch_up) for item in found] == [
        (name, catch_up) for name in ("lost disks", "bursts") for catch_up in (False, True)
    ]
    assert all(item.agrees for item in found)
    assert all(item.mean == pytest.approx(item.by_hand, rel=0.35) for item in found)


def test_too_few_intervals_that_hold_the_value_are_no_chance() -> None:
    assert Coverage("m", False, 1.0, 1.0, 180, 200).agrees
    assert not Coverage("m", False, 1.0, 1.0, 176, 200).agrees


@pytest.mark.parametrize(
    ("option", "arguments", "found"),
    [
        ("--coverage", ["--coverage", "0"], "0"),
        ("--coverage", ["--coverage", "1", "--cells", "c.yaml"], "--cells as well"),
        ("--estimator", ["--coverage", "1", "--estimator", "splitting"], "splitting"),
    ],
)
def test_wrong_options_are_refused(option: str, arguments: list[str], found: str) -> None:
    done = CliRunner().invoke(application(), ["study", "validate", *arguments])
    assert isinstance(done.exception, InputError)
    assert (done.exception.source, str(done.exception.found)) == (option, found)


def test_multifidelity_is_plain_where_failures_are_frequent() -> None:
    chosen = {name: choose(params) for (name, _), params in CELLS.items()}
    plain = [name for name, choice in chosen.items() if not choice.in_cycles]
    assert plain == ["frequent failures, plain trials"]
    assert {choice.estimator for choice in chosen.values()} == {"multifidelity"}


@pytest.mark.slow
def test_the_command_prints_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MODELS", {"own failures": {}})
    done = CliRunner().invoke(application(), ["study", "validate", "--coverage", "1", "--jobs", "1", "--json"])
    assert [(item["model"], item["catch_up"]) for item in json.loads(done.stdout)] == [
        ("own failures", False),
        ("own failures", True),
    ]
