"""The report and the tables: their statements follow from the numbers, and the page loads nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import StudyPlan
from experiments.studies.estimation.estimates import CellEstimates, CellSums, FailoverTimes, estimate_cells
from experiments.studies.estimation.moments import Estimate, Sums
from experiments.studies.estimation.pairs import Comparison, Difference, Products, Ratio
from experiments.studies.report import advice, words
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


def cells_of(losses: list[int], study: StudyPlan = STUDY, **shares: list[float]) -> list[CellEstimates]:
    """Cells of 100 trials of one year: one loss of two records in each of the first trials, as many as `losses` says;
    the same share of time in every trial. Pairs of trials have their losses in common."""
    exposure = [1.0] * 100
    columns = []
    for index, lost in enumerate(losses):
        values = {"losses": [1.0] * lost + [0.0] * (100 - lost)}
        values["lost_records"] = [2.0 * value for value in values["losses"]]
        values |= {name: [each[index] * (0.9 + 0.002 * trial) for trial in range(100)] for name, each in shares.items()}
        columns.append({metric.column: values.get(metric.column, [0.0] * 100) for metric in METRICS})
    cells = [
        CellSums(
            100,
            100.0,
            {metric.name: Sums.of(column[metric.column], exposure, losses[index]) for metric in METRICS},
            FailoverTimes(9_000.0, 90_000.0, 95_000.0, 8_000.0, 11_000.0, 70_000.0, None, 50),
        )
        for index, column in enumerate(columns)
    ]

    def products_with(reference: int) -> dict[tuple[int, str], Products]:
        found = {}
        for index, column in enumerate(columns):
            for metric in METRICS:
                mine, its = column[metric.column], columns[reference][metric.column]
                both = sum(x * y for x, y in zip(mine, its, strict=True))
                found[index, metric.name] = Products(100, both, sum(mine), sum(its), 100.0)
        return found

    return estimate_cells(study, cells, products_with)


def test_the_cell_with_the_lowest_loss_rate_is_recommended() -> None:
    result = advice.recommend(NAMES, cells_of([90, 80, 70, 0]))
    assert (result.best, result.rivals) == (3, ())
    assert result.headline.startswith("Run kip-966 · min ISR 2: no acknowledged record lost in 100 partition-years")
    assert "one-sided 95 %: at most 0.03 events a year" in result.headline
    assert result.sentences[1].startswith("kip-497 · min ISR 1 loses most")


def test_among_cells_that_may_lose_least_the_most_available_is_recommended() -> None:
    result = advice.recommend(NAMES, cells_of([90, 10, 80, 9], refuses=[0.0, 1e-4, 0.0, 1e-3]))
    assert (result.best, result.rivals) == (1, (3,))
    assert "kip-497 · min ISR 2, kip-966 · min ISR 2 may lose least" in result.sentences[-1]


def test_headline_reports_that_any_cell_may_lose_least() -> None:
    assert "cannot tell which setting" in advice.recommend(NAMES, cells_of([10, 11, 10, 9])).headline


def test_trade_offs_compare_each_other_cell_with_the_recommended_one() -> None:
    cells = cells_of([90, 80, 70, 10], offline=[0.0, 0.0, 0.0, 1e-3], refuses=[0.0, 1e-4, 1e-4, 1e-3])
    rows = advice.trade_offs(NAMES, cells, advice.recommend(NAMES, cells), None)
    assert [row.name for row in rows] == [NAMES[2], NAMES[1], NAMES[0]]
    change, limits = rows[0].losses
    assert change == "+0.6 a year (× 7)"
    assert re.fullmatch(r"\+0\.\d+ to \+\d\.\d+", limits)
    assert rows[0].offline[0].startswith("−8.7")
    assert rows[0].verdict.startswith("Loses more; ")
    assert "availability" in rows[0].verdict
    assert rows[0].gain is not None


def comparison(low: float, high: float | None) -> Comparison:
    upper = 1.0 if high is None else high - 1.0
    return Comparison(Difference(0.0, low - 1.0, upper), Ratio(1.0, low, high), 10, None)


@pytest.mark.parametrize(
    ("compared", "margin", "words_"),
    [
        (comparison(0.95, 1.05), None, "not distinguished"),
        (comparison(0.95, 1.05), 0.1, "equivalent within 10 %"),
        (comparison(0.85, 1.05), 0.1, "not distinguished"),
        (comparison(0.95, 1.25), 0.2, "not distinguished"),
        (comparison(0.95, None), 0.2, "not distinguished"),
        (comparison(1.01, 1.05), 0.2, "Loses more"),
        (comparison(0.5, 0.9), 0.2, "Loses less"),
    ],
)
def test_equivalence_is_claimed_within_a_margin_only(compared: Comparison, margin: float | None, words_: str) -> None:
    assert words_ in advice.loss_verdict(compared, margin)


def test_page_shows_warnings() -> None:
    cells = cells_of([90, 80, 70, 0])
    cells[1] = replace(cells[1], warnings=("weights degenerate: loss_rate: one event has 40 % of the weight",))
    page = render(StudyRecord(STUDY, [{}]), cells)
    assert f"<strong>{NAMES[1]}</strong>: weights degenerate: loss_rate" in page


def test_kinds_of_intervals_are_named() -> None:
    assert words.interval(Estimate(0.3, 0.2, 0.4), words.number) == "0.2 – 0.4"
    assert words.interval(Estimate(0.0, 0.0, 0.03, one_sided=True), words.number) == "at most 0.03, one-sided"
    degenerate = Estimate(0.001, 0.0, 0.03, degenerate=True)
    assert words.interval(degenerate, words.number) == "0 – 0.03, weights degenerate"


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
    assert "Korn-Graubard" in page
    assert "at most 0.03, one-sided" in page
    assert "Trial k of all settings sees the same failures" in page
    assert "exponential, mean 30d" in page
    assert "<code>unclean.recovery.strategy</code> of the cluster" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_page_says_what_is_assumed_and_which_parameters_all_cells_share() -> None:
    """A swept preset changes other parameters too, which are then not the same in all cells."""
    raw = {"name": "s", "trials": 1, "base": {"brokers": 3}, "sweep": {"preset": ["none", "weekly-crash"]}}
    study = study_from(raw, "s.yaml")
    page = render(StudyRecord(study, [{"isray": "0.1.0"}]), cells_of([1, 0], study))
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
