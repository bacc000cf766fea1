"""Numbers, times and names in words; what the charts write is the same."""

from __future__ import annotations

import re

import pytest
import vl_convert

from experiments.studies.estimation.moments import Estimate
from experiments.studies.report import words
from experiments.studies.report.charts.theme import written
from experiments.studies.report.words import PER_PARTITION, TIMES_TEN, Rate

NUMBERS = [
    (0, "0"), (0.505, "0.505"), (12345.6, "12,346"), (0.00012, "0.00012"), (2e-5, f"2{TIMES_TEN}⁻⁵"),
    (1.234e-13, f"1.23{TIMES_TEN}⁻¹³"), (12.04, "12"), (999.4, "999"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert words.number(value) == text


def test_charts_write_numbers_as_the_text_does() -> None:
    spec = {
        "data": {"values": [{"value": value, "row": index} for index, (value, _) in enumerate(NUMBERS)]},
        "transform": [{"calculate": written("datum.value"), "as": "text"}],
        "mark": "text",
        "encoding": {"text": {"field": "text"}, "y": {"field": "row", "type": "ordinal", "axis": None}},
    }
    assert re.findall(r">([^<>]+)</text>", vl_convert.vegalite_to_svg(spec)) == [text for _, text in NUMBERS]


def test_kinds_of_intervals_are_named() -> None:
    assert words.interval(Estimate(0.3, 0.2, 0.4), words.number) == "0.2 – 0.4"
    assert words.interval(Estimate(0.0, 0.0, 0.03, one_sided=True), words.number) == "at most 0.03, one-sided"
    assert words.bound(Estimate(0.0, 0.0, 0.03, one_sided=True), words.number) == "none seen, at most 0.03"
    degenerate = Estimate(0.001, 0.0, 0.03, degenerate=True)
    assert words.bound(degenerate, words.number) == "weights degenerate, at most 0.03"
    assert words.interval(degenerate, words.number) == "0 – 0.03, weights degenerate"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 min"), (1e-12, "<1 ms"), (1e-8, "315 ms"), (1e-5, "5.26 min"), (1e-3, "8.76 h"), (0.1, "36.5 d")],
)
def test_fractions_are_shown_as_time_per_year(fraction: float, text: str) -> None:
    assert words.minutes(fraction) == text


@pytest.mark.parametrize(
    ("numbers", "signed", "texts"),
    [
        ((1e-3, 9e-5, 2e-3), False, ("8.76 h", "0.788 to 17.5 h")),
        ((0.0, -1e-3, 1e-4), True, ("±0 h", "−8.76 to +0.876 h")),
        ((1e-9, -4e-6, 5e-6), True, ("+0.000526 min", "−2.1 to +2.63 min")),
        ((1e-12, 1e-13, 1e-11), False, ("<1 ms", "")),
        ((0.0, 0.0, 0.0), True, ("±0 min", "±0 to ±0 min")),
    ],
)
def test_a_share_of_time_and_its_limits_have_one_unit(
    numbers: tuple[float, float, float], signed: bool, texts: tuple[str, str]
) -> None:
    assert words.times(*numbers, signed=signed) == texts
    value = Estimate(*numbers)
    assert signed or not texts[1] or words.time_interval(value) == texts[1].replace(" to ", " – ")


def test_durations_are_shown_in_the_largest_unit_that_fits() -> None:
    assert [words.milliseconds(value) for value in (None, 0, 9_000.0, 5.4e6)] == ["–", "0 ms", "9 s", "1.5 h"]


def test_sentences_are_for_one_partition() -> None:
    sentence = ("from ", Rate(0.5), " by ", Rate(-0.1, signed=True), " ", PER_PARTITION)
    assert words.plain(sentence) == "from 0.5 by −0.1 per partition-year"


def test_cell_names_follow_the_labels_of_the_swept_parameters() -> None:
    assert words.cell_name({}) == "the one setting"
    swept = {"broker_mttf": {"dist": "weibull", "mean": "9d", "shape": 0.7}, "acks": "all"}
    assert words.cell_name(swept) == "MTTF dist weibull, mean 9d, shape 0.7 · acks=all"


@pytest.mark.parametrize(
    ("unwritable", "shown"),
    [
        (0.0003, "99.97 %, 2.63 h a year"),
        (0.25, "75 %, 91.2 d a year"),
        (0.0, "100 %, 0 min a year"),
        (1.0, "0 %, 365 d a year"),
        (1e-6, "99.9999 %, 31.5 s a year"),
        (1e-10, "over 99.9999999 %, 3.15 ms a year"),
    ],
)
def test_shares_of_time_as_nines_and_hours(unwritable: float, shown: str) -> None:
    """8,760 hours a year: 0.0003 of them are 2.628."""
    assert words.nines(unwritable) == shown


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(1 / 52, "1 in 52 years"), (3.0, "3 a year"), (0.0, "none"), (1e-12, "less than 1 in a billion years")],
)
def test_rates_as_years(rate: float, shown: str) -> None:
    assert words.every(rate) == shown


def test_warnings_of_degenerate_weights_are_one_line() -> None:
    lines = ["weights degenerate: loss_rate: x", "weights degenerate: lost_records_per_year: y"]
    found = words.warnings({"a": [*lines, "precision out of reach"], "b": lines[:1], "c": []})
    assert found == [
        "weights degenerate, so that these have an upper limit and no estimate: a (2 numbers) and b (1 number)",
        "a: precision out of reach",
    ]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1 / 90, 1 / 31, "1 in 31 to 90 years"),
        (0.25, 2.5, "0.25 to 2.5 a year"),
        (0.0, 1 / 40, "at most 1 in 40 years"),
        (0.0, 2.5, "at most 2.5 a year"),
    ],
)
def test_limits_of_a_rate_have_one_notation(low: float, high: float, text: str) -> None:
    assert words.every_between(low, high) == text
