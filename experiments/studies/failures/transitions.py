"""The transitions of a failure model without memory, and the probabilities with which importance sampling draws them
(`biased.py` says why, under *Which* and *How*).

They depend on which brokers are down and which are absent, of which there are few sets, and a trial meets most of them
many times. So each is worked out once per cell. Sets of brokers are integers, bit b for broker b.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random

from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import AnyKind
from experiments.studies.failures.sources import PoissonSource, kinds_of, power_sources, split_bursts
from protocol.ids import NodeId

LOSING: frozenset[AnyKind] = frozenset({"lossy", "disk"})
MOST_REMEMBERED = 20_000
"""Selections that are kept: those of all sets of seven brokers. Where there are more the old ones are forgotten."""


class KindDraw:
    """A kind of failure, of which those that lose data have probability `least` or more."""

    __slots__ = ("_cumulative", "_kinds", "_log_ratios")

    def __init__(self, kinds: Mapping[AnyKind, float], least: float) -> None:
        losing = sum(chance for kind, chance in kinds.items() if kind in LOSING)
        factors = dict.fromkeys(kinds, 1.0)
        if 0.0 < losing < least:
            factors = {kind: least / losing if kind in LOSING else (1.0 - least) / (1.0 - losing) for kind in kinds}
        self._kinds = list(kinds)
        self._cumulative = list(accumulate(chance * factors[kind] for kind, chance in kinds.items()))
        self._log_ratios = [-math.log(factors[kind]) for kind in kinds]

    def draw(self, random: Random) -> tuple[AnyKind, float]:
        """A kind and its log likelihood ratio."""
        last = len(self._kinds) - 1
        index = bisect(self._cumulative, random.random() * self._cumulative[last], 0, last)
        return self._kinds[index], self._log_ratios[index]


class Transition:
    """A Poisson process of `rate` events per ms: an own failure of the only one of `brokers`, or an event of `source`,
    which may strike all of them, the set `struck`. `group`: of its cause. `kinds`: of each broker's failure, with
    probabilities."""

    __slots__ = ("_draws", "brokers", "group", "kinds", "rate", "source", "struck")

    def __init__(
        self,
        group: str,
        rate: float,
        brokers: tuple[NodeId, ...],
        kinds: Mapping[AnyKind, float],
        source: PoissonSource | None = None,
    ) -> None:
        self.group, self.rate, self.brokers, self.kinds, self.source = group, rate, brokers, kinds, source
        self.struck = set_of(brokers)
        self._draws: dict[float, KindDraw] = {}

    def kinds_with(self, least: float) -> KindDraw:
        """How the kinds of its failures are drawn, those that lose data with that probability at least."""
        found = self._draws.get(least)
        if found is None:
            found = self._draws[least] = KindDraw(self.kinds, least)
        return found


def transitions_of(params: CellParameters) -> list[Transition]:
    """The transitions of a model without memory."""
    mttf, own = params.broker_mttf, kinds_of(params)
    brokers = range(0 if mttf is None else params.brokers)
    rate = 0.0 if mttf is None else 1.0 / mttf.mean_ms
    found = [Transition("broker", rate, (broker,), own) for broker in brokers]
    sources = power_sources(params) + split_bursts(params)
    return found + [Transition(each.group, each.rate_per_ms, each.brokers, each.kinds, each) for each in sources]


class Selection:
    """The transitions that may come next, `alive`, the running sums of the probabilities with which they are drawn, and
    the logarithm of the ratio of each to its probability under the model."""

    __slots__ = ("alive", "cumulative", "log_ratios")

    def __init__(self, alive: list[Transition], chances: list[float], rate: float) -> None:
        self.alive, self.cumulative = alive, list(accumulate(chances))
        self.log_ratios = [
            math.log(found.rate / rate / chance) if chance > 0.0 else 0.0
            for found, chance in zip(alive, chances, strict=True)
        ]


class Transitions:
    """The transitions of a cell; all trials and controls of it may share them. `placement`: the brokers of each
    partition."""

    def __init__(self, params: CellParameters, placement: Sequence[Sequence[NodeId]]) -> None:
        self._all = transitions_of(params)
        self._replicas = [set_of(replicas) for replicas in sorted(set(map(tuple, placement)))]
        self._per_partition = params.replication_factor
        self._brokers = params.brokers
        self._damage: dict[int, int] = {}
        self._rates: dict[int, float] = {}
        self._selections: dict[int, Selection] = {}

    def damage(self, absent: int) -> int:
        """The number of replicas that are absent of the most damaged partition."""
        found = self._damage.get(absent, -1)
        if found < 0:
            if len(self._damage) >= MOST_REMEMBERED:
                self._damage.clear()
            found = self._damage[absent] = max((each & absent).bit_count() for each in self._replicas)
        return found

    def critical(self, absent: int, damage: int) -> int:
        """The brokers of the partitions of which so many replicas or more are absent."""
        found = 0
        for each in self._replicas:
            if (each & absent).bit_count() >= damage:
                found |= each
        return found

    def is_all(self, damage: int) -> bool:
        """Whether so many are all replicas of a partition."""
        return damage == self._per_partition

    def rate(self, down: int) -> float:
        """The sum of the rates, per ms, while those brokers are down."""
        found = self._rates.get(down, -1.0)
        if found < 0.0:
            if len(self._rates) >= MOST_REMEMBERED:
                self._rates.clear()
            found = self._rates[down] = sum((each.rate for each in self._alive(down)), 0.0)
        return found

    def selection(self, down: int, absent: int) -> Selection:
        """What is drawn from while those brokers are down and absent; with `absent` -1 by the rates alone."""
        key = ((absent + 1) << self._brokers) | down
        found = self._selections.get(key)
        if found is None:
            if len(self._selections) >= MOST_REMEMBERED:
                self._selections.clear()
            alive, rate = self._alive(down), self.rate(down)
            chances = [each.rate / rate for each in alive]
            if absent >= 0:
                chances = self._biased(alive, chances, absent)
            found = self._selections[key] = Selection(alive, chances, rate)
        return found

    def _alive(self, down: int) -> list[Transition]:
        return [each for each in self._all if each.source is not None or not down & each.struck]

    def _biased(self, alive: list[Transition], shares: list[float], absent: int) -> list[float]:
        """The probabilities of the transitions under the bias, given their shares of the rate; both add up to 1."""
        most = self.damage(absent)
        damaged = [each & ~absent for each in self._replicas if (each & absent).bit_count() == most]
        ended = [max((left & found.struck).bit_count() for left in damaged) for found in alive]
        most_ended: dict[str, int] = {}
        per_group: dict[str, float] = {}
        for found, number in zip(alive, ended, strict=True):
            most_ended[found.group] = max(number, most_ended.get(found.group, 0))
        aimed = [
            found.rate if number and number == most_ended[found.group] else 0.0
            for found, number in zip(alive, ended, strict=True)
        ]
        for found, rate in zip(alive, aimed, strict=True):
            per_group[found.group] = per_group.get(found.group, 0.0) + rate
        groups = sum(rate > 0.0 for rate in per_group.values())
        if not groups:
            return shares
        balanced = [
            rate / per_group[found.group] / groups if rate else 0.0 for found, rate in zip(alive, aimed, strict=True)
        ]
        return [(share + other) / 2.0 for share, other in zip(shares, balanced, strict=True)]


def set_of(brokers: Sequence[NodeId]) -> int:
    """The set of these brokers."""
    found = 0
    for broker in brokers:
        found |= 1 << broker
    return found
