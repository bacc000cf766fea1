"""Elections that cut the log of a partition off, and the first of them that concerns a row."""

from __future__ import annotations

import numpy as np

from experiments.studies.pipeline.rows import Values


def first_at_or_below(offsets: Values, begin: Values, end: Values, limits: Values) -> Values:
    """For each limit, the first position from `begin` up to, not including, `end` at which the offset is at or below
    it; -1 without one. Each round tests the next position of all that are left."""
    found = np.full(len(limits), -1)
    left = np.flatnonzero(begin < end)
    position = begin[left]
    while len(left):
        hit = offsets[position] <= limits[left]
        found[left[hit]] = position[hit]
        position = position + 1
        open_ = ~hit & (position < end[left])
        left, position = left[open_], position[open_]
    return found
