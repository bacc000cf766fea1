"""Half-open intervals."""

from __future__ import annotations

from experiments.support.intervals import merged


def test_ranges_that_touch_are_joined() -> None:
    assert list(merged([(5, 7), (0, 2), (2, 3), (6, 9)])) == [(0, 3), (5, 9)]
