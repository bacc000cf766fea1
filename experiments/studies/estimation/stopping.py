"""When a cell with `precision` has enough trials, and how many it would need.

A cell looks at its trials 0, 1, ..., n - 1 and stops as soon as the half-width of the 95 % interval of the metric is at
most `relative_error` times its estimate. An estimate that is too high by chance looks precise and stops early, one that
is too low runs on and is corrected: a bias of about 1/c at c effective events (1 / squared coefficient of variation of
the estimate), as in inverse sampling (Haldane, Biometrika 33, 1945). So a cell has at least
:data:`LEAST_EFFECTIVE_EVENTS` before it stops. Widely spaced looks would add a bias of the order of 1 / sqrt(c): after
the first look, the next one is at :data:`APPROACH` of the trials that the precision seems to need, then close by.

The decision is a function of the first trials by number, whatever the number of workers and the interruptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from experiments.studies.design.study import Precision
from experiments.studies.estimation.controlled import (
    Controls,
    coefficients,
    controlled,
    controlled_values,
    folded,
    total_of,
)
from experiments.studies.estimation.intervals import fraction_limits, rate_limits
from experiments.studies.estimation.moments import Estimate, Numbers, Sums
from experiments.studies.trace.metrics import FRACTIONS

FIRST_LOOK = 64
LEAST_EFFECTIVE_EVENTS = 150
APPROACH = 0.8
SMALLEST_STEP = 1.1
LARGEST_STEP = 4.0
SEEN_NOTHING_STEP = 2.0


@dataclass(frozen=True, slots=True)
class LeadingTrials:
    """What the trials 0, 1, ... of a cell measured, up to the first that is missing: per trial the value of the metric
    that decides, the exposure (both weighted, times in partition-years), and the number of events or episodes. `size`:
    the assumed size of one (`assumed_sizes`). `is_weighted`: of an estimator for rare events. `controls`: those of
    the trials, where they have any."""

    values: Numbers
    exposures: Numbers
    events: Numbers
    size: float
    is_weighted: bool = False
    controls: Controls | None = None

    def estimate(self, metric: str, trials: int) -> tuple[Estimate, float]:
        """The metric by the first `trials` trials, and its effective events; 0 where nothing was seen."""
        sums = self._sums(trials)
        limits = (fraction_limits if metric in FRACTIONS else rate_limits)(sums, self.size)
        spread = max(sums.variance, sums.size_squares if metric not in FRACTIONS else 0.0)
        effective = sums.value**2 / spread if spread > 0.0 else float(sums.events)
        return Estimate(sums.ratio, *limits), effective

    def _sums(self, trials: int) -> Sums:
        """What the first `trials` trials add up to, with their controls."""
        values, exposures, events = (each[:trials] for each in (self.values, self.exposures, self.events))
        number = round(float(np.sum(events)))
        plain = Sums.of(values, exposures, number)
        sums = plain = plain.with_mean_weight(self.size) if self.is_weighted else plain
        if self.controls is not None:
            controls = self.controls.first(trials)
            folds = folded(values, exposures, events, controls)
            found = Sums.of(controlled_values(values, controls, coefficients(folds)), exposures, number)
            names = ("largest_weight", "size_squares", "largest_size")
            found = replace(found, **{name: getattr(plain, name) for name in names})
            sums = controlled(found, total_of(folds))
        return sums


def wanted_trials(precision: Precision, leading: LeadingTrials) -> int:
    """How many trials a cell needs by its leading trials: these if they suffice, or where it looks next. The squared
    half-width falls as 1 / trials; effective events grow with the trials."""
    look = min(FIRST_LOOK, precision.max_trials)
    while look < precision.max_trials and look <= len(leading.values):
        estimate, effective = leading.estimate(precision.metric, look)
        if is_precise(precision, estimate) and effective >= LEAST_EFFECTIVE_EVENTS:
            break
        step = SEEN_NOTHING_STEP
        if estimate.estimate > 0.0:
            by_width = (estimate.half_width / estimate.estimate / precision.relative_error) ** 2
            step = APPROACH * (look * max(by_width, LEAST_EFFECTIVE_EVENTS / effective)) / look
        look = min(precision.max_trials, math.ceil(look * min(LARGEST_STEP, max(SMALLEST_STEP, step))))
    return look


def is_precise(precision: Precision, estimate: Estimate) -> bool:
    """Whether the estimate meets the precision. An estimate of 0 never does."""
    return estimate.estimate > 0.0 and estimate.half_width <= precision.relative_error * estimate.estimate


def shortfall(precision: Precision, estimate: Estimate, trials: int) -> str | None:
    """One line on what precision is reached and how many trials would meet it; None if it is met."""
    if is_precise(precision, estimate):
        return None
    missed = f"precision out of reach: {precision.relative_error:g} of {precision.metric} asked"
    most = f"max_trials {precision.max_trials:,}"
    if estimate.estimate <= 0.0:
        return f"{missed}, nothing seen in {trials:,} trials ({most})"
    if estimate.degenerate:
        unknown = "how many trials are needed is not known"
        return f"{missed}, weights degenerate after {trials:,} trials ({most}); {unknown}"
    reached = estimate.half_width / estimate.estimate
    needed = math.ceil(float(f"{trials * (reached / precision.relative_error) ** 2:.1e}"))
    return f"{missed}, {reached:.2g} reached with {most}, about {needed:,} trials needed"
