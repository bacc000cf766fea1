"""Loss rates by hand for failure models that have no Markov chain, and how often intervals hold them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from experiments.cli.main import application
from experiments.studies.design.estimator import choose
from experiments.studies.theory import coverage as module
from experiments.studies.theory.answers import answer
from experiments.studies.theory.coverage import (
    DRAWN,
    ESTIMATORS,
    MODELS,
    Coverage,
    cells,
    coverage,
    known_values,
    loss_rate,
)
from experiments.studies.trials.multifidelity import effort
from experiments.support.errors import InputError
from tests.sim.seed_helpers import some

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
        ("rack power", False, 2 * (2.9918 * 20 + 2 * 60) / 525_600 * (2.9918 * 0.1 + 2 * 0.5)),
        ("racks of two", False, 2 * (2.9918 * 20 + 2 * 60) / 525_600 * (2.9918 * 0.1 + 2 * 0.5)),
    ],
)
def test_rates_by_hand(name: str, catch_up: bool, by_hand: float) -> None:
    assert loss_rate(CELLS[name, catch_up]) == pytest.approx(by_hand, rel=1e-3)


def test_cells_that_no_formula_covers() -> None:
    cell = CELLS["own failures", False]
    for changes in ({"min_insync_replicas": 2}, {"generation": "kip-966"}, {"detection_ms": 9_000}, {"racks": 1}):
        assert loss_rate(cell.model_copy(update=changes)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["bursts", "racks of two"], first=1))
def test_intervals_hold_the_values_by_hand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MODELS", {name: MODELS[name]})
    found = list(coverage(3, 1))
    assert [(item.model, item.catch_up) for item in found] == [
        *[("frequent failures", False)] * 2,
        (name, False),
        (name, True),
    ]
    assert all(item.agrees for item in found)
    assert all(item.mean == pytest.approx(item.known, rel=0.35) for item in found)


def test_frequent_failures_have_the_rate_of_the_markov_chain() -> None:
    """A broker fails l = 73 times a year and is down for T = 12 h, so u = l T = 0.1. Both replicas are down for
    u^2 / (1 + u)^2 of time, exactly one for 2 u / (1 + u)^2. In a part X of the latter the one that is up is stale, and
    waits for the last member of the ISR: it came back while both were down, and either broker's next change ends that,
    X (1 + u) = u^2 / (1 + u)^2. In the rest the one that is up leads alone. Each of its failures loses the tail with
    probability 0.8, which shows when it is back. Writes are refused while both are down, and in X."""
    (_, _, cell), *others = cells("plain")
    assert not others
    u = 0.1
    leads_alone = 2 * u / (1 + u) ** 2 - u**2 / (1 + u) ** 3
    refused = u**2 / (1 + u) ** 2 + u**2 / (1 + u) ** 3
    assert known_values(cell) == pytest.approx(
        {"loss_rate": leads_alone * 73 * 0.8, "reject_fraction": refused}, rel=1e-9
    )


def test_too_few_intervals_that_hold_the_value_are_no_chance() -> None:
    assert Coverage("m", False, "loss_rate", 1.0, 1.0, 0.1, 180, 200).agrees
    assert not Coverage("m", False, "loss_rate", 1.0, 1.0, 0.1, 176, 200).agrees


@pytest.mark.parametrize(
    ("option", "arguments", "found"),
    [
        ("--coverage", ["--coverage", "0"], "0"),
        ("--coverage", ["--coverage", "1", "--cells", "c.yaml"], "--cells as well"),
        ("--estimator", ["--coverage", "1", "--estimator", "exact"], "exact"),
    ],
)
def test_wrong_options_are_refused(option: str, arguments: list[str], found: str) -> None:
    done = CliRunner().invoke(application(), ["study", "validate", *arguments])
    assert isinstance(done.exception, InputError)
    assert (done.exception.source, str(done.exception.found)) == (option, found)


def test_multifidelity_is_plain_where_failures_are_frequent() -> None:
    chosen = {name: choose(params) for (name, _), params in CELLS.items()}
    plain = [name for name, choice in chosen.items() if not choice.in_cycles]
    assert plain == ["frequent failures", DRAWN]
    assert {choice.estimator for choice in chosen.values()} == {"multifidelity"}


def test_trials_of_a_few_days_are_drawn_by_their_losses() -> None:
    found = effort(CELLS[DRAWN, False])
    assert "incidents" in found.drawn_by
    assert found.controls >= 8


@pytest.mark.slow
def test_the_command_prints_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MODELS", {"own failures": {}})
    done = CliRunner().invoke(application(), ["study", "validate", "--coverage", "1", "--jobs", "1", "--json"])
    assert [(item["model"], item["catch_up"]) for item in json.loads(done.stdout)] == [
        ("frequent failures", False),
        ("frequent failures", False),
        ("own failures", False),
        ("own failures", True),
    ]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_each_estimator_has_its_cells(estimator: str) -> None:
    chosen = [choose(params).estimator for _, _, params in cells(estimator)]
    found = "multifidelity" if estimator == "auto" else estimator
    frequent = 2 if estimator == "multifidelity" else 1
    assert chosen == [found] * (frequent + 2 * len(MODELS) * (estimator in ("importance", "multifidelity")))
