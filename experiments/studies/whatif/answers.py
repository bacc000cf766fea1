"""What becomes of every topic of a layout after each failure.

Partitions with an equal assignment by positions, an equal state and equal configs are decided once: a class. A failure
meets a partition by the positions of the brokers that fail, so that 10,000 partitions need a few hundred decisions, and
everything else is counting. A partition without a broker that fails stays as it is.

The cluster starts as the layout describes it; without a description, or where the question asks for it, every replica
is in sync and the preferred ones lead. Whether a broker is up is not described: one that leads a partition, or is in
the ISR of one that has a leader, is up; one that holds replicas and does neither is down. A replica that is out of sync
at the start stays so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from experiments.studies.layouts.layout import Brokers, Described, Layout
from experiments.studies.whatif.decisions import Decider, Moment, Outcome, Positions, Settings
from experiments.studies.whatif.failures import Failure
from experiments.studies.whatif.triples import Counted, after_each_three, numbers_of
from protocol.config import ClusterConfig
from protocol.ids import NO_LEADER
from protocol.metadata.partition import PartitionState


@dataclass(frozen=True, slots=True)
class Rules:
    """The cluster's rules, and the defaults for topics whose layout does not say."""

    cluster: ClusterConfig
    min_isr: int
    unclean_election: bool = False


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """Numbers of partitions of a topic after a failure. `losses`: the least number of failed brokers whose page cache
    must be lost so that acknowledged records are, None where no partition may lose any."""

    topic: str
    partitions: int
    writable: int
    leaderless: int
    may_lose: int
    losses: int | None

    @property
    def is_stopped(self) -> bool:
        """Whether some partition refuses writes."""
        return self.writable < self.partitions


@dataclass(frozen=True, slots=True)
class Answer:
    """What one failure does. `order`: the order of the failures that the answer is for, None where every order gives
    the same, or where a rack fails at once; of a restart the brokers that were restarted so far, `failed` last."""

    kind: str
    name: str
    failed: Brokers
    order: Brokers | None
    topics: tuple[TopicAnswer, ...]

    @property
    def stopped(self) -> list[TopicAnswer]:
        return [topic for topic in self.topics if topic.is_stopped]

    def document(self) -> dict[str, object]:
        """The answer as JSON has it."""
        return {
            "kind": self.kind,
            "failed": list(self.failed),
            "order": None if self.order is None else list(self.order),
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": topic.partitions,
                    "writable": topic.writable,
                    "leaderless": topic.leaderless,
                    "may_lose": topic.may_lose,
                    "page_caches_lost": topic.losses,
                }
                for topic in self.topics
            ],
        }


@dataclass(frozen=True, slots=True)
class _Member:
    """A partition: its topic by number, its replicas, and how it begins; `before` is the outcome without a failure.
    Of equal starts there is one object."""

    topic: int
    replicas: Brokers
    decider: Decider
    start: Moment
    before: Outcome


