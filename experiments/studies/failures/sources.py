"""Outages, and the Poisson processes of shared causes of failure (docs/failure-models.md).

An *outage source* is an iterator of :class:`Outage` in time order. It draws from random streams of its own, so that a
cell with more sources has the same failures otherwise, and knows nothing of the protocol. A failure model of one's own
is such an iterator: `DrawnTimeline(params, seed, outages=..., own_failures=False)` runs on it.

Shared causes that strike at random times are declared as data, :class:`PoissonSource`. Plain sampling draws the events
at the declared rate (:func:`poisson_outages`); importance sampling may draw them at another one. Power events are
failures of machines: a lossy one takes the page cache, and with it the unflushed tail, also where the broker's process
is down already, as far as the kernel has not written it back. Which brokers a burst strikes (Ford et al., Availability
in Globally Distributed Storage Systems, OSDI 2010, section 4) is drawn independently, so the bursts that strike a given
set of brokers are a Poisson process (marking theorem: Kingman, Poisson Processes, 1993, 5.2): :func:`split_bursts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations
from random import Random
from typing import NamedTuple

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.impairments import AnyImpairment, Domain
from experiments.studies.design.mappings import Burst
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import burst_domains, rack_sizes, racks_of
from experiments.studies.design.recorded import AnyKind, OutageKind
from protocol.ids import NodeId

MOST_SETS = 100
"""Sets of brokers into which bursts are split at most: all pairs of 14 brokers, all sets of 6."""


class Outage(NamedTuple):
    """A broker is down from `down_ms` until it is started at `up_ms`; times as in the timeline. `cause`: in words.

    With the kind of an impairment the broker is impaired for so long, whether it is up or down. The isolations of one
    kind, cause and time are one: their brokers reach each other.

    An outage that finds its broker down acts on the disk as its kind says (`lossy`, `disk`). It ends when the earlier
    outage does, unless it `holds` the broker, which is then not started before `up_ms`.
    """

    down_ms: int
    up_ms: int
    broker: NodeId
    kind: AnyKind
    cause: str
    holds: bool = False


def in_order(outage: Outage) -> tuple[int, NodeId, int]:
    """The key by which outages are sorted: brokers that fail in one moment do so in the order of their ids, which says
    nothing of how long each is down."""
    return outage.down_ms, outage.broker, outage.up_ms


class Draws:
    """The random streams of a source in a trial: gaps between events, what brokers have in common, each broker."""

    def __init__(self, source: str, seed: int) -> None:
        self._source, self._seed = source, seed
        self._brokers: dict[NodeId, Random] = {}
        self.gaps = Random(f"{seed}/{source}")
        self.event = Random(f"{seed}/{source}/event")

    def broker(self, broker: NodeId) -> Random:
        """The stream of a broker."""
        if broker not in self._brokers:
            self._brokers[broker] = Random(f"{self._seed}/broker/{broker}/{self._source}")
        return self._brokers[broker]


@dataclass(frozen=True, slots=True)
class PoissonSource:
    """Events with a shared cause, a Poisson process.

    `name`: of its random streams. `group`: the same for causes that differ in their brokers only. `events_per_year`:
    the rate. `brokers`: those that an event may strike. `strike(at_ms, draws)`: the outages of an event, by time, none
    before `at_ms`; it draws the same numbers whatever the outages before were. `kinds`: the probabilities of the kinds
    of its outages; `down`: the distribution of their lengths, of which an event draws one for all (`together`) or one
    for each broker. All are independent of each other and of everything else.
    """

    name: str
    group: str
    events_per_year: float
    brokers: tuple[NodeId, ...]
    kinds: Mapping[AnyKind, float]
    strike: Callable[[int, Draws], Sequence[Outage]]
    down: Distribution
    together: bool

    @property
    def rate_per_ms(self) -> float:
        """Events per millisecond."""
        return self.events_per_year / YEAR_MS


def poisson_sources(params: CellParameters) -> list[PoissonSource]:
    """All shared causes of the cell's failure model that are Poisson processes."""
    return [*power_sources(params), *(_bursts(params, burst) for burst in params.burst)]


def power_sources(params: CellParameters) -> list[PoissonSource]:
    """The power events of the cell's failure model."""
    everyone = tuple(range(params.brokers))
    sources = []
    if params.power_events_per_year > 0:
        sources.append(_power(params, "cluster", params.power_events_per_year, everyone, params.power_mttr))
    if params.rack_power_events_per_year > 0:
        rate, down = params.rack_power_events_per_year, params.rack_power_mttr
        racks = enumerate(racks_of(params))
        sources += [_power(params, f"rack {rack}", rate, brokers, down) for rack, brokers in racks]
    for cause in params.power:
        loss = params.tail_lost_with_power if cause.loss is None else cause.loss
        sources += [
            _power(params, domain, cause.per_year, brokers, cause.down, cause.name, loss)
            for domain, brokers in domains_of(params, cause.of)
        ]
    return sources


