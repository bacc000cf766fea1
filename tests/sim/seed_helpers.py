"""Parameters of tests, of which a quicker run takes the first few alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def some(values: Sequence[object], first: int) -> list[object]:
    """All of them as parameters; the `first` ones, and the others with the marker `proof`."""
    return [*values[:first], *(pytest.param(value, marks=pytest.mark.proof) for value in values[first:])]


def seeds(numbers: Sequence[int], fast: int) -> list[object]:
    """All of them as parameters; `make test-fast` takes the first `fast` ones."""
    return [*numbers[:fast], *(pytest.param(number, marks=pytest.mark.slow) for number in numbers[fast:])]
