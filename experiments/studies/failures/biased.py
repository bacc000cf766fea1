"""The biased timeline: failures that follow each other more often than the model says, with their likelihood ratio.

Importance sampling draws failures from another distribution P' than the model's P, and weights what follows with the
likelihood ratio dP/dP' of all that was drawn so far, which makes every weighted sum unbiased (Asmussen and Glynn,
Stochastic Simulation, 2007, chapter V). It needs failures without memory: while a set of brokers is up, each
*transition* i (one broker fails by itself, or a shared event ends several) comes at a constant rate l_i. Repair times
may have any distribution. Candidates are drawn anew at each change: a failure, a start, a regeneration.

**When.** In the regeneration state (all brokers up, nothing pending: `trials/importance.py`) the rates are the model's.
While a broker is down, the time R until the next start is known, since repair times are drawn at the failure. A failure
is *forced* before it (Lewis and Boehm, Nuclear Engineering and Design 77, 1984): with probability q there is one, at a
time T from its distribution under the model given T < R; otherwise there is none. With L the sum of the rates, F(t) =
1 - exp(-L t), m the mean time to repair and d the number of brokers down, q = `FORCED` R / (R + `SHORT` m / d), and the
likelihood ratio is

    F(R) / q                            once the failure has happened,
    exp(-L t) / (1 - q F(t) / F(R))     at t after the last change, while it has not.

These are bounded. If the rates were only increased to L', the ratio exp((L' - L) t) would have no second moment from
half the rate of repairs on.

**How long.** With probability `LONG` a repair time r is drawn from its length-biased distribution, whose density is
r / m times the model's: failures during a repair are as probable as it is long. Ratio: 1 / (1 - `LONG` + `LONG` r / m).

**Which** (balanced failure biasing: Shahabuddin, Management Science 40, 1994). Half of the probability goes to the
transitions by their rates; the other half to the causes equally, and within a cause to the transitions that may end a
broker of a most damaged partition, by their rates. Ratio: (l_i / L) / p'_i, at most 2.

**How.** Kinds of failure that lose data are drawn with probability `LOSING_FIRST` at least if the cycle begins with the
failure, and `LOSING_NEXT` otherwise. Ratio: p / p'.

The bias ends for the rest of a cycle as soon as all replicas of a partition have been down at once, or when the trial
says that what is measured has happened: more failures would only spread the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from random import Random
from typing import NamedTuple

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import OutageKind
from experiments.studies.failures.sources import Draws, Outage, PoissonSource, kinds_of, poisson_sources
from experiments.studies.failures.timeline import Event
from protocol.ids import NodeId

FORCED = 0.8
SHORT = 0.1
LONG = 0.7
LOSING_FIRST = 0.25
LOSING_NEXT = 0.6
NO_BROKER = -1
LOSING: frozenset[OutageKind] = frozenset({"lossy", "disk"})


class Transition(NamedTuple):
    """A Poisson process of `rate` events per ms: a failure of its own of the only one of `brokers`, or an event of
    `source`, which may strike all of them. `kinds`: the probabilities of the kinds of failure, drawn for each broker by
    itself."""

    cause: str
    rate: float
    brokers: tuple[NodeId, ...]
    kinds: Mapping[OutageKind, float]
    source: PoissonSource | None = None


def transitions_of(params: CellParameters) -> list[Transition]:
    """The transitions of a model without memory."""
    mttf, own = params.broker_mttf, kinds_of(params)
    brokers = range(params.brokers if mttf is not None else 0)
    rate = 0.0 if mttf is None else 1.0 / mttf.mean_ms
    found = [Transition("broker", rate, (broker,), own) for broker in brokers]
    for source in poisson_sources(params):
        found.append(Transition(source.name, source.rate_per_ms, source.brokers, source.kinds, source))
    return found


class _Change(NamedTuple):
    """The next change, at `time_ms`: a broker is started, or an event strikes. `outages` begin at once, `later` ones
    afterwards; a burst may strike nothing. `log_ratio`: of the interval that the change ends, and of the
    outages."""

    time_ms: int
    log_ratio: float
    start: NodeId = -1
    outages: tuple[Outage, ...] = ()
    later: tuple[Outage, ...] = ()

    @property
    def events(self) -> int:
        """How many events the change has."""
        return len(self.outages) or 1

    def event(self, index: int) -> Event:
        """One of its events."""
        if self.start >= 0:
            return Event(self.time_ms, self.start, "start")
        if not self.outages:
            return Event(self.time_ms, NO_BROKER, "strike")
        outage = self.outages[index]
        return Event(self.time_ms, outage.broker, outage.kind, outage.cause)


class BiasedTimeline:
    """A `Timeline` in importance sampling; it begins at time 0 in the regeneration state.

    `placement`: the brokers of each partition. `bias`: False draws from the model itself, with weight 1.
    """

    def __init__(
        self, params: CellParameters, seed: int, placement: Sequence[Sequence[NodeId]], bias: bool = True
    ) -> None:
        self._repair = params.broker_mttr
        self._transitions = transitions_of(params)
        self._draws = {found.cause: Draws(f"biased/{found.cause}", seed) for found in self._transitions}
        self._replicas = [frozenset(replicas) for replicas in sorted(set(map(tuple, placement)))]
        self._random = Random(f"{seed}/biased")
        self._may_bias = bias
        self._starts_ms: dict[NodeId, int] = {}
        self._later: list[Outage] = []
        self._begin_cycle(0)

    def _begin_cycle(self, at_ms: int) -> None:
        """The regeneration state from `at_ms` on: nothing drawn yet, weight 1."""
        self._log_weight = 0.0
        self._biased = self._may_bias
        self._changed_ms = at_ms
        self._until_ms = math.inf
        self._rate = 0.0
        self._forced = 0.0
        self._next: _Change | None = None
        self._returned = 0

    @property
    def all_up(self) -> bool:
        """Whether no broker is down and no outage has begun or is due, the event that was returned last apart."""
        return not self._starts_ms and not self._later and self._returned <= 1

    def next_event(self) -> Event | None:
        if self._next is None or self._returned == self._next.events:
            if self._next is not None:
                self._carry_out(self._next)
            self._next = self._draw()
            self._returned = 0
        if self._next is None:
            return None
        self._returned += 1
        return self._next.event(self._returned - 1)

    def log_weight(self, at_ms: int) -> float:
        upcoming = self._next
        if upcoming is None:
            return self._log_weight
        if at_ms >= upcoming.time_ms:
            return self._log_weight + upcoming.log_ratio
        return self._log_weight + self._log_ratio_without(at_ms - self._changed_ms)

    def regenerate(self, at_ms: int) -> bool:
        if not self.all_up:
            raise ValueError(f"no regeneration point at {at_ms} ms: starts {self._starts_ms}, outages {self._later}")
        self._begin_cycle(at_ms)
        return True

    def end_bias(self) -> None:
        """What is measured has happened: after the next change, failures are the model's until the regeneration."""
        self._biased = False

    # -- changes -------------------------------------------------------------------------------------------------------

    def _carry_out(self, change: _Change) -> None:
        """The change has happened."""
        self._log_weight += change.log_ratio
        self._changed_ms = change.time_ms
        if change.start >= 0:
            del self._starts_ms[change.start]
        for outage in change.outages:
            start_ms = self._starts_ms.get(outage.broker)
            if start_ms is None or outage.holds:
                self._starts_ms[outage.broker] = max(start_ms or 0, outage.up_ms, change.time_ms + 1)
        self._later = sorted([*(outage for outage in self._later if outage not in change.outages), *change.later])
        self._biased = self._biased and not self._ends_bias(self._starts_ms.keys())

    def _ends_bias(self, down: Set[NodeId]) -> bool:
        """Whether all replicas of a partition are down."""
        return any(replicas <= down for replicas in self._replicas)

    def _draw(self) -> _Change | None:
        """The next change: a failure, if one is drawn before the next start or outage that is known."""
        down = self._starts_ms.keys()
        alive = [found for found in self._transitions if found.source is not None or found.brokers[0] not in down]
        self._rate = sum(found.rate for found in alive)
        known = self._known()
        self._until_ms = math.inf if known is None else max(0, known.time_ms - self._changed_ms)
        self._forced = 0.0
        if self._biased and self._rate > 0.0 and 0.0 < self._until_ms < math.inf:
            self._forced = FORCED * self._until_ms / (self._until_ms + SHORT * self._repair.mean_ms / max(1, len(down)))
        after_ms = self._failure_after_ms()
        if after_ms is not None:
            return self._failure(alive, self._changed_ms + math.ceil(after_ms))
        return None if known is None else known._replace(log_ratio=self._log_ratio_without(self._until_ms))

    def _known(self) -> _Change | None:
        """The next start or outage that is known."""
        start_ms, broker = min(((at_ms, broker) for broker, at_ms in self._starts_ms.items()), default=(math.inf, -1))
        if self._later and self._later[0].down_ms <= start_ms:
            return _Change(self._later[0].down_ms, 0.0, outages=(self._later[0],))
        return None if broker < 0 else _Change(int(start_ms), 0.0, start=broker)

    def _failure_after_ms(self) -> float | None:
        """The time from the last change to the next failure; None if there is none within `_until_ms`."""
        if self._rate <= 0.0:
            return None
        if not self._forced:
            after_ms = self._random.expovariate(self._rate)
            return after_ms if after_ms < self._until_ms else None
        if self._random.random() >= self._forced:
            return None
        share = self._random.random() * -math.expm1(-self._rate * self._until_ms)
        return -math.log1p(-share) / self._rate

    def _log_ratio_without(self, after_ms: float) -> float:
        """The logarithm of the likelihood ratio of no failure within `after_ms` of the last change."""
        if not self._forced:
            return 0.0
        share = math.expm1(-self._rate * after_ms) / math.expm1(-self._rate * self._until_ms)
        return -self._rate * after_ms - math.log1p(-self._forced * share)

    def _failure(self, alive: list[Transition], at_ms: int) -> _Change:
        """The failure at that time: of which brokers, how, and for how long."""
        log_ratio = math.log(-math.expm1(-self._rate * self._until_ms) / self._forced) if self._forced else 0.0
        chances = self._chances(alive) if self._biased else [found.rate / self._rate for found in alive]
        (index,) = self._random.choices(range(len(alive)), chances)
        found = alive[index]
        log_ratio += math.log(found.rate / self._rate / chances[index])
        outages, strike_log_ratio = self._strike(found, at_ms)
        begun = tuple(outage for outage in outages if outage.down_ms <= at_ms)
        later = tuple(outage for outage in outages if outage.down_ms > at_ms)
        return _Change(at_ms, log_ratio + strike_log_ratio, outages=begun, later=later)

    def _strike(self, found: Transition, at_ms: int) -> tuple[list[Outage], float]:
        """The outages of an event, and the logarithm of the likelihood ratio of their kinds and lengths."""
        if found.source is None:
            repair_ms, log_ratio = self._draw_repair(found.brokers[0])
            outages = [Outage(at_ms, at_ms + repair_ms, found.brokers[0], "unclean", "broker")]
        else:
            outages, log_ratio = list(found.source.strike(at_ms, self._draws[found.cause])), 0.0
        is_first = not self._starts_ms and len(outages) == 1
        least = 0.0 if not self._biased else LOSING_FIRST if is_first else LOSING_NEXT
        for index, outage in enumerate(outages):
            kind, kind_log_ratio = draw_kind(found.kinds, least, self._random)
            outages[index] = outage._replace(kind=kind)
            log_ratio += kind_log_ratio
        return outages, log_ratio

    def _draw_repair(self, broker: NodeId) -> tuple[int, float]:
        """A time to repair in ms, and the logarithm of its likelihood ratio."""
        if not self._biased or self._ends_bias(self._starts_ms.keys() | {broker}):
            return self._repair.sample_ms(self._random), 0.0
        is_long = self._random.random() < LONG
        repair_ms = (length_biased_ms if is_long else Distribution.sample_ms)(self._repair, self._random)
        return repair_ms, -math.log(1.0 - LONG + LONG * repair_ms / self._repair.mean_ms)

    def _chances(self, alive: list[Transition]) -> list[float]:
        """The probabilities of the transitions under the bias; they add up to 1."""
        down = self._starts_ms.keys()
        damage = {replicas: len(replicas & down) for replicas in self._replicas}
        most = max(damage.values(), default=0)
        aims = {broker for replicas, number in damage.items() if number == most for broker in replicas - down}
        aimed = [found.rate if aims.intersection(found.brokers) else 0.0 for found in alive]
        per_cause: dict[str, float] = {}
        for found, rate in zip(alive, aimed, strict=True):
            per_cause[found.cause] = per_cause.get(found.cause, 0.0) + rate
        causes = sum(rate > 0.0 for rate in per_cause.values())
        if not causes:
            return [found.rate / self._rate for found in alive]
        balanced = [
            rate / per_cause[found.cause] / causes if rate else 0.0 for found, rate in zip(alive, aimed, strict=True)
        ]
        return [(found.rate / self._rate + share) / 2.0 for found, share in zip(alive, balanced, strict=True)]