@dataclass(slots=True)
class Question:
    """A layout under rules, to be asked about failures. `is_healthy`: begin with all replicas in sync."""

    layout: Layout
    rules: Rules
    is_healthy: bool = False
    down: frozenset[int] = field(init=False)
    """Brokers that are down at the start."""
    _members: list[_Member] = field(init=False)
    _of_broker: dict[int, list[int]] = field(init=False)
    _outcomes: dict[tuple[int, int, Positions, bool], Outcome] = field(default_factory=dict)
    _before: list[Counter[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.down = frozenset() if self.is_healthy else brokers_down(self.layout)
        self._members = list(self._all_members())
        self._of_broker = {broker: [] for broker in self.layout.brokers}
        for index, member in enumerate(self._members):
            for broker in member.replicas:
                self._of_broker[broker].append(index)
        self._before = [Counter(partitions=len(topic.replicas)) for topic in self.layout.topics]
        for member in self._members:
            _count(self._before[member.topic], member.before, 1)

    def _all_members(self) -> Iterator[_Member]:
        deciders: dict[tuple[int, bool], Decider] = {}
        starts: dict[Moment, Moment] = {}
        for number, topic in enumerate(self.layout.topics):
            min_isr = self.rules.min_isr if topic.min_insync_replicas is None else topic.min_insync_replicas
            unclean = topic.unclean_leader_election
            key = (min_isr, self.rules.unclean_election if unclean is None else unclean)
            decider = deciders.setdefault(key, Decider(Settings(self.rules.cluster, *key)))
            for index, replicas in enumerate(topic.replicas):
                state = None if self.is_healthy or topic.described is None else topic.described[index]
                start = _start(replicas, state, self.down)
                start = starts.setdefault(start, start)
                yield _Member(number, replicas, decider, start, decider.state_of(start))

    def before(self) -> Answer:
        """The topics as they are without a failure."""
        return Answer("none", "no failure", (), None, self._topics(self._before, {}))

    def answers(self, failures: Iterable[Failure]) -> Iterator[Answer]:
        """The answers to each failure in turn; a pair has two where its order matters, a restart one per broker,
        `any 3` one for every three brokers."""
        for failure in failures:
            if failure.kind == "three":
                yield from self._triples(failure.brokers)
                continue
            if failure.kind == "rolling":
                yield from self._restarts(failure)
                continue
            found = self._after(failure.brokers, failure.at_once)
            order = failure.brokers if failure.kind == "brokers" else None
            if failure.kind == "pair":
                turned = failure.brokers[::-1]
                other = self._after(turned, at_once=False)
                if other != found:
                    order = failure.brokers
                    yield Answer(failure.kind, f"{failure.name} in this order", turned, turned, other)
            yield Answer(failure.kind, failure.name, failure.brokers, order, found)

    def _after(self, failed: Brokers, at_once: bool) -> tuple[TopicAnswer, ...]:
        counts, losses = [Counter(each) for each in self._before], dict[int, int]()
        affected = dict.fromkeys(index for broker in failed for index in self._of_broker[broker])
        for index in affected:
            member = self._members[index]
            outcome = self._outcome(member, failed, at_once)
            if outcome != member.before:
                _replace(counts[member.topic], member.before, outcome)
            if outcome.losses is not None:
                losses[member.topic] = min(outcome.losses, losses.get(member.topic, outcome.losses))
        return self._topics(counts, losses)

    def _triples(self, brokers: Brokers) -> Iterator[Answer]:
        """After every three of the brokers. Topics with equal numbers are one object, as there are millions."""
        known: dict[tuple[int, ...], TopicAnswer] = {}
        counted = (
            Counted(member.topic, member.replicas, member.before, partial(self._at_places, member))
            for member in self._members
        )
        for three, counts in after_each_three(counted, len(self.layout.topics), brokers):
            topics = []
            for number, (topic, count) in enumerate(zip(self.layout.topics, counts, strict=True)):
                key = (number, *count)
                if key not in known:
                    known[key] = TopicAnswer(topic.name, len(topic.replicas), *numbers_of(count))
                topics.append(known[key])
            yield Answer("three", f"brokers {', '.join(map(str, three))}", three, None, tuple(topics))

    def _at_places(self, member: _Member, places: Positions) -> Outcome:
        return self._outcome(member, tuple(member.replicas[place] for place in places), at_once=False)

    def _outcome(self, member: _Member, failed: Brokers, at_once: bool) -> Outcome:
        positions = tuple(member.replicas.index(broker) for broker in failed if broker in member.replicas)
        key = (id(member.decider), id(member.start), positions, at_once)
        if key not in self._outcomes:
            self._outcomes[key] = member.decider.outcome(member.start, positions, at_once)
        return self._outcomes[key]

    def _restarts(self, failure: Failure) -> Iterator[Answer]:
        """While each broker is down, with what the restarts before it have left behind."""
        present = {index: member.start for index, member in enumerate(self._members)}
        before = [Counter(each) for each in self._before]
        for number, broker in enumerate(failure.brokers, 1):
            counts = [Counter(each) for each in before]
            for index in self._of_broker[broker]:
                member, decider = self._members[index], self._members[index].decider
                up, (down, back) = present[index], decider.restarted(present[index], member.replicas.index(broker))
                _replace(counts[member.topic], decider.state_of(up), down)
                _replace(before[member.topic], decider.state_of(up), decider.state_of(back))
                present[index] = back
            order = failure.brokers[:number]
            yield Answer(failure.kind, f"restart of broker {broker}", (broker,), order, self._topics(counts, {}))

    def _topics(self, counts: Sequence[Counter[str]], losses: dict[int, int]) -> tuple[TopicAnswer, ...]:
        return tuple(
            TopicAnswer(
                topic.name,
                len(topic.replicas),
                count["writable"],
                count["leaderless"],
                count["may_lose"],
                losses.get(number),
            )
            for number, (topic, count) in enumerate(zip(self.layout.topics, counts, strict=True))
        )


def _count(count: Counter[str], outcome: Outcome, by: int) -> None:
    count["writable"] += by * outcome.writable
    count["leaderless"] += by * outcome.leaderless
    count["may_lose"] += by * (outcome.losses is not None)


def _replace(count: Counter[str], before: Outcome, after: Outcome) -> None:
    _count(count, before, -1)
    _count(count, after, 1)


def brokers_down(layout: Layout) -> frozenset[int]:
    """The brokers that hold replicas and are described as neither leading nor in sync under a leader."""
    described = [
        (replicas, state)
        for topic in layout.topics
        for replicas, state in zip(topic.replicas, topic.described or (), strict=topic.described is not None)
    ]
    holding = {broker for replicas, _ in described for broker in replicas}
    return frozenset(holding.difference(*(state.isr for _, state in described if state.leader != NO_LEADER)))


def _start(replicas: Brokers, state: Described | None, down: frozenset[int]) -> Moment:
    """The partition by positions."""
    everyone = tuple(range(len(replicas)))
    if state is None:
        return Moment(PartitionState(everyone, everyone, leader=0), frozenset(everyone))

    def at(brokers: Brokers) -> Positions:
        return tuple(replicas.index(broker) for broker in brokers)

    partition = PartitionState(
        replicas=everyone,
        isr=at(state.isr),
        elr=at(state.elr),
        last_known_elr=at(state.last_known_elr),
        adding_replicas=at(state.adding),
        removing_replicas=at(state.removing),
        leader=NO_LEADER if state.leader == NO_LEADER else replicas.index(state.leader),
    )
    return Moment(partition, frozenset(place for place, broker in enumerate(replicas) if broker not in down))
