"""The timeline of a trial: when which broker fails and how, and when it is started again.

It is a function of the failure model and the seed, never of the protocol: cells that differ in protocol settings see
the same failures (common random numbers), so that their difference is estimated from pairs of trials. Each broker and
each shared cause (`sources.py`) has random streams of its own.

A broker's own failures are an alternating renewal process: up for a time drawn from `broker_mttf`, down for one drawn
from `broker_mttr`. An outage with a shared cause ends the time up of each broker that it finds running. On a broker
that is down it has no effect but that the disk may suffer (`sources.py`), and that the broker may have to wait for the
power. A broker that is started at the moment at which an outage begins is started first, and then ends again.

Stationary start. The renewal processes begin `HISTORY_CYCLES` mean cycles before the first event that the timeline
returns, each at a time that is uniform over one cycle, so that at time 0 states and ages have their stationary
distribution (Cox, Renewal Theory, 1962, chapter 7) up to a negligible remainder. Where times to failure are exponential
a broker has no age: only repairs under way matter, and `HISTORY_REPAIRS` mean repairs are as good.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from random import Random
from statistics import NormalDist
from typing import Literal, NamedTuple, Protocol

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.impairments import IMPAIRMENTS
from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import AnyKind
from experiments.studies.failures.shared import shared_outages
from experiments.studies.failures.sources import Branch, Outage, kind_of_failure
from protocol.ids import NodeId

HISTORY_CYCLES = 10
HISTORY_REPAIRS = 20
WARM_UP_REPAIRS = 5
"""The warm-up of a stationary start, in mean times to repair: the relaxation time of the states that the protocol goes
through is about one, so that e^-5 of the effect of the simulated cluster's first state remains."""


class Event(NamedTuple):
    """At `time_ms` a broker fails (`kind` says how), or is started (`start`). Time 0 is the start of the measurement;
    the warm-up has negative times. `cause`: what failed, in words. A broker that is down may lose the tail of its logs
    (`lossy`) or its disk (`disk`) by another cause. `mark`, of a timeline in importance sampling only and for no broker
    (-1): a shared event has begun whose outages, if any, come later, or a time ends in which failures are forced. With
    the kind of an impairment the broker is impaired from now on, or not any more (`ends`); `span`: when that begins and
    ends. Isolations of one kind, cause and span are one."""

    time_ms: int
    broker: NodeId
    kind: AnyKind | Literal["start", "mark"]
    cause: str = ""
    ends: bool = False
    span: tuple[int, int] = (0, 0)


class Timeline(Protocol):
    """What a trial takes its failures from."""

    def next_event(self) -> Event | None:
        """The next event in time order, None after the last one. The first events are failures at the time at which
        the timeline begins, of the brokers that are down then."""

    def struck(self) -> Sequence[NodeId]:
        """The brokers that something happens to at the time of the event that was returned last, its own among
        them."""

    def log_weight(self, at_ms: int) -> float:
        """The natural logarithm of the likelihood ratio, original to sampled distribution, of all that was drawn up to
        `at_ms` and since the last regeneration; `at_ms` is not before the last event. 0 in plain sampling."""

    def regenerate(self, at_ms: int) -> bool:
        """The trial has reached a regeneration point. Returns whether the timeline redraws from there: the event
        that it returned last is void then, and `next_event` has another one."""


def warm_up_ms(params: CellParameters) -> int:
    """How long the simulated cluster runs before the measurement begins."""
    return 0 if params.start == "fresh" else WARM_UP_REPAIRS * params.longest_repair_ms


def history_ms(params: CellParameters) -> int:
    """How far before its beginning a timeline draws shared outages, some of which last until then."""
    return 0 if params.start == "fresh" else 4 * WARM_UP_REPAIRS * params.longest_repair_ms