class Branch(NamedTuple):
    """Events after `at_ms` are drawn with `seed`."""

    at_ms: int
    seed: int


def poisson_outages(
    source: PoissonSource, seed: int, begins_ms: int, branches: Sequence[Branch] = ()
) -> Iterator[Outage]:
    """The outages of a source by time, without end. Events before a branch keep their outages after it."""
    due: list[tuple[tuple[int, NodeId, int], Outage]] = []
    ends_ms = [*(branch.at_ms for branch in branches), math.inf]
    for part, end_ms in zip([Branch(begins_ms, seed), *branches], ends_ms, strict=True):
        for at_ms, draws in poisson_events(source.name, source.rate_per_ms, part.seed, part.at_ms):
            if at_ms > end_ms:
                break
            while due and due[0][1].down_ms <= at_ms:
                yield heappop(due)[1]
            for outage in source.strike(at_ms, draws):
                heappush(due, (in_order(outage), outage))


def poisson_events(name: str, rate_per_ms: float, seed: int, begins_ms: int) -> Iterator[tuple[int, Draws]]:
    """The times of a Poisson process from `begins_ms` on, without end, with the streams for what happens then. The
    events from time 0 on do not depend on `begins_ms`: those before have streams of their own."""
    past, draws = Draws(f"{name}/past", seed), Draws(name, seed)
    at_ms = begins_ms
    while (at_ms := at_ms + _gap_ms(past, rate_per_ms)) < 0:
        yield at_ms, past
    at_ms = max(0, begins_ms)
    while True:
        at_ms += _gap_ms(draws, rate_per_ms)
        yield at_ms, draws


def _gap_ms(draws: Draws, rate_per_ms: float) -> int:
    return round(draws.gaps.expovariate(rate_per_ms)) + 1


def domains_of(params: CellParameters, of: Domain) -> list[tuple[str, tuple[NodeId, ...]]]:
    """The domains of one level with their brokers: `broker 0`, `rack 0` and so on, or `cluster`."""
    everyone = tuple(range(params.brokers))
    if of == "cluster":
        return [("cluster", everyone)]
    domains = [(broker,) for broker in everyone] if of == "broker" else racks_of(params)
    return [(f"{of} {number}", brokers) for number, brokers in enumerate(domains)]


def impairment_sources(params: CellParameters) -> list[PoissonSource]:
    """The causes of impairments of the cell's failure model, for each domain."""
    return [
        _impairing(cause, domain, brokers)
        for cause in params.impairments
        for domain, brokers in domains_of(params, cause.of)
    ]


def _impairing(impairment: AnyImpairment, domain: str, brokers: tuple[NodeId, ...]) -> PoissonSource:
    """All brokers of a domain are impaired for one duration."""
    kind, cause = impairment.kind, f"{domain} {impairment.name}"

    def strike(at_ms: int, draws: Draws) -> list[Outage]:
        ends_ms = at_ms + impairment.duration.sample_ms(draws.event)
        return [Outage(at_ms, ends_ms, broker, kind, cause) for broker in brokers]

    name, group = f"{domain.replace(' ', '/')}/{kind}/{impairment.name}", f"{impairment.of} {impairment.name}"
    return PoissonSource(name, group, impairment.per_year, brokers, {kind: 1.0}, strike, impairment.duration, True)


def _power(
    params: CellParameters,
    domain: str,
    rate: float,
    brokers: tuple[NodeId, ...],
    common_down: Distribution | None,
    called: str = "power",
    loss: float | None = None,
) -> PoissonSource:
    """Power events of a domain: all its brokers fail at once, each with its own draw of whether the tail is lost. They
    come back together after `common_down`, or each after a repair time of its own."""
    loss = params.tail_lost_with_power if loss is None else loss
    name, cause = f"{domain.replace(' ', '/')}/{called}", f"{domain} {called}"

    def strike(at_ms: int, draws: Draws) -> list[Outage]:
        common_ms = None if common_down is None else common_down.sample_ms(draws.event)
        outages = []
        for broker in brokers:
            random = draws.broker(broker)
            kind: OutageKind = "lossy" if random.random() < loss else "unclean"
            down_ms = params.broker_mttr.sample_ms(random)
            up_ms = at_ms + (common_ms or down_ms)
            outages.append(Outage(at_ms, up_ms, broker, kind, cause, holds=common_ms is not None))
        return outages

    kinds: dict[AnyKind, float] = {"unclean": 1.0 - loss, "lossy": loss}
    group, down = f"{domain.split()[0]} {called}", common_down or params.broker_mttr
    return PoissonSource(name, group, rate, brokers, kinds, strike, down, together=common_down is not None)


