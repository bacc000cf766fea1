"""Which cells may lose least, and which one to recommend, with the error of selecting taken into account.

The cell with the lowest estimate is likely to have been lucky, the more cells there are the luckier. So the study keeps
every cell that may be the best: subset selection (Gupta, Technometrics 7, 1965; with common random numbers: Nelson,
Swann, Goldsman and Song, Operations Research 49, 2001). A cell is eliminated if its loss rate is above that of the cell
with the lowest estimate by a lower confidence limit, at one-sided 1 - alpha / (k - 1) of k cells, of the difference
from pairs. By Bonferroni's inequality the best cell is kept with probability 1 - alpha, whichever cell has the lowest
estimate.

Among those kept, the one with the highest availability is recommended. It is chosen by the data, so its comparisons
with the other cells are simultaneous over all k (k - 1) / 2 pairs of cells, each at 1 - alpha / (k (k - 1) / 2): they
hold together with 95 % confidence, whichever cell is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.studies.estimation.moments import ALPHA

LOSS_RATE = "loss_rate"


def unavailability(ratios: Mapping[str, float]) -> float:
    """A lower bound of the share of time in which acks=all writes fail, by the names of the metrics: the larger of the
    time without a leader that answers and the time with fewer than min ISR replicas in sync."""
    return max(ratios["offline_fraction"] + ratios["stall_fraction"], ratios["reject_fraction"])


def least_losing(cells: Sequence[Mapping[str, float]]) -> int:
    """The index of the cell with the lowest loss rate; of several, the most available one."""
    return min(range(len(cells)), key=lambda index: (cells[index][LOSS_RATE], unavailability(cells[index])))


def most_available(cells: Sequence[Mapping[str, float]], among: Sequence[int]) -> int:
    """The index of the cell with the highest availability; of several, the one with the lowest loss rate."""
    return min(among, key=lambda index: (unavailability(cells[index]), cells[index][LOSS_RATE]))


def screening_alpha(cells: int) -> float:
    """Two-sided alpha of a comparison with the cell of the lowest estimate, of which only the lower limit is used."""
    return 2.0 * ALPHA / max(1, cells - 1)


def simultaneous_alpha(cells: int) -> float:
    """Two-sided alpha of a comparison that holds together with those of all pairs of cells."""
    return ALPHA / max(1, cells * (cells - 1) // 2)
