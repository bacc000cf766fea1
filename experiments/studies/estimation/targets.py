"""Whether a setting meets the targets of its study, and what it would take to say so.

A target bounds a number from above: incidents a year, or the share of time that is not writable. It is *met* if the
upper limit of that number is not above it, *missed* if the lower limit is above it, otherwise *not shown*.

*Confidence.* With k statements (the study's cells times its targets) each limit is one-sided at 1 - 0.05 / k. A
statement can be wrong in one direction only: where the true number is within the target, `missed` is wrong, which the
lower limit alone decides; where it is not, `met` is, by the upper limit alone. So by Bonferroni's inequality all
statements of a study hold together with 95 % confidence, and whatever is chosen by them (the cheapest setting that
meets all) is corrected for the choice.

*The cheapest* of the settings that meet all targets has the fewest replicas. Of several with as many, which cost the
same disks, it is the one that acknowledges with the most copies, since it is writable for long enough; of these the one
with the least estimated time that writes fail, then the first in the file. The estimate decides which of the settings
that are good enough is named, not that it is.

*What it takes.* Limits approach an estimate as 1 / sqrt(trials), so with the estimate x, its limit u and the target t
about ((u - x) / (t - x))^2 times the trials would show it, if x is right. Where nothing was seen the bound falls as
1 / exposure: -ln(0.05 / k) / t years.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from experiments.studies.design.model import CellParameters
from experiments.studies.design.targets import INCIDENTS, WRITABLE, Targets, write_incidents, write_writable
from experiments.studies.estimation.intervals import limits
from experiments.studies.estimation.moments import ALPHA, Sums, degeneracy
from experiments.studies.trace.metrics import ACKNOWLEDGED_LOSS_RATE, BY_NAME, UNWRITABLE, Metric
from experiments.studies.trace.metrics import INCIDENTS as INCIDENTS_OF_CLUSTER

Answer = Literal["met", "missed", "not shown"]
MOST_TRIALS = 1e12


@dataclass(frozen=True, slots=True)
class Growth:
    """How far one cause of failure may grow until the target is not shown to be met any more. `factor`: how many times
    as often; `is_limit`: whether the target fails beyond it, or the trials say nothing beyond it."""

    cause: str
    factor: Annotated[float, Field(ge=1.0)]
    is_limit: bool


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """One target of one cell. `value`: as in the study file. `limit`: the largest number allowed, incidents a year or
    the share of time that is not writable; `estimate`, `low`, `high`: of that number, each limit one-sided at `level`,
    so that all of the study hold together. `trials`, `cluster_years`: about how many of this cell would show that the
    target is met, or missed; None where that is shown, or nothing follows. `growth`: where it is met, by cause, the
    tightest first."""

    name: str
    value: str
    verdict: Answer
    limit: float
    estimate: float
    low: float
    high: float
    level: float
    trials: int | None = None
    cluster_years: float | None = None
    growth: tuple[Growth, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What a target is about: `factor` times a metric is at most `limit`."""

    name: str
    value: str
    metric: Metric
    factor: float
    limit: float


def measured(targets: Targets | None, params: CellParameters) -> list[Measured]:
    """The metrics that answer a cell's targets: the losses of all partitions of its cluster a year, whatever acks is,
    of a whole cluster its incidents; and the share of time in which a write fails, on average over partitions."""
    found = {} if targets is None else targets.limits()
    losses, unwritable = BY_NAME[ACKNOWLEDGED_LOSS_RATE], BY_NAME[UNWRITABLE]
    times = params.partitions
    if params.cluster is not None:
        losses, times = BY_NAME[INCIDENTS_OF_CLUSTER], 1
    return [
        Measured(name, write_incidents(limit), losses, times, limit)
        if name == INCIDENTS
        else Measured(WRITABLE, write_writable(limit), unwritable, 1.0, float(f"{1.0 - limit:.12g}"))
        for name, limit in found.items()
    ]


def one_sided(statements: int) -> float:
    """The alpha of each one-sided limit where so many statements hold together."""
    return ALPHA / max(1, statements)


def answer(asked: Measured, sums: Sums, sizes: Mapping[str, float], years: float, statements: int) -> TargetAnswer:
    """The answer for one cell. `years`: cluster-years that its trials observed."""
    alpha = one_sided(statements)
    low, high = (asked.factor * limit for limit in limits(asked.metric, sums, sizes, 2.0 * alpha))
    estimate = asked.factor * sums.ratio
    verdict: Answer = "met" if high <= asked.limit else "missed" if low > asked.limit else "not shown"
    times = None if verdict != "not shown" or degeneracy(sums) else _times(estimate, low, high, asked.limit)
    trials = (
        None if times is None or times * sums.trials > MOST_TRIALS else math.ceil(float(f"{times * sums.trials:.1e}"))
    )
    taken = None if trials is None else years * trials / sums.trials
    return TargetAnswer(asked.name, asked.value, verdict, asked.limit, estimate, low, high, 1.0 - alpha, trials, taken)


def _times(estimate: float, low: float, high: float, limit: float) -> float | None:
    """How many times as many trials would show whether the limit is kept; None if the estimate is the limit."""
    if estimate == 0.0:
        return high / limit
    if estimate == limit:
        return None
    reach = high - estimate if estimate < limit else estimate - low
    return (reach / (limit - estimate)) ** 2


def cheapest(
    answers: Sequence[Sequence[TargetAnswer]], costs: Sequence[tuple[int, int, float]], among: Sequence[int]
) -> int | None:
    """Which of the cells `among` is the cheapest that meets all of its targets. `costs`: replicas, less
    copies that an acknowledged record has (a negative number), the estimated share of time that writes fail."""
    meeting = [index for index in among if answers[index] and all(each.verdict == "met" for each in answers[index])]
    return min(meeting, key=lambda index: costs[index], default=None)
