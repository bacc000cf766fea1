"""Seeds of tests, of which `make test-fast` takes the first few alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def seeds(numbers: Sequence[int], fast: int) -> list[object]:
    """All of them as parameters; those behind the first `fast` are marked slow."""
    return [*numbers[:fast], *(pytest.param(number, marks=pytest.mark.slow) for number in numbers[fast:])]