class DrawnTimeline:
    """The failures of a cell's failure model, drawn as they are needed, in plain sampling.

    `begins_ms`: the time from which it returns events, at most 0. `outages`: in time order, instead of those that the
    parameters declare; `own_failures`: whether brokers fail by themselves too, by default unless failures are recorded.
    """

    def __init__(
        self,
        params: CellParameters,
        seed: int,
        begins_ms: int = 0,
        outages: Iterable[Outage] | None = None,
        own_failures: bool | None = None,
    ) -> None:
        self._params, self._begins_ms = params, begins_ms
        self._seed_streams(seed)
        own = params.failures is None if own_failures is None else own_failures
        self._mttf = params.broker_mttf if own else None
        self._up = [True] * params.brokers
        self._starts_ms = [0] * params.brokers
        self._generations = [0] * params.brokers
        self._heap: list[tuple[int, int, int]] = []
        for broker in range(params.brokers):
            self._schedule_failure(broker, self._renewal_begins_ms(broker, seed))
        shared = shared_outages(params, seed, begins_ms - history_ms(params)) if outages is None else outages
        self._shared: Iterator[Outage] = iter(shared)
        self._coming: deque[Outage] = deque(itertools.islice(self._shared, 1))
        """The next of the shared outages, and those that were looked at since."""
        self._impaired: list[tuple[int, Outage]] = []
        self._returned_ms, self._returned = begins_ms, set[NodeId]()
        self._first = self._state_at_the_beginning()

    def _seed_streams(self, seed: int) -> None:
        brokers = range(self._params.brokers)
        self._lifetimes = [Random(f"{seed}/broker/{broker}/lifetimes") for broker in brokers]
        self._repairs = [Random(f"{seed}/broker/{broker}/repairs") for broker in brokers]
        self._kinds = [Random(f"{seed}/broker/{broker}/kinds") for broker in brokers]
        self._disks = [Random(f"{seed}/broker/{broker}/disks") for broker in brokers]

    def _renewal_begins_ms(self, broker: NodeId, seed: int) -> int:
        if self._params.start == "fresh" or self._mttf is None:
            return self._begins_ms
        if self._mttf.dist == "exponential":
            return self._begins_ms - HISTORY_REPAIRS * self._params.broker_mttr.mean_ms
        cycle_ms = self._mttf.mean_ms + self._params.broker_mttr.mean_ms
        share = Random(f"{seed}/broker/{broker}/phase").random()
        return self._begins_ms - round((HISTORY_CYCLES + share) * cycle_ms)

    def _state_at_the_beginning(self) -> Iterator[Event]:
        """Passes the events before the beginning; returns one failure for each broker that is down then, and the
        impairments that last."""
        down: dict[NodeId, Event] = {}
        while (upcoming := self._upcoming_ms()) is not None and upcoming < self._begins_ms:
            event = self._advance()
            if event is None or event.kind in IMPAIRMENTS:
                continue
            if event.kind == "start":
                del down[event.broker]
            elif not (event.broker in down and down[event.broker].kind == "disk"):
                down[event.broker] = event
        impaired = [_impairment(outage.down_ms, outage) for _, outage in sorted(self._impaired)]
        return iter([e._replace(time_ms=self._begins_ms) for e in (*(down[b] for b in sorted(down)), *impaired)])

    def next_event(self) -> Event | None:
        event = next(self._first, None)
        while event is None and self._upcoming_ms() is not None:
            event = self._advance()
        if event is not None:
            self._returned_ms, self._returned = event.time_ms, {event.broker}
        return event

    def struck(self) -> Sequence[NodeId]:
        at_ms = self._returned_ms
        while self._coming and self._coming[-1].down_ms <= at_ms and (following := next(self._shared, None)):
            self._coming.append(following)
        found = self._returned | {outage.broker for outage in self._coming if outage.down_ms == at_ms}
        return sorted(found | {broker for time_ms, broker, _ in self._heap if time_ms == at_ms})

    def log_weight(self, at_ms: int) -> float:
        return 0.0

    def regenerate(self, at_ms: int) -> bool:
        return False

    def _upcoming_ms(self) -> int | None:
        found = self._heap[0][0] if self._heap else None
        if self._impaired and (found is None or self._impaired[0][0] < found):
            found = self._impaired[0][0]
        shared = self._coming[0] if self._coming else None
        return shared.down_ms if shared is not None and (found is None or shared.down_ms < found) else found

    def _advance(self) -> Event | None:
        """The next event; None if it has no effect."""
        shared = self._coming[0] if self._coming else None
        if self._impaired and self._impaired[0][0] == self._upcoming_ms():
            return _impairment(*heappop(self._impaired), ends=True)
        if shared is not None and (not self._heap or shared.down_ms < self._heap[0][0]):
            self._coming.popleft()
            if not self._coming:
                self._coming.extend(itertools.islice(self._shared, 1))
            if shared.kind in IMPAIRMENTS:
                heappush(self._impaired, (shared.up_ms, shared))
                return _impairment(shared.down_ms, shared)
            if not self._up[shared.broker]:
                return self._strike_down(shared)
            return self._fail(shared.down_ms, shared.broker, shared.kind, shared.up_ms, shared.cause)
        time_ms, broker, generation = heappop(self._heap)
        if generation != self._generations[broker]:
            return None
        if self._up[broker]:
            up_ms = time_ms + self._params.broker_mttr.sample_ms(self._repairs[broker])
            kind = kind_of_failure(self._params, self._kinds[broker], self._disks[broker])
            return self._fail(time_ms, broker, kind, up_ms, "broker")
        self._up[broker] = True
        self._schedule_failure(broker, time_ms)
        return Event(time_ms, broker, "start")

    def _fail(self, time_ms: int, broker: NodeId, kind: AnyKind, up_ms: int, cause: str) -> Event:
        self._up[broker] = False
        self._schedule_start(broker, max(up_ms, time_ms + 1))
        return Event(time_ms, broker, kind, cause)

    def _strike_down(self, outage: Outage) -> Event | None:
        """An outage of a broker that is down already; returns what happens to its disk."""
        if outage.holds and outage.up_ms > self._starts_ms[outage.broker]:
            self._schedule_start(outage.broker, outage.up_ms)
        if outage.kind in ("clean", "unclean"):
            return None
        return Event(outage.down_ms, outage.broker, outage.kind, outage.cause)

    def _schedule_start(self, broker: NodeId, at_ms: int) -> None:
        self._starts_ms[broker] = at_ms
        self._push(at_ms, broker)

    def _schedule_failure(self, broker: NodeId, up_ms: int) -> None:
        self._generations[broker] += 1
        if self._mttf is not None:
            self._push(up_ms + self._mttf.sample_ms(self._lifetimes[broker]), broker)

    def _push(self, at_ms: int, broker: NodeId) -> None:
        """The broker's next change is at that time; an earlier plan is void."""
        self._generations[broker] += 1
        heappush(self._heap, (at_ms, broker, self._generations[broker]))


def _impairment(time_ms: int, outage: Outage, ends: bool = False) -> Event:
    """The beginning of an impairment at that time, or its end."""
    return Event(time_ms, outage.broker, outage.kind, outage.cause, ends, (outage.down_ms, outage.up_ms))


class BranchingTimeline(DrawnTimeline):
    """The timeline of `seed` with branches, in the order of their times: drawn with another seed from each on.

    The simulated cluster cannot be copied, so splitting repeats a path from its beginning with the same random numbers
    up to the branch. The others are drawn given the state of the failure model then: the remaining time to failure of a
    broker that is up given its age, the remaining repair given the time down, the next event of a Poisson process. What
    is scheduled (rolling restarts, recorded failures, repairs and later outages of shared events that have struck)
    stays as it is.
    """

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
                self._push(since_ms + longer_than_ms(self._mttf, passed_ms, self._lifetimes[broker]), broker)

    def _fail(self, time_ms: int, broker: NodeId, kind: AnyKind, up_ms: int, cause: str) -> Event:
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


def events_until(timeline: Timeline, end_ms: int) -> Iterator[Event]:
    """The timeline's events before `end_ms`."""
    return itertools.takewhile(lambda event: event.time_ms < end_ms, iter(timeline.next_event, None))
