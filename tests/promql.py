"""What queries of PromQL name: series and labels, for tests of dashboard and rules."""

from __future__ import annotations

import re

_SERIES = re.compile(r"\b(?:ray_\w+|cluster:\w+:\w+)")
_GROUPS = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def series_used(query: str) -> set[str]:
    """The names of the series that a query reads, recorded ones included."""
    return set(_SERIES.findall(query))


def labels_used(query: str) -> set[str]:
    """The labels by which a query aggregates or matches series."""
    return {label for group in _GROUPS.findall(query) for label in group.split(", ")}