def draw_kind(kinds: Mapping[OutageKind, float], least: float, random: Random) -> tuple[OutageKind, float]:
    """A kind of failure, and the logarithm of its likelihood ratio: those that lose data have probability `least` at
    least, if they are possible at all."""
    losing = sum(chance for kind, chance in kinds.items() if kind in LOSING)
    factors = dict.fromkeys(kinds, 1.0)
    if 0.0 < losing < least:
        factors = {kind: least / losing if kind in LOSING else (1.0 - least) / (1.0 - losing) for kind in kinds}
    (kind,) = random.choices(list(kinds), [chance * factors[kind] for kind, chance in kinds.items()])
    return kind, -math.log(factors[kind])


def length_biased_ms(distribution: Distribution, random: Random) -> int:
    """A draw, in whole milliseconds, from the distribution with density x f(x) / mean, f the density of `distribution`.

    Source: Patil and Rao, Biometrics 34 (1978). Of an exponential it is the sum of two; the log-normal's location grows
    by sigma^2; with the Weibull's k, (x / scale)^k has a gamma distribution of shape 1 + 1/k.
    """
    mean_ms, shape = distribution.mean_ms, distribution.shape or 1.0
    if distribution.dist == "constant":
        return mean_ms
    if distribution.dist == "lognormal":
        drawn = random.lognormvariate(math.log(mean_ms) + shape * shape / 2.0, shape)
    else:
        gamma = random.gammavariate(1.0 + 1.0 / shape, 1.0)
        drawn = mean_ms / math.gamma(1.0 + 1.0 / shape) * gamma ** (1.0 / shape)
    return max(1, round(drawn))
