"""The report and the tables: what is said follows from the numbers, and the page stands alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

import pytest

from experiments.studies.loader import study_from
from experiments.studies.metrics import METRICS, cell_document
from experiments.studies.output import StudyRecord
from experiments.studies.report import words
from experiments.studies.report.plots import loss_plot
from experiments.studies.report.render import render

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


def document(index: int, losses: int, offline: float = 1e-4, refuses: float = 1e-4) -> dict[str, Any]:
    """A cell of 100 trials of one year: one loss of two records in each of the first `losses` trials."""
    sums: dict[str, Any] = {"trials": 100, "partition_years": 100.0, "loss_size_squares": losses * 4}
    values = {"losses": losses, "lost_records": 2 * losses, "offline": offline * 100, "refuses": refuses * 100}
    for column in {metric.column for metric in METRICS}:
        total = values.get(column, 0)
        size = {"lost_records": 2, "offline": offline, "refuses": refuses}.get(column, 1)
        sums |= {f"{column}_sum": total, f"{column}_squares": total * size}
    sums |= {"failover_p50_ms": 9_000.0, "failover_p99_ms": 90_000.0, "failover_max_ms": None}
    return cell_document(STUDY.cells[index], sums)


def documents(losses: list[int], **changes: list[float]) -> list[Mapping[str, Any]]:
    return [
        document(index, lost, **{name: values[index] for name, values in changes.items()})
        for index, lost in enumerate(losses)
    ]


def test_a_document_has_the_published_shape() -> None:
    cell = document(0, losses=50)
    assert {"generation", "min_insync_replicas", "trials", "partition_years", "failover_ms"} < set(cell)
    assert set(cell) - {"generation", "min_insync_replicas", "trials", "partition_years", "failover_ms"} == {
        "loss_rate",
        "lost_records_per_year",
        "offline_fraction",
        "reject_fraction",
        "stall_fraction",
        "unclean_recoveries_per_year",
        "high_watermark_regressions_per_year",
    }
    assert all(set(cell[metric.name]) == {"estimate", "ci_low", "ci_high"} for metric in METRICS)
    assert cell["loss_rate"]["estimate"] == 0.5
    assert cell["lost_records_per_year"]["estimate"] == 1.0
    assert cell["offline_fraction"]["estimate"] == pytest.approx(1e-4)


def test_the_answer_is_the_cell_that_loses_least() -> None:
    result = words.answer(NAMES, documents([90, 80, 70, 0]))
    assert (result.best, result.rivals) == (3, ())
    assert result.headline.startswith("Run kip-966 · min ISR 2: no acknowledged record lost")
    assert "kip-497 · min ISR 1" in result.sentences[1]


def test_among_cells_that_lose_alike_the_most_available_is_recommended() -> None:
    result = words.answer(NAMES, documents([90, 10, 80, 9], refuses=[0.0, 1e-4, 0.0, 1e-3]))
    assert (result.best, result.rivals) == (1, (3,))
    assert "not told apart from kip-966 · min ISR 2" in result.sentences[-1]


def test_when_nothing_can_be_told_apart_the_headline_says_so() -> None:
    assert "cannot tell" in words.answer(NAMES, documents([10, 11, 10, 9])).headline


def test_trade_offs_compare_every_other_cell_with_the_recommended_one() -> None:
    cells = documents([90, 80, 70, 10], offline=[0.0, 0.0, 0.0, 1e-3], refuses=[0.0, 1e-4, 1e-4, 1e-3])
    rows = words.trade_offs(NAMES, cells, words.answer(NAMES, cells))
    assert [row.name for row in rows] == [NAMES[2], NAMES[1], NAMES[0]]
    assert rows[0].losses == "+0.6 a year (× 7)"
    assert rows[0].offline == "−8.76 h"
    assert "availability" in rows[0].verdict


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.505, "0.505"), (12345.6, "12,346"), (0.00002, "0.00002"), (1e-9, "1.0e-09"), (12.04, "12")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 s"), (1e-8, "0.315 s"), (1e-5, "5.26 min"), (1e-3, "8.76 h"), (0.1, "36.5 d")],
)
def test_shares_of_time_read_as_time_per_year(fraction: float, text: str) -> None:
    assert words.minutes(fraction) == text


def test_lengths_of_time_have_their_natural_unit() -> None:
    assert [words.milliseconds(value) for value in (None, 0, 9_000.0, 5.4e6)] == ["–", "0 ms", "9 s", "1.5 h"]


def test_the_page_stands_alone_and_says_what_was_found() -> None:
    runs = [{"isray": "0.1.0", "ray": "2", "pyspark": "4", "python": "3", "git_revision": None}]
    page = render(StudyRecord(STUDY, runs), documents([90, 80, 70, 0]))
    assert page == render(StudyRecord(STUDY, runs), documents([90, 80, 70, 0]))
    assert not re.search(r"<script|@import|url\(http|src=|<link", page)
    assert page.count('role="img" aria-label="') == 2
    assert all(name in page for name in NAMES)
    assert "exact Poisson (Garwood)" in page
    assert "Wilson" in page
    assert "exponential, mean 30d" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("losses", [[0, 0, 0, 0], [90, 80, 70, 0]])
def test_a_cell_without_losses_is_drawn_as_a_limit(losses: list[int]) -> None:
    svg = loss_plot(NAMES, documents(losses), 3)
    assert svg.count("none seen") == losses.count(0)
    assert ET.fromstring(svg).tag.endswith("svg")
    assert not re.search(r"#0[1-7]0", svg)


def test_other_studies_name_their_cells_readably() -> None:
    assert words.cell_name({}) == "the one setting"
    swept = {"broker_mttf": {"dist": "weibull", "mean": "9d", "shape": 0.7}, "acks": "all"}
    assert words.cell_name(swept) == "MTTF dist weibull, mean 9d, shape 0.7 · acks=all"
