"""Durations as users write them, and their milliseconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.support.durations import UNITS_MS, format_duration, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("250ms", 250),
        ("0ms", 0),
        ("30s", 30_000),
        ("1.5s", 1_500),
        ("15m", 900_000),
        ("6h", 21_600_000),
        ("30d", 2_592_000_000),
        ("1y", 31_536_000_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "-1s", "1 s", "1s ", "1s\n", "1S", "1.s", ".5s", "1e3s", "1w", "1m30s", 5, 1.5, None, True, []],
)
def test_a_malformed_duration_is_refused_with_the_allowed_form(text: object) -> None:
    with pytest.raises(ValueError, match=r"allowed: a number and a unit \(ms, s, m, h, d, y\)"):
        parse_duration_ms(text)


@given(st.integers(0, 10**15))
def test_formatting_and_parsing_are_inverse(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("duration_ms", "expected"),
    [(0, "0ms"), (999, "999ms"), (90_000, "90s"), (3_600_000, "1h"), (UNITS_MS["y"], "1y"), (UNITS_MS["d"] * 7, "7d")],
)
def test_formatting_uses_the_largest_exact_unit(duration_ms: int, expected: str) -> None:
    assert format_duration(duration_ms) == expected
