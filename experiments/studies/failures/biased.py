"""The biased timeline: failures that follow each other more often than the model says, with their likelihood ratio.

Importance sampling draws failures from another distribution P' than the model's P, and weights what follows with the
likelihood ratio dP/dP' of all that was drawn so far, which makes every weighted sum unbiased (Asmussen and Glynn,
Stochastic Simulation, 2007, chapter V). It needs failures without memory: while a set of brokers is up, each
*transition* i (one broker fails by itself, or a shared event ends several) comes at a constant rate l_i. Repair times
may have any distribution. The next candidate is drawn at each change: a failure, a start, a regeneration.

**When.** In the regeneration state (all brokers up, nothing pending: `trials/importance.py`) the rates are the model's.
A broker is *absent* from its failure until its replicas have caught up (`absences.py`) and its former session has
expired. While one is, the time R until the next change is known: a start, the end of an absence, the outage of an event
that has struck. A failure is *forced* before the change (Lewis and Boehm, Nuclear Engineering and Design 77, 1984):
with probability q there is one, at a time T from its distribution under the model given T < R; otherwise there is none.
After a burst several changes follow each other, so q spreads the probability over the time H until no broker is absent:
q = `FORCED` R / (H + `SHORT` m / d), where m is the mean time to repair, d the number of brokers absent, and each part
of H counts `DAMAGED` times more or less than the present for each replica more or less that is absent of the most
damaged partition. Once the ISR is below min ISR, what was acknowledged can be lost only until it is flushed or written
back (`exposed_ms`): this time counts as one replica more, and its end is a change. While the brokers that are absent
hold no replica nothing is forced. With L the sum of the rates and
F(t) = 1 - exp(-L t), the likelihood ratio is

    F(R) / q                            once the failure has happened,
    exp(-L t) / (1 - q F(t) / F(R))     at t after the last change, while it has not.

These are bounded. If the rates were only increased to L', the ratio exp((L' - L) t) would have no second moment from
half the rate of repairs on.

**How long.** With probability `LONG` one of the k repair times r_j of an event, drawn at random, is drawn from its
length-biased distribution, whose density is r / m times the model's: failures during a repair are as probable as it is
long. Ratio: 1 / (1 - `LONG` + `LONG` (r_1 + ... + r_k) / (k m)). Without it F(R) / q would have the repairs' tail.

**Which** (balanced failure biasing: Shahabuddin, Management Science 40, 1994). Half of the probability goes to the
transitions by their rates; the other half to the groups of causes equally, and within a group to the transitions that
may end most of the brokers that are left of a most damaged partition, by their rates. Ratio: (l_i / L) / p'_i, at most
2. Bursts are one transition for each set of brokers that they may strike (:func:`split_bursts`).

**How.** Kinds of failure that lose data are drawn with probability `LOSING_FIRST` at least; with `LOSING_NEXT` where a
loss may follow: the broker holds a partition that is below min ISR then, unless the cycle begins with the event and it
leaves every partition a replica. Ratio: p / p'.

The bias ends for the rest of a cycle as soon as all replicas of a partition have been down at once, or when the trial
says that what is measured has happened: more failures would only spread the weights.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from random import Random

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.estimator import DAMAGED, FORCED, LOSING_NEXT, SHORT
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.absences import Absences
from experiments.studies.failures.sources import Draws, Outage, in_order
from experiments.studies.failures.timeline import Event
from experiments.studies.failures.transitions import Selection, Transitions
from protocol.ids import NodeId

LONG = 0.7
LOSING_FIRST = 0.25
NO_BROKER = -1
REJOIN_MS = 1_000
"""From the end of the catch-up until the replica is in the ISR: the next renewal of its fetch session, at most."""


class _Change:
    """The next change: a broker is started, an event strikes, or neither. `outages` begin at once, `later` ones after
    it; a burst may strike nothing. `log_ratio`: of the interval that the change ends, and of the outages. `events`:
    what the timeline returns."""

    __slots__ = ("events", "later", "log_ratio", "outages", "start", "time_ms")

    def __init__(
        self,
        time_ms: int,
        log_ratio: float,
        start: NodeId = NO_BROKER,
        outages: Sequence[Outage] = (),
        later: Sequence[Outage] = (),
    ) -> None:
        self.time_ms, self.log_ratio, self.start = time_ms, log_ratio, start
        self.outages, self.later = outages, later
        self.events: list[Event]
        if start >= 0:
            self.events = [Event(time_ms, start, "start")]
        elif outages:
            self.events = [Event(time_ms, outage.broker, outage.kind, outage.cause) for outage in outages]
        else:
            self.events = [Event(time_ms, NO_BROKER, "mark")]


class BiasedTimeline:
    """A `Timeline` in importance sampling; it begins at time 0 in the regeneration state.

    `placement`: the brokers of each partition. `bias`: False draws from the model itself, with weight 1.
    `transitions`: those of the cell, if they are known already; they are the same for all seeds.
    """

    def __init__(
        self,
        params: CellParameters,
        seed: int,
        placement: Sequence[Sequence[NodeId]],
        bias: bool = True,
        transitions: Transitions | None = None,
    ) -> None:
        self._repair, self._restart_ms = params.broker_mttr, params.restart_time_ms
        self._repair_ms = float(params.broker_mttr.mean_ms)
        self._session_ms, self._exposed_ms = params.detection_ms or 0, params.exposed_ms
        self._refusing = params.replication_factor - params.min_insync_replicas + 1
        self._rejoins = params.catch_up is not None or params.restart_time_ms > 0
        self._absences = Absences(params.catch_up)
        self._transitions = Transitions(params, placement) if transitions is None else transitions
        self._draws: dict[str, Draws] = {}
        self._random, self._seed, self._cycle = Random(), seed, 0
        self._may_bias = bias
        self._starts_ms: dict[NodeId, int] = {}
        self._ends_ms: dict[NodeId, int] = {}
        self._expired_ms: dict[NodeId, int] = {}
        self._down = self._absent = 0
        """Sets of brokers, bit b for broker b: the keys of `_starts_ms` and of `_ends_ms`."""
        self._later: list[Outage] = []
        self._begin_cycle(0)

    def _begin_cycle(self, at_ms: int) -> None:
        """The regeneration state from `at_ms` on: nothing drawn yet, weight 1. Each cycle has random streams of its
        own, so that cycle k of a seed has the same failures in all that runs through it, whatever came before."""
        self._random.seed(f"{self._seed}/biased/{self._cycle}")
        self._draws.clear()
        self._cycle += 1
        self._biased = self._may_bias
        self._changed_ms = self._exposed_until_ms = at_ms
        self._log_weight, self._rate, self._forced = 0.0, 0.0, 0.0
        self._until_ms = math.inf
        self._next: _Change | None = None
        self._returned = 0

    @property
    def all_up(self) -> bool:
        """Whether no broker is absent and no outage has begun or is due, the event that was returned last apart."""
        return not self._absent and not self._later and self._returned <= 1

    def next_event(self) -> Event | None:
        self.carry_out()
        upcoming = self._next
        if upcoming is None:
            upcoming = self._next = self._draw()
        if upcoming is None:
            return None
        self._returned += 1
        return upcoming.events[self._returned - 1]

    def struck(self) -> Sequence[NodeId]:
        return [] if self._next is None else [each.broker for each in self._next.events]

    def carry_out(self) -> None:
        """What the events that were returned bring about, once they are all those of one change. `next_event` begins
        with it; `all_up` may be asked in between, for a regeneration needs no further event."""
        upcoming = self._next
        if upcoming is not None and self._returned == len(upcoming.events):
            self._carry_out(upcoming)
            self._next, self._returned = None, 0

    def log_weight(self, at_ms: int) -> float:
        upcoming = self._next
        if upcoming is None:
            return self._log_weight
        if at_ms >= upcoming.time_ms:
            return self._log_weight + upcoming.log_ratio
        return self._log_weight + self._log_ratio_without(float(at_ms - self._changed_ms))

    def regenerate(self, at_ms: int) -> bool:
        if not self.all_up:
            raise ValueError(f"no regeneration point at {at_ms} ms: absences {self._ends_ms}, outages {self._later}")
        self._begin_cycle(at_ms)
        return True

    def end_bias(self) -> None:
        """What is measured has happened: after the next change, failures are the model's until the regeneration."""
        self._biased = False

    def _carry_out(self, change: _Change) -> None:
        now_ms, start = change.time_ms, change.start
        self._log_weight += change.log_ratio
        self._changed_ms = now_ms
        if start >= 0:
            del self._starts_ms[start]
            self._down &= ~(1 << start)
            self._ends_ms[start] = self._rejoined_ms(start, self._absences.start(start, now_ms + self._restart_ms))
        for outage in change.outages:
            self._begin_outage(now_ms, outage)
        if self._later or change.later:
            later = [*(each for each in self._later if each not in change.outages), *change.later]
            self._later = sorted(later, key=in_order)
        for broker, end_ms in list(self._ends_ms.items()):
            if end_ms <= now_ms:
                del self._ends_ms[broker]
                self._absent &= ~(1 << broker)
        damage = self._transitions.damage(self._absent)
        if change.outages and math.isfinite(self._exposed_ms) and damage >= self._refusing:
            self._exposed_until_ms = now_ms + math.ceil(self._exposed_ms)
        self._biased = self._biased and not self._transitions.is_all(damage)

    def _begin_outage(self, at_ms: int, outage: Outage) -> None:
        """The broker is down, and absent until it has caught up."""
        broker = outage.broker
        start_ms = self._starts_ms.get(broker)
        if start_ms is None or outage.holds:
            start_ms = self._starts_ms[broker] = max(start_ms or 0, outage.up_ms, at_ms + 1)
            self._down |= 1 << broker
        self._absences.fail(broker, at_ms, outage.kind == "disk")
        if outage.kind != "clean":
            self._expired_ms[broker] = at_ms + self._session_ms
        caught_up_ms = self._absences.caught_up_ms(broker, start_ms + self._restart_ms)
        self._ends_ms[broker] = self._rejoined_ms(broker, caught_up_ms)
        self._absent |= 1 << broker

    def _rejoined_ms(self, broker: NodeId, caught_up_ms: int) -> int:
        """When the replica that has caught up then is in the ISR: with nothing to wait for, as soon as it is started;
        not before the session of the broker's former incarnation has expired."""
        expired_ms = self._expired_ms.get(broker, 0)
        if caught_up_ms >= expired_ms and not self._rejoins:
            return caught_up_ms
        return max(caught_up_ms, expired_ms) + REJOIN_MS

    def _draw(self) -> _Change | None:
        """The next change: a failure, if one is drawn before the next start or outage that is known."""
        rate = self._rate = self._transitions.rate(self._down)
        known_ms = self._known_ms()
        self._until_ms = math.inf if known_ms < 0 else float(max(0, known_ms - self._changed_ms))
        self._forced = 0.0
        if self._biased and self._transitions.damage(self._absent) and rate > 0.0 and 0.0 < self._until_ms < math.inf:
            short_ms = SHORT * self._repair_ms / max(1, len(self._ends_ms))
            self._forced = FORCED * self._until_ms / (self._known_until_whole_ms() + short_ms)
        after_ms = self._failure_after_ms()
        if after_ms >= 0.0:
            return self._failure(self._changed_ms + math.ceil(after_ms))
        return None if known_ms < 0 else self._known(known_ms, self._log_ratio_without(self._until_ms))

    def _known_ms(self) -> int:
        """The time of the next change that is known; -1 if there is none. Of brokers that start at one time the absence
        of all has ended when the first has started."""
        found = min(self._ends_ms.values()) if self._ends_ms else -1
        for at_ms in self._starts_ms.values():
            if found < 0 or at_ms < found:
                found = at_ms
        if self._later and (found < 0 or self._later[0].down_ms < found):
            found = self._later[0].down_ms
        if self._absent and self._changed_ms < self._exposed_until_ms < found:
            found = self._exposed_until_ms
        return found

    def _known(self, at_ms: int, log_ratio: float) -> _Change:
        """The change that is known to come at that time; of several at one time an outage, then a start."""
        if self._later and self._later[0].down_ms == at_ms:
            return _Change(at_ms, log_ratio, outages=self._later[:1])
        starts = [broker for broker, start_ms in self._starts_ms.items() if start_ms == at_ms]
        return _Change(at_ms, log_ratio, max(starts, default=NO_BROKER))

    def _known_until_whole_ms(self) -> float:
        """The time until no broker is absent if nothing more is drawn; each part counts `DAMAGED` times more for each
        replica that is absent more than at present, and as much while acknowledged records are exposed."""
        at_ms, exposed_ms, total_ms = self._changed_ms, self._exposed_until_ms, 0.0
        if len(self._ends_ms) == 1 and not self._later and exposed_ms <= at_ms:
            return float(max(0, min(self._ends_ms.values()) - at_ms))
        ends_ms, later, absent = dict(self._ends_ms), list(self._later), self._absent
        damage = present = self._transitions.damage(absent) + (1 if exposed_ms > at_ms else 0)
        while ends_ms or later:
            next_ms = min(ends_ms.values()) if ends_ms else later[0].down_ms
            if later and later[0].down_ms < next_ms:
                next_ms = later[0].down_ms
            if at_ms < exposed_ms < next_ms:
                next_ms = exposed_ms
            total_ms += max(0, next_ms - at_ms) * DAMAGED ** (damage - present)
            at_ms = max(at_ms, next_ms)
            for broker, end_ms in list(ends_ms.items()):
                if end_ms <= next_ms:
                    del ends_ms[broker]
                    absent &= ~(1 << broker)
            while later and later[0].down_ms <= next_ms:
                outage = later.pop(0)
                ends_ms[outage.broker] = max(outage.up_ms, ends_ms.get(outage.broker, 0), next_ms + 1)
                absent |= 1 << outage.broker
            damage = self._transitions.damage(absent) + (1 if exposed_ms > at_ms else 0)
        return total_ms

    def _failure_after_ms(self) -> float:
        """The time from the last change to the next failure; -1 if there is none within `_until_ms`."""
        if self._rate <= 0.0:
            return -1.0
        if not self._forced:
            after_ms: float = self._random.expovariate(self._rate)
            return after_ms if after_ms < self._until_ms else -1.0
        if self._random.random() >= self._forced:
            return -1.0
        share: float = self._random.random() * -math.expm1(-self._rate * self._until_ms)
        return -math.log1p(-share) / self._rate

    def _log_ratio_without(self, after_ms: float) -> float:
        """The logarithm of the likelihood ratio of no failure within `after_ms` of the last change."""
        if not self._forced:
            return 0.0
        share: float = math.expm1(-self._rate * after_ms) / math.expm1(-self._rate * self._until_ms)
        return -self._rate * after_ms - math.log1p(-self._forced * share)

    def _failure(self, at_ms: int) -> _Change:
        """The failure at that time: of which brokers, how, and for how long."""
        log_ratio = math.log(-math.expm1(-self._rate * self._until_ms) / self._forced) if self._forced else 0.0
        found = self._transitions.selection(self._down, self._absent if self._biased else -1)
        last = len(found.alive) - 1
        index = bisect(found.cumulative, self._random.random() * found.cumulative[last], 0, last)
        outages, strike_log_ratio = self._strike(found, index, at_ms)
        log_ratio = log_ratio + found.log_ratios[index] + strike_log_ratio
        if outages and outages[-1].down_ms > at_ms:
            begun = [outage for outage in outages if outage.down_ms <= at_ms]
            return _Change(at_ms, log_ratio, NO_BROKER, begun, [each for each in outages if each.down_ms > at_ms])
        return _Change(at_ms, log_ratio, NO_BROKER, outages)

    def _strike(self, selection: Selection, index: int, at_ms: int) -> tuple[list[Outage], float]:
        """The outages of an event, and the logarithm of the likelihood ratio of their kinds and lengths."""
        found = selection.alive[index]
        if found.source is None:
            broker, down, together = found.brokers[0], self._repair, False
            outages = [Outage(at_ms, at_ms, broker, "unclean", "broker")]
            absent = self._absent | 1 << broker
        else:
            outages = list(found.source.strike(at_ms, self._draws_of(found.source.name)))
            down, together = found.source.down, found.source.together
            absent = self._absent
            for outage in outages:
                absent |= 1 << outage.broker
        damage = self._transitions.damage(absent)
        ends_bias = self._transitions.is_all(damage)
        number = min(1, len(outages)) if together else len(outages)
        long = LONG if self._biased and not ends_bias else 0.0
        lengths_ms, log_ratio = draw_lengths(down, number, long, self._random)
        is_first = not self._absent and not ends_bias
        critical = 0 if is_first else self._transitions.critical(absent, self._refusing)
        for place, outage in enumerate(outages):
            least = 0.0 if not self._biased else LOSING_NEXT if critical >> outage.broker & 1 else LOSING_FIRST
            kind, kind_log_ratio = found.kinds_with(least).draw(self._random)
            up_ms = outage.down_ms + lengths_ms[0 if together else place]
            outages[place] = Outage(outage.down_ms, up_ms, outage.broker, kind, outage.cause, outage.holds)
            log_ratio += kind_log_ratio
        return outages, log_ratio

    def _draws_of(self, source: str) -> Draws:
        """The random streams of a source in the present cycle."""
        if source not in self._draws:
            self._draws[source] = Draws(f"biased/{source}/{self._cycle}", self._seed)
        return self._draws[source]


def draw_lengths(down: Distribution, number: int, long: float, random: Random) -> tuple[list[int], float]:
    """Lengths of so many outages in ms, and the logarithm of their likelihood ratio: with probability `long` one of
    them, drawn at random, is drawn from the length-biased distribution."""
    lengths_ms = [down.sample_ms(random) for _ in range(number)]
    if number and random.random() < long:
        lengths_ms[random.randrange(number)] = length_biased_ms(down, random)
    mean = sum(lengths_ms) / number / down.mean_ms if number else 1.0
    return lengths_ms, -math.log(1.0 - long + long * mean)


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
