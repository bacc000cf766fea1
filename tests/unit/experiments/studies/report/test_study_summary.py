"""What a terminal shows of a study: its headline and the columns that decide."""

from __future__ import annotations

import pytest

from experiments.studies.report.settings import groups
from experiments.studies.report.summary import Summary, shown_metrics, summary
from experiments.studies.report.verdict import judge
from experiments.studies.report.words import plain
from tests.synthetic_studies import cells_of, study_of

SWEEP = {"min_insync_replicas": [1, 2]}


def of(targets: dict[str, str] | None, **fields: object) -> Summary:
    """Of two cells of 100 trials of a year: 40 and 0 losses, writes fail for 1/1,000 of the time and twice that."""
    study = study_of(**({} if targets is None else {"targets": targets}), sweep=SWEEP, **fields)
    return summary(study, cells_of(study, [40, 0], unwritable=[1e-3, 2e-3]))


def test_with_targets_each_setting_has_their_answers() -> None:
    """40 losses in 100 years are one in 2.5. None in 100 years is at most -ln(0.05 / 4) / 100 a year, 1 in 22.8 years,
    since four statements hold together. Two thousandths of a year of 8,760 h are 17.5 h."""
    found = of({"incidents": "1 in 10y", "writable": "99.9%"})
    assert found.columns == ("setting", "1 incident in 10y", "99.9% writable", "replicas")
    (one, two) = found.rows
    assert one[0] == "min ISR 1"
    assert one[1].startswith("missed: 1 in 2.5 years\n1 in ")
    assert two[1] == "met: none seen\nat most 1 in 22.8 years"
    assert two[2].startswith("missed: fails 17.5 h\n")
    assert [row[-1] for row in found.rows] == ["3", "3"]


def test_without_targets_losses_and_the_time_in_which_writes_fail() -> None:
    found = of(None)
    assert found.columns == ("setting", "loss events", "not writable", "replicas")
    assert found.rows[0][1].startswith("0.4\n")
    assert found.rows[0][2].startswith("8.75 h\n")
    assert found.rows[1][1].startswith("0\nat most ")


def test_headline_is_that_of_the_page() -> None:
    study = study_of(sweep=SWEEP)
    cells = cells_of(study, [40, 0])
    assert summary(study, cells).headline == plain(judge(study, groups(study, cells)).headline)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"objective": "stall_fraction"}, ["stall_fraction", "loss_rate", "unwritable_fraction"]),
        ({"targets": {"writable": "99%"}}, ["loss_rate"]),
        ({"targets": {"incidents": "1 in 10y"}}, ["unwritable_fraction"]),
        ({"base": {"acks": 1}}, ["acknowledged_loss_rate", "unwritable_fraction"]),
        ({"base": {"acks": 1}, "targets": {"incidents": "1 in 10y"}}, ["unwritable_fraction"]),
    ],
)
def test_columns_have_what_no_target_is_about(fields: dict[str, object], names: list[str]) -> None:
    assert [metric.name for metric in shown_metrics(study_of(sweep=SWEEP, **fields))] == names
