"""The health of the weights of a biased sample.

With importance sampling or splitting a few trials may carry most of the total weight: then the variance over trials is
as unknown as the total, and an interval made of it is too narrow, without a sign of it in the interval. The signs are
in the weights (Owen, Monte Carlo theory, methods and examples, 2013, 9.3):

- Kish's effective sample size (sum w)^2 / sum w^2 of the events is below :data:`LEAST_EFFECTIVE_SAMPLE_SIZE`;
- one event has more than :data:`LARGEST_SHARE` of the weight;
- trials differ so much that their total is worth fewer independent events than that, (sum x)^2 / Var(sum x): events of
  one trial may be copies of each other, as the paths of splitting are;
- the mean weight of the exposure, which is 1 in expectation, is not within a factor :data:`MEAN_WEIGHT` of it.

An estimate with any of them is degenerate. Its interval is from 0 to an upper bound that does not rest on the weights
of its events: the bound of a rate of which nothing was seen in the effective exposure of the trials, if that is larger.
Plain sampling, with all weights 1, is never degenerate: its intervals are exact for few events.
"""

from __future__ import annotations

from experiments.studies.estimation.moments import Sums

LEAST_EFFECTIVE_SAMPLE_SIZE = 10.0
LARGEST_SHARE = 0.2
MEAN_WEIGHT = 2.0
_EQUAL = 1e-9


def is_weighted(sums: Sums) -> bool:
    """Whether any weight differs from 1."""
    return (
        abs(sums.exposure - sums.years) > _EQUAL * sums.years or abs(sums.weight - sums.events) > _EQUAL * sums.events
    )


def degeneracy(sums: Sums) -> str | None:
    """What is wrong with the weights, in words; None if nothing is."""
    if not is_weighted(sums):
        return None
    if sums.events and sums.effective_sample_size < LEAST_EFFECTIVE_SAMPLE_SIZE:
        return f"{sums.events} events are worth {sums.effective_sample_size:.1f} of equal weight"
    if sums.events and sums.largest_weight > LARGEST_SHARE * sums.weight:
        return f"one event has {100.0 * sums.largest_weight / sums.weight:.0f} % of the weight"
    if sums.value**2 < LEAST_EFFECTIVE_SAMPLE_SIZE * sums.variance:
        return f"{sums.trials} trials are worth {sums.value**2 / sums.variance:.1f} independent events"
    mean = sums.exposure / sums.years
    if not 1.0 / MEAN_WEIGHT <= mean <= MEAN_WEIGHT:
        return f"the mean weight of the exposure is {mean:.2g}, not 1"
    return None


def effective_years(sums: Sums) -> float:
    """The exposure that trials of equal weight would need to say as much as these: Kish's size of the trials' exposures
    times the mean length of a trial; in plain sampling the exposure itself."""
    if not is_weighted(sums) or sums.exposure_squares <= 0.0:
        return sums.years
    return sums.exposure**2 / sums.exposure_squares / sums.trials * sums.years
