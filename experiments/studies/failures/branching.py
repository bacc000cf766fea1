"""A timeline that follows another one up to a given time, and is drawn with another seed from there.

Splitting continues a path several times from the same state. The simulated cluster cannot be copied, so a path is
repeated from its beginning with the same random numbers up to the time of the branch, and with others afterwards. The
state of the failure model at that time is kept, and its future is drawn given that state: the remaining time to failure
of a broker that is up given its age, the remaining time to repair given how long it has been down, the next event of a
Poisson process without memory. What is scheduled (rolling restarts, recorded failures, the repairs and later outages of
shared events that have struck) stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import NormalDist

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import OutageKind
from experiments.studies.failures.shared import shared_outages
from experiments.studies.failures.sources import Branch, Outage
from experiments.studies.failures.timeline import DrawnTimeline, Event, history_ms
from protocol.ids import NodeId


class BranchingTimeline(DrawnTimeline):
    """The timeline of `seed` with branches, in the order of their times."""

    def __init__(self, params: CellParameters, seed: int, branches: Sequence[Branch], begins_ms: int = 0) -> None:
        self._branches = list(branches)
        self._since_ms = [begins_ms] * params.brokers
        self._own_repair = [False] * params.brokers
        outages = shared_outages(params, seed, begins_ms - history_ms(params), branches)
        super().__init__(params, seed, begins_ms, outages)

    def _advance(self) -> Event | None:
        while self._branches and (self._upcoming_ms() or 0) > self._branches[0].at_ms:
            self._begin_branch(self._branches.pop(0))
        return super()._advance()

    def _begin_branch(self, branch: Branch) -> None:
        """Redraws the remaining lifetimes and own repairs, given what has passed of them."""
        self._seed_streams(branch.seed)
        for broker, since_ms in enumerate(self._since_ms):
            passed_ms = branch.at_ms - since_ms
            if not self._up[broker]:
                if self._own_repair[broker]:
                    repair_ms = longer_than_ms(self._params.broker_mttr, passed_ms, self._repairs[broker])
                    self._schedule_start(broker, since_ms + repair_ms)
            elif self._mttf is not None:
                life_ms = longer_than_ms(self._mttf, passed_ms, self._lifetimes[broker])
                self._push(since_ms + life_ms, broker)

    def _fail(self, time_ms: int, broker: NodeId, kind: OutageKind, up_ms: int, cause: str) -> Event:
        self._since_ms[broker], self._own_repair[broker] = time_ms, cause == "broker"
        return super()._fail(time_ms, broker, kind, up_ms, cause)

    def _strike_down(self, outage: Outage) -> Event | None:
        if outage.holds:
            self._own_repair[outage.broker] = False
        return super()._strike_down(outage)

    def _schedule_failure(self, broker: NodeId, up_ms: int) -> None:
        self._since_ms[broker] = up_ms
        super()._schedule_failure(broker, up_ms)


def longer_than_ms(distribution: Distribution, passed_ms: int, random: Random) -> int:
    """A draw from the distribution given that it exceeds `passed_ms`, in whole milliseconds, at least one more."""
    mean_ms, shape = distribution.mean_ms, distribution.shape or 1.0
    if distribution.dist == "constant" or passed_ms <= 0:
        return max(passed_ms + 1, distribution.sample_ms(random))
    if distribution.dist == "lognormal":
        location = math.log(mean_ms) - shape * shape / 2.0
        normal = NormalDist()
        share = normal.cdf((location - math.log(passed_ms)) / shape) * (1.0 - random.random())
        drawn = math.exp(location - shape * normal.inv_cdf(share)) if share > 0.0 else float(passed_ms)
    else:
        scale = mean_ms / math.gamma(1.0 + 1.0 / shape)
        drawn = scale * ((passed_ms / scale) ** shape + random.expovariate(1.0)) ** (1.0 / shape)
    return max(passed_ms + 1, round(drawn))
