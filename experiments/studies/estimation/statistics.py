"""The confidence intervals of a study: which method belongs to which number, and under which assumptions it holds.

Trials are independent; events within one trial are not (a power event hits all partitions at once, one long repair
makes several outages). So the trial is the sampling unit of every estimate.

**Rates** (events, or lost records, per partition-year). For independent events the total is Poisson and the exact
interval is Garwood's (1936), from chi-square quantiles. Where events cluster, the variance of the trials' totals
exceeds their mean; the guard is quasi-Poisson: divide total and exposure by the dispersion, the ratio of variance to
mean, before taking Garwood's interval. The dispersion never counts as less than 1, so that the guard only widens. For
totals of sizes (lost records) it is at least sum(size^2) / sum(size) over the single losses, which makes the lower
limit that of Fay and Feuer (1997) for weighted sums of Poisson counts. With nothing seen the upper limit is the exact
one for events; for lost records it then assumes one record per event.

**Fractions of time** (offline, rejecting, stalled). The estimate is the mean over trials; the interval is Wilson's
(1927) on the effective sample size of Korn and Graubard (1998), p (1 - p) / Var(mean): the number of independent
observations of which the mean would have the same variance. Where all trials agree (usually: nothing was observed) it
is the number of trials, which is conservative: a trial observes a whole year.

Quantiles are scipy's, which has neither a Poisson rate interval with dispersion nor a Wilson interval for an effective
sample size that is no whole number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.stats import chi2, norm

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % confidence interval."""

    estimate: float
    ci_low: float
    ci_high: float

    @property
    def half_width(self) -> float:
        """Half the length of the interval, in the unit of the estimate."""
        return (self.ci_high - self.ci_low) / 2.0


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of one value per trial: the number of trials, the sum of the values, and the sum of their squares."""

    trials: int
    total: float
    squares: float

    @classmethod
    def of(cls, values: list[float] | list[int]) -> Moments:
        """The moments of one value per trial."""
        return cls(len(values), float(sum(values)), float(sum(value * value for value in values)))

    @property
    def mean(self) -> float:
        """The mean over trials; 0 without trials."""
        return self.total / self.trials if self.trials else 0.0

    @property
    def variance(self) -> float:
        """The sample variance over trials (n - 1); 0 with fewer than two trials."""
        if self.trials < 2:
            return 0.0
        return max(0.0, (self.squares - self.total * self.total / self.trials) / (self.trials - 1))


def garwood(total: float, exposure: float, dispersion: float = 1.0) -> Estimate:
    """The rate `total / exposure` with Garwood's interval, on `total / dispersion` events.

    `exposure` > 0, in the unit that the rate is per; `dispersion` >= 1. Source: Garwood, Biometrika 28 (1936).
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    events, scale = total / dispersion, dispersion / exposure
    low = chi2.ppf(tail, 2.0 * events) / 2.0 if events > 0 else 0.0
    high = chi2.ppf(1.0 - tail, 2.0 * events + 2.0) / 2.0
    return Estimate(total / exposure, float(low * scale), float(high * scale))


def dispersion(per_trial: Moments, sizes: float = 1.0) -> float:
    """The variance-to-mean ratio of the trials' totals, at least 1: by how much events cluster within trials.

    `sizes`: sum(size^2) / sum(size) of the single events; 1 where an event counts as one.
    """
    ratio = per_trial.variance / per_trial.mean if per_trial.mean > 0 else 1.0
    return max(1.0, sizes, ratio)


def rate(per_trial: Moments, exposure: float, sizes: float = 1.0) -> Estimate:
    """The rate of events per unit of `exposure` (the exposure of all trials together), with its interval."""
    return garwood(per_trial.total, exposure, dispersion(per_trial, sizes))


def wilson(proportion: float, n: float) -> Estimate:
    """Wilson's score interval for a proportion of `n` > 0 independent observations; `n` need not be whole.

    scipy has it for whole counts only (`binomtest(...).proportion_ci("wilson")`); there the two agree.
    Source: Wilson, JASA 22 (1927).
    """
    z = float(norm.ppf(0.5 + CONFIDENCE / 2.0))
    centre = (proportion + z * z / (2.0 * n)) / (1.0 + z * z / n)
    reach = z / (1.0 + z * z / n) * math.sqrt(proportion * (1.0 - proportion) / n + z * z / (4.0 * n * n))
    low = 0.0 if proportion <= 0.0 else max(0.0, centre - reach)
    high = 1.0 if proportion >= 1.0 else min(1.0, centre + reach)
    return Estimate(proportion, low, high)


def effective_sample_size(per_trial: Moments) -> float:
    """Korn and Graubard's p (1 - p) / Var(mean) for one fraction per trial; the number of trials if all agree."""
    proportion, variance_of_mean = per_trial.mean, per_trial.variance / per_trial.trials
    spread = proportion * (1.0 - proportion)
    return spread / variance_of_mean if variance_of_mean > 0.0 and spread > 0.0 else float(per_trial.trials)


def fraction(per_trial: Moments) -> Estimate:
    """The mean of one fraction of time per trial, with its interval."""
    proportion = min(1.0, max(0.0, per_trial.mean))
    return wilson(proportion, effective_sample_size(per_trial))
