"""Half-open intervals of whole numbers."""

from __future__ import annotations

from collections.abc import Iterable


def merged(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts (first, stop) in order, those that touch or overlap as one."""
    found: list[tuple[int, int]] = []
    for first, stop in sorted(parts):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((first, stop))
    return found