def _bursts(
    params: CellParameters, burst: Burst, share: float = 1.0, only: tuple[NodeId, ...] | None = None
) -> PoissonSource:
    """Bursts: every broker draws a number; of the cluster or of one rack, those with the smallest are struck, or those
    with one below `fraction`. With `only`, the `share` of the bursts that strikes exactly these brokers."""
    everyone, racks = tuple(range(params.brokers)), racks_of(params)

    def strike(at_ms: int, draws: Draws) -> list[Outage]:
        common_ms = None if burst.down is None else burst.down.sample_ms(draws.event)
        drawn = {broker: _drawn_failure(params, burst, draws.broker(broker)) for broker in only or everyone}
        struck: Sequence[NodeId] = only or ()
        if only is None:
            in_one_rack, rack = draws.event.random() < burst.same_rack, draws.event.random()
            domain = racks[int(rack * params.racks)] if in_one_rack else everyone
            struck = sorted(domain, key=lambda broker: drawn[broker].order)[: burst.size]
            if burst.fraction is not None:
                struck = [broker for broker in domain if drawn[broker].order < burst.fraction]
        outages = []
        for broker in struck:
            down_ms = at_ms + drawn[broker].after_ms
            up_ms = down_ms + (common_ms or drawn[broker].down_ms)
            outages.append(Outage(down_ms, up_ms, broker, drawn[broker].kind, burst.cause))
        return sorted(outages, key=in_order)

    rate = burst.events_per_year(rack_sizes(params)) * share
    down, together = burst.down or params.broker_mttr, burst.down is not None
    name = f"cluster/{burst.cause.replace(' ', '/', 1)}"
    return PoissonSource(name, burst.cause, rate, only or everyone, kinds_of(params), strike, down, together)


def split_bursts(params: CellParameters) -> list[PoissonSource]:
    """The bursts of each cause as one source for each set of brokers that one may strike, whose events strike all of
    the set; without empty sets. One source that draws the set where there are more than `MOST_SETS`."""
    return [part for burst in params.burst for part in _split(params, burst)]


def _split(params: CellParameters, burst: Burst) -> list[PoissonSource]:
    chances: dict[tuple[NodeId, ...], float] = {}
    for chance, domain in burst_domains(params, burst):
        if chance > 0.0:
            brokers = len(domain)
            if (2**brokers if burst.size is None else math.comb(brokers, min(burst.size, brokers))) > MOST_SETS:
                return [_bursts(params, burst)]
            for struck, share in _sets(burst, domain):
                chances[struck] = chances.get(struck, 0.0) + chance * share
    return [_bursts(params, burst, chance, struck) for struck, chance in chances.items()]


def _sets(burst: Burst, domain: Sequence[NodeId]) -> Iterator[tuple[tuple[NodeId, ...], float]]:
    """The sets of brokers that a burst in the domain may strike, and their probabilities; not the empty one."""
    if burst.size is not None:
        sets = list(combinations(domain, min(burst.size, len(domain))))
        yield from ((struck, 1.0 / len(sets)) for struck in sets)
        return
    fraction = burst.fraction or 0.0
    for size in range(1, len(domain) + 1):
        share = fraction**size * (1.0 - fraction) ** (len(domain) - size)
        yield from ((struck, share) for struck in combinations(domain, size) if share > 0.0)


class _Failure(NamedTuple):
    """What a broker draws for a burst, struck or not, so that its stream does not depend on the others."""

    order: float
    after_ms: int
    down_ms: int
    kind: OutageKind


def _drawn_failure(params: CellParameters, burst: Burst, random: Random) -> _Failure:
    order, after_ms = random.random(), int(random.random() * burst.window_ms)
    return _Failure(order, after_ms, params.broker_mttr.sample_ms(random), kind_of_failure(params, random, random))


def kind_of_failure(params: CellParameters, random: Random, disks: Random) -> OutageKind:
    """The kind of a broker's own failure, and of one in a burst. All numbers are drawn in any case, so that the streams
    of two cells with other probabilities stay paired; that for the disk comes from `disks`."""
    crash, loss, disk = random.random(), random.random(), disks.random()
    if crash >= params.unclean_probability:
        return "clean"
    if disk < params.disk_loss_probability:
        return "disk"
    return "lossy" if loss < params.tail_loss_probability else "unclean"


def kinds_of(params: CellParameters) -> dict[AnyKind, float]:
    """The probabilities of the kinds that :func:`kind_of_failure` draws."""
    unclean, disk, loss = params.unclean_probability, params.disk_loss_probability, params.tail_loss_probability
    return {
        "clean": 1.0 - unclean,
        "disk": unclean * disk,
        "lossy": unclean * (1.0 - disk) * loss,
        "unclean": unclean * (1.0 - disk) * (1.0 - loss),
    }
