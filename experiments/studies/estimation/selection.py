"""Which cells of a group may be the best, which one to recommend if any, with the error of selecting in mind.

The cell with the lowest estimate is likely to have been lucky, the more cells there are the luckier. So the study keeps
every cell that may be the best: subset selection (Gupta, Technometrics 7, 1965; with common random numbers: Nelson,
Swann, Goldsman and Song, Operations Research 49, 2001). By Bonferroni's inequality the best cell is kept with
probability 1 - alpha, whichever cell has the lowest estimate. docs/statistics.md says when a cell is eliminated,
recommended or equivalent, and how comparisons hold simultaneously.

If several cells are kept availability must not decide instead: a small study keeps every cell, and the most available
one of these is the one that acknowledges with the fewest copies. It decides only among cells whose values are
equivalent within a margin that the study names, never among those that have the same events in all trials by structure
(`pairs.py`), which says nothing about other failures.

A cell whose weights degenerate (`moments.py`) is neither recommended nor eliminated, eliminates no other cell unless
all are like it, and gives no number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.moments import ALPHA
from experiments.studies.estimation.pairs import Comparison
from experiments.studies.trace.metrics import ACKNOWLEDGED_LOSS_RATE, UNWRITABLE

NEARLY_EQUAL = 1e-6
"""A difference below this part of its interval is the rounding of weights, not a difference."""
COUNTED_ACKS: Mapping[str, tuple[str, ...]] = {
    "loss_rate": ("all",),
    "lost_records_per_year": ("all",),
    "acks_1_loss_rate": ("1",),
    ACKNOWLEDGED_LOSS_RATE: ("all", "1"),
}
"""Metrics that count losses, and with which acks: with another one they have nothing to count."""


def is_candidate(params: CellParameters, objective: str) -> bool:
    """Whether a cell may be recommended. One of whose losses the objective counts none by definition is shown and never
    the best: with acks=1 `loss_rate` is 0, and with acks=0 nothing is acknowledged that could be lost."""
    return params.acks in COUNTED_ACKS.get(objective, (params.acks,))


def lowest(cells: Sequence[Mapping[str, float]], objective: str, among: Sequence[int], copies: Sequence[int]) -> int:
    """The index of the cell with the lowest estimate; of several, the one with the most `copies` (the least that an
    acknowledged record has), and of these the most available one: equal losses are no reason for fewer copies."""

    def rank(index: int) -> tuple[float, int, float]:
        return float(f"{cells[index][objective]:.9e}"), -copies[index], cells[index][UNWRITABLE]

    return min(among, key=rank)


def least_copies(params: CellParameters) -> int:
    """The copies that a record has at least when it is acknowledged."""
    return min(params.min_insync_replicas, params.replication_factor) if params.acks == "all" else int(params.acks)


def cost_of_copies(params: CellParameters) -> tuple[int, bool, int]:
    """What orders settings that are good enough: replicas, whether writes stop while one of them is down, and minus the
    copies that an acknowledged record has at least."""
    replicas, copies = params.replication_factor, least_copies(params)
    return replicas, copies == replicas, -copies


def most_available(cells: Sequence[Mapping[str, float]], among: Sequence[int]) -> int:
    """The index of the cell with the highest estimated availability."""
    return min(among, key=lambda index: cells[index][UNWRITABLE])


def are_equivalent(compared: Comparison, margin: float | None) -> bool:
    """Whether the interval of the ratio is within 1 / (1 + `margin`) and 1 + `margin`; not if degenerate."""
    ratio = compared.ratio
    if margin is None or ratio.ci_high is None or compared.degenerate:
        return False
    return 1.0 / (1.0 + margin) <= ratio.ci_low and ratio.ci_high <= 1.0 + margin


def is_surpassed(rival: Mapping[str, Comparison], objective: str, margin: float | None) -> bool:
    """Whether availability decides against a rival of the most available cell, which it is compared with."""
    found, availability = rival[objective], rival[UNWRITABLE]
    is_less_available = availability.difference.ci_low > 0.0 and not availability.degenerate
    return not found.identical and are_equivalent(found, margin) and is_less_available


def trials_to_distinguish(compared: Comparison, trials: int) -> int | None:
    """About how many trials would exclude 0 from the interval of a difference, if the estimates are right: limits
    approach an estimate as 1 / sqrt(trials). None if 0 is excluded already, the estimates are equal, or degenerate."""
    difference = compared.difference
    is_equal = difference.estimate <= NEARLY_EQUAL * (difference.ci_high - difference.ci_low)
    if compared.degenerate or compared.identical or difference.ci_low > 0.0 or is_equal:
        return None
    needed = trials * ((difference.estimate - difference.ci_low) / difference.estimate) ** 2
    return math.ceil(float(f"{needed:.1e}"))


def screening_alpha(cells: int) -> float:
    """Two-sided alpha of a comparison with the cell of the lowest estimate, of which only the lower limit is used."""
    return 2.0 * ALPHA / max(1, cells - 1)


def simultaneous_alpha(cells: int) -> float:
    """Two-sided alpha of a comparison that holds together with those of all pairs of cells."""
    return ALPHA / max(1, cells * (cells - 1) // 2)
