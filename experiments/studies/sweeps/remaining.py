"""What is left of a sweep: the time of it all, and the cell that needs most, which is what a user waits for.

The time of a trial differs between cells by orders of magnitude, so that trials per second say little about the time
left. It is estimated from what the trials of each cell cost so far. With `precision` the number of trials is that of
the present round, so that more may follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.support.progress import duration_words


class Remaining(NamedTuple):
    """`left_s`: the time until the end, in seconds; None if no trial is measured. `slowest`: the cell that needs most
    of it, in words; empty where nothing is left."""

    left_s: float | None
    slowest: str


def remaining(cells: Sequence[tuple[str, int, int]], left_s: Sequence[float | None], workers: int) -> Remaining:
    """`cells`: each with its name, its complete trials and those that it needs. `left_s`: the time that one core needs
    for the rest of each. `workers`: how many trials run at a time."""
    known = [(left, cell) for left, cell in zip(left_s, cells, strict=True) if left]
    if any(left is None for left in left_s) or not known:
        return Remaining(None, "")
    longest, (name, trials, target) = max(known, key=lambda item: item[0])
    words = f"{trials} of {target}, {duration_words(longest)} of one core left"
    at_once = min(workers, sum(target - trials for _, trials, target in cells))
    return Remaining(sum(left for left, _ in known) / max(1, at_once), f"{name} ({words})")
