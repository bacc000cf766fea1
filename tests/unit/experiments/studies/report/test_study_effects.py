"""Main effects, and the answers that are none: every pair of settings that differ in one decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.studies.design.study import StudyPlan
from experiments.studies.report.effects import Effect, effects
from experiments.studies.report.settings import groups
from experiments.studies.report.verdict import judge
from experiments.studies.report.words import plain
from tests.synthetic_studies import cells_of, study_of

BASE = {"broker_mttf": "30d", "detection": "instant", "racks": 3, "brokers": 6}
SWEEP = {"placement": ["together", "spread"], "min_insync_replicas": [1, 2]}
STUDY = study_of(base=BASE, sweep=SWEEP)
LENIENT = study_of(base=BASE, sweep=SWEEP, equivalence_margin=2.0)


def effect_of(study: StudyPlan, losses: list[int], decision: str, degenerate: bool = False) -> Effect:
    """The effect on losses; the cells are together/1, together/2, spread/1, spread/2, of 100 trials each."""
    cells = cells_of(study, losses)
    if degenerate:
        compared = {
            index: {name: replace(each, degenerate=True) for name, each in of.items()}
            for index, of in cells[3].compared_with_neighbours.items()
        }
        cells[3] = replace(cells[3], compared_with_neighbours=compared)
    (group,) = groups(study, cells)
    found = [each for each in effects(study, group) if each.metric.name == "loss_rate"]
    assert len(found) == 2
    return next(each for each in found if decision in each.first)


@pytest.mark.parametrize(
    ("losses", "outcomes", "is_main", "said"),
    [
        (
            [90, 80, 20, 10],
            ["less", "less"],
            True,
            "Replicas spread loses less than replicas together with either min ISR.",
        ),
        (
            [10, 20, 80, 90],
            ["less", "less"],
            True,
            "Replicas together loses less than replicas spread with either min ISR.",
        ),
        (
            [90, 20, 20, 19],
            ["less", "not shown"],
            False,
            "Replicas spread loses less than replicas together with min ISR 1; no difference in loss events is shown "
            "between replicas spread and replicas together with min ISR 2.",
        ),
        (
            [90, 20, 20, 20],
            ["less", "same"],
            False,
            "Replicas spread loses less than replicas together with min ISR 1; replicas spread and replicas together "
            "have the same loss events, by the same failures, with min ISR 2.",
        ),
        (
            [90, 20, 20, 90],
            ["less", "more"],
            False,
            "Replicas spread loses less than replicas together with min ISR 1; replicas together loses less than "
            "replicas spread with min ISR 2.",
        ),
    ],
)
def test_effect_is_main_only_if_every_comparison_shows_it(
    losses: list[int], outcomes: list[str], is_main: bool, said: str
) -> None:
    found = effect_of(STUDY, losses, "spread" if losses[0] > 10 else "together")
    assert (list(found.outcomes.values()), found.is_main, found.sentence) == (outcomes, is_main, said)


def test_equality_ignorance_and_no_difference_shown_are_different_answers() -> None:
    few = [60, 60, 59, 58]
    assert list(effect_of(LENIENT, few, "spread").outcomes.values()) == ["equivalent", "equivalent"]
    assert list(effect_of(STUDY, few, "spread").outcomes.values()) == ["not shown", "not shown"]
    ignorant = effect_of(STUDY, [90, 80, 20, 10], "spread", degenerate=True)
    assert list(ignorant.outcomes.values()) == ["less", "unknown"]
    assert "is not known, as weights degenerate, with min ISR 2." in ignorant.sentence
    assert not ignorant.is_main


def test_main_effect_is_stated_though_the_best_setting_is_not_decided() -> None:
    cells = cells_of(STUDY, [90, 88, 20, 19])
    verdict = judge(STUDY, groups(STUDY, cells))
    assert verdict.kind == "undecided"
    text = "\n".join(map(plain, verdict.sentences))
    assert "Replicas spread loses less than replicas together with either min ISR." in text
    assert "min ISR 2 loses less" not in text


def test_every_pair_that_differs_in_one_decision_is_compared() -> None:
    """Three generations by two settings: 3 x 2 pairs of generations, 3 of min ISR."""
    sweep = {"generation": ["kip-497", "kip-966-elr", "kip-966"], "min_insync_replicas": [1, 2]}
    study = study_of(base=BASE, sweep=sweep)
    cells = cells_of(study, [90, 80, 70, 60, 50, 40])
    compared = [(index, other) for index, cell in enumerate(cells) for other in cell.compared_with_neighbours]
    assert compared == [(1, 0), (2, 0), (3, 1), (3, 2), (4, 0), (4, 2), (5, 1), (5, 3), (5, 4)]
    paired = [of["loss_rate"].pairs for cell in cells for of in cell.compared_with_neighbours.values()]
    assert set(paired) == {100}
    (one, other) = (cells[3].compared_with_neighbours[1], cells[1].estimates["loss_rate"].estimate)
    assert one["loss_rate"].difference.estimate == pytest.approx(0.6 - other)
