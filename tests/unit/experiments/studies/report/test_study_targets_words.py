"""What a report says of targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.studies.estimation.targets import Growth
from experiments.studies.report.render import render
from experiments.studies.report.settings import groups
from experiments.studies.report.targets import growth_sentence
from experiments.studies.report.verdict import judge
from experiments.studies.report.words import plain
from tests.synthetic_studies import cells_of, record_of, study_of

BASE = {"broker_mttf": "30d", "detection": "instant"}


def headline(losses: list[int], unwritable: list[float], incidents: str, writable: str, **fields: object) -> str:
    """Of cells of 100 trials of a year."""
    study = study_of(base=BASE, targets={"incidents": incidents, "writable": writable}, **fields)
    return plain(judge(study, groups(study, cells_of(study, losses, unwritable=unwritable))).headline)


@pytest.mark.parametrize(
    ("losses", "unwritable", "said"),
    [
        (
            [40, 0, 0],
            [1e-5, 2e-4, 5e-3],
            "Run min ISR 2: it meets 1 incident in 10y and 99.9% writable; min ISR 1 misses the first; min ISR 3 "
            "misses the second.",
        ),
        (
            [0, 0, 10],
            [1e-5, 2e-4, 5e-3],
            "Run min ISR 2: it meets 1 incident in 10y and 99.9% writable; min ISR 1 meets both too; min ISR 3 misses "
            "the second and is not shown to meet the first.",
        ),
        (
            [40, 40, 0],
            [1e-5, 2e-4, 5e-3],
            "No setting meets 1 incident in 10y and 99.9% writable: min ISR 1 and min ISR 2 miss the first; min ISR 3 "
            "misses the second.",
        ),
        (
            [10, 10, 40],
            [1e-5, 2e-4, 5e-3],
            "This study does not show a setting that meets 1 incident in 10y and 99.9% writable: min ISR 1 and min ISR "
            "2 are not shown to meet the first; min ISR 3 misses both.",
        ),
    ],
)
def test_headline_names_the_cheapest_setting_and_what_the_others_miss(
    losses: list[int], unwritable: list[float], said: str
) -> None:
    assert headline(losses, unwritable, "1 in 10y", "99.9%", sweep={"min_insync_replicas": [1, 2, 3]}) == said


def test_answers_under_several_assumptions() -> None:
    sweep = {"preset": ["hdfs-2010", "cloud-vm-5"], "min_insync_replicas": [1, 2]}
    said = headline([0, 0, 40, 40], [1e-5] * 4, "1 in 10y", "99.9%", sweep=sweep)
    assert said == (
        "To meet 1 incident in 10y and 99.9% writable, it depends on the assumptions: run min ISR 2 with preset "
        "hdfs-2010; no setting meets them with preset cloud-vm-5."
    )


def test_growth_names_the_three_tightest_causes() -> None:
    study = study_of(base=BASE, targets={"incidents": "1 in 10y"}, sweep={"min_insync_replicas": [1, 2]})
    ((_, setting),) = [group.settings for group in groups(study, cells_of(study, [0, 0]))]
    (found,) = setting.estimates.targets
    causes = [
        ("rack power", 4.0, True),
        ("broker", 2.5, True),
        ("burst deploys", 9.0, False),
        ("cluster power", 20.0, True),
    ]
    grown = replace(found, growth=tuple(Growth(*each) for each in causes))
    said = growth_sentence(replace(setting, estimates=replace(setting.estimates, targets=(grown,))))
    assert said == (
        "min ISR 2 is still shown to meet it if one cause alone comes more often than assumed: failures of single "
        "brokers 2.5 times, rack power 4 times or bursts (deploys) at least 9 times."
    )
    assert growth_sentence(setting) == ""


@pytest.mark.slow
def test_page_has_the_targets_and_the_numbers_before_what_is_assumed() -> None:
    study = study_of(base=BASE, targets={"incidents": "1 in 10y"}, sweep={"min_insync_replicas": [1, 2]})
    page = render(record_of(study), cells_of(study, [40, 0]))
    places = [page.index(f'<section id="{name}"') for name in ("targets", "numbers", "losses", "kafka", "assumed")]
    assert places == sorted(places)
    assert page.count("meets the targets</span>") == 1
    assert '<strong>missed</strong><span class="ci">1 in 2.5 years (1 in ' in page
    assert "kafka-topics.sh" in page
