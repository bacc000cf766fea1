"""The report and the tables: their statements follow from the numbers, and the page loads nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.estimation.estimates import CellEstimates, CellSums, FailoverTimes, estimate
from experiments.studies.estimation.statistics import Moments
from experiments.studies.report import words
from experiments.studies.report.plots import loss_plot
from experiments.studies.report.render import render
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.trace.metrics import METRICS

STUDY = study_from(
    {
        "name": "s",
        "trials": 100,
        "base": {"broker_mttf": "30d", "detection": "instant"},
        "sweep": {"generation": ["kip-497", "kip-966"], "min_insync_replicas": [1, 2]},
    },
    "s.yaml",
)
NAMES = [words.cell_name(cell.swept) for cell in STUDY.cells]


def estimates(losses: int, offline: float = 1e-4, refuses: float = 1e-4) -> CellEstimates:
    """A cell of 100 trials of one year: one loss of two records in each of the first `losses` trials."""
    moments = {}
    values = {"losses": losses, "lost_records": 2 * losses, "offline": offline * 100, "refuses": refuses * 100}
    for column in {metric.column for metric in METRICS}:
        total = values.get(column, 0)
        size = {"lost_records": 2, "offline": offline, "refuses": refuses}.get(column, 1)
        moments[column] = Moments(100, total, total * size)
    return estimate(CellSums(100, 100.0, moments, losses * 4, FailoverTimes(9_000.0, 90_000.0, None)))


def cells_of(losses: list[int], **changes: list[float]) -> list[CellEstimates]:
    return [
        estimates(lost, **{name: values[index] for name, values in changes.items()})
        for index, lost in enumerate(losses)
    ]


def test_document_has_the_published_keys() -> None:
    cell: dict[str, Any] = estimates(losses=50).document(STUDY.cells[0].swept)
    assert {"generation", "min_insync_replicas", "trials", "partition_years", "failover_ms"} < set(cell)
    assert set(cell) - {"generation", "min_insync_replicas", "trials", "partition_years", "failover_ms"} == {
        "loss_rate",
        "lost_records_per_year",
        "offline_fraction",
        "reject_fraction",
        "stall_fraction",
        "unclean_recoveries_per_year",
        "high_watermark_regressions_per_year",
        "acks_1_loss_rate",
    }
    assert all(set(cell[metric.name]) == {"estimate", "ci_low", "ci_high"} for metric in METRICS)
    assert cell["loss_rate"]["estimate"] == 0.5
    assert cell["lost_records_per_year"]["estimate"] == 1.0
    assert cell["offline_fraction"]["estimate"] == pytest.approx(1e-4)


def test_the_cell_with_the_lowest_loss_rate_is_recommended() -> None:
    result = words.recommend(NAMES, cells_of([90, 80, 70, 0]))
    assert (result.best, result.rivals) == (3, ())
    assert result.headline.startswith("Run kip-966 · min ISR 2: no acknowledged record lost")
    assert result.sentences[1].startswith("kip-497 · min ISR 1 loses most")


def test_among_cells_whose_intervals_overlap_the_most_available_is_recommended() -> None:
    result = words.recommend(NAMES, cells_of([90, 10, 80, 9], refuses=[0.0, 1e-4, 0.0, 1e-3]))
    assert (result.best, result.rivals) == (1, (3,))
    assert "not distinguished from that of kip-966 · min ISR 2" in result.sentences[-1]


def test_headline_reports_that_all_intervals_overlap() -> None:
    assert "cannot tell which setting" in words.recommend(NAMES, cells_of([10, 11, 10, 9])).headline


def test_trade_offs_compare_each_other_cell_with_the_recommended_one() -> None:
    cells = cells_of([90, 80, 70, 10], offline=[0.0, 0.0, 0.0, 1e-3], refuses=[0.0, 1e-4, 1e-4, 1e-3])
    rows = words.trade_offs(NAMES, cells, words.recommend(NAMES, cells))
    assert [row.name for row in rows] == [NAMES[2], NAMES[1], NAMES[0]]
    assert rows[0].losses == "+0.6 a year (× 7)"
    assert rows[0].offline == "−8.76 h"
    assert "availability" in rows[0].verdict


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.505, "0.505"), (12345.6, "12,346"), (0.00002, "0.00002"), (1e-9, "1.0e-09"), (12.04, "12")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 s"), (1e-8, "0.315 s"), (1e-5, "5.26 min"), (1e-3, "8.76 h"), (0.1, "36.5 d")],
)
def test_fractions_are_shown_as_time_per_year(fraction: float, text: str) -> None:
    assert words.minutes(fraction) == text


def test_durations_are_shown_in_the_largest_unit_that_fits() -> None:
    assert [words.milliseconds(value) for value in (None, 0, 9_000.0, 5.4e6)] == ["–", "0 ms", "9 s", "1.5 h"]


def test_page_loads_nothing_and_holds_names_methods_and_parameters() -> None:
    runs = [{"isray": "0.1.0", "ray": "2", "pyspark": "4", "python": "3", "git_revision": None}]
    page = render(StudyRecord(STUDY, runs), cells_of([90, 80, 70, 0]))
    assert page == render(StudyRecord(STUDY, runs), cells_of([90, 80, 70, 0]))
    assert not re.search(r"<script|@import|url\(http|src=|<link", page)
    assert page.count('role="img" aria-label="') == 2
    assert all(name in page for name in NAMES)
    assert "exact Poisson (Garwood)" in page
    assert "Wilson" in page
    assert "exponential, mean 30d" in page
    assert "<code>unclean.recovery.strategy</code> of the cluster" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_page_says_what_is_assumed_and_which_parameters_all_cells_share() -> None:
    """A swept preset changes other parameters too, which are then not the same in all cells."""
    raw = {"name": "s", "trials": 1, "base": {"brokers": 3}, "sweep": {"preset": ["none", "weekly-crash"]}}
    study = study_from(raw, "s.yaml")
    page = render(StudyRecord(study, [{"isray": "0.1.0"}]), cells_of([1, 0]))
    assert "<li>There are no correlated failures.</li>" in page
    assert "preset weekly-crash: The failure model begins with the preset weekly-crash." in page
    shared = {name for name, _, _ in words.parameter_rows([cell.parameters for cell in study.cells])}
    assert "brokers" in shared
    assert not shared & {"preset", "broker_mttf", "broker_mttr", "tail_loss_probability"}


@pytest.mark.parametrize("losses", [[0, 0, 0, 0], [90, 80, 70, 0]])
def test_cell_without_losses_is_drawn_as_its_upper_limit(losses: list[int]) -> None:
    svg = loss_plot(NAMES, cells_of(losses), 3)
    assert svg.count("none seen") == losses.count(0)
    assert ET.fromstring(svg).tag.endswith("svg")
    assert not re.search(r"#0[1-7]0", svg)


def test_cell_names_follow_the_labels_of_the_swept_parameters() -> None:
    assert words.cell_name({}) == "the one setting"
    swept = {"broker_mttf": {"dist": "weibull", "mean": "9d", "shape": 0.7}, "acks": "all"}
    assert words.cell_name(swept) == "MTTF dist weibull, mean 9d, shape 0.7 · acks=all"
