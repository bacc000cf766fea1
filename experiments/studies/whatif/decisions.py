"""What the controller decides for one partition when brokers fail, stop and return, and who then holds what.

Every decision is one of `protocol/controller`: a controller's state is built that has this partition and these brokers,
the event is handled there as by a controller node, and its records are replayed. Nothing is decided here.

What a controller does not know is followed beside it: the *holders*, the replicas whose logs have every record that was
acknowledged with acks=all. The rules are those of the brokers: a record is acknowledged while the ISR has min ISR
members, and all of them have it (KIP-966, E1-E6). So after a write the holders are the ISR. The course that is followed
is the worst one: there is a write whenever one is possible, which leaves all replicas outside of the ISR behind.

A failure is a crash of a broker whose session then expires. It may lose the page cache: the records on that broker that
were not flushed, which are all of them in the worst case, since Kafka does not flush by itself. It is then no holder
any more. Losing the disk is the same. Afterwards the failed brokers return, as after an unclean shutdown, in any order,
and nothing else fails. Acknowledged records *may be lost* if some course leads to a leader that is no holder, or to a
partition without a holder. `losses` is the least number of failed brokers whose page cache has to be lost for that, 0
where the election alone does it.

Brokers are the positions 0..R-1 in the assignment: decisions depend on the order of the assignment, not on ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from protocol.config import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE, ClusterConfig
from protocol.controller import brokers
from protocol.controller.context import ControllerState
from protocol.controller.partition_change import Election
from protocol.controller.recovery_decisions import strategy_query
from protocol.ids import NO_EPOCH, NO_LEADER, TopicIdPartition
from protocol.messages.records import BrokerRegistrationChangeRecord, ConfigRecord, MetadataRecord, TopicRecord
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState

_KEY: Final = TopicIdPartition("topic", 0)
Positions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """The rules of a cluster, and the configs of a topic: min ISR, and whether unclean elections are enabled."""

    cluster: ClusterConfig
    min_isr: int
    unclean_election: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """A partition as the controller has recorded it, without epochs, and the positions of the brokers that are up."""

    partition: PartitionState
    up: frozenset[int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a partition. `losses`: see the module; None where no course loses acknowledged records."""

    writable: bool
    leaderless: bool
    losses: int | None = None


_Course = tuple[Moment, frozenset[int]]
"""A moment and the holders."""
_Costs = dict[_Course, int]
"""The courses that are possible, each with the least number of page caches that were lost on the way."""


@dataclass(slots=True)
class Decider:
    """The decisions under one cluster's rules and one topic's configs, each made once."""

    settings: Settings
    _moments: dict[tuple[str, Moment, int], Moment] = field(default_factory=dict)
    _image: MetadataImage = field(init=False)

    def __post_init__(self) -> None:
        self._image = _controller(self.settings, None).image

    def is_writable(self, moment: Moment) -> bool:
        """Whether a record with acks=all is accepted: the partition has a leader and min ISR members in sync."""
        partition = moment.partition
        min_isr = self._image.min_isr(_KEY.topic_id, MIN_INSYNC_REPLICAS, len(partition.replicas))
        return partition.leader != NO_LEADER and len(partition.isr) >= min_isr

    def outcome(self, start: Moment, failed: Positions, at_once: bool) -> Outcome:
        """After the failures of these positions. One after the other in this order, with writes between; or `at_once`,
        where the sessions expire in any order and the worst of these is the outcome."""
        holders = frozenset(start.partition.isr + start.partition.elr)
        courses: _Costs = {(start, holders): 0}
        if at_once:
            ends, courses = self._at_once(courses, failed)
        else:
            for broker in failed:
                courses = self._written(self._failed(courses, broker))
            ends = {moment for moment, _ in courses}
        return Outcome(
            writable=all(self.is_writable(moment) for moment in ends),
            leaderless=any(moment.partition.leader == NO_LEADER for moment in ends),
            losses=self._losses_of(courses, frozenset(failed)),
        )

    def restarted(self, start: Moment, broker: int) -> tuple[Outcome, Moment]:
        """While the broker is down after a controlled shutdown, and the moment when it is back and in sync."""
        down = self._after("stop", start, broker)
        return self.state_of(down), self._after("rejoin", down, broker)

    def state_of(self, moment: Moment) -> Outcome:
        """The outcome where nothing fails."""
        return Outcome(self.is_writable(moment), moment.partition.leader == NO_LEADER)

    # -- courses -------------------------------------------------------------------------------------------------------

    def _at_once(self, courses: _Costs, failed: Positions) -> tuple[set[Moment], _Costs]:
        """The moments and courses after the failures in every order."""
        level: dict[frozenset[int], _Costs] = {frozenset(failed): courses}
        for _ in failed:
            following: dict[frozenset[int], _Costs] = {}
            for left, found in level.items():
                for broker in left:
                    _merge(following.setdefault(left - {broker}, {}), self._failed(found, broker))
            level = following
        last = self._written(level[frozenset()])
        return {moment for moment, _ in last}, last

    def _failed(self, courses: _Costs, broker: int) -> _Costs:
        """With and without the loss of the broker's page cache."""
        found: _Costs = {}
        for (moment, holders), cost in courses.items():
            after = self._after("fail", moment, broker)
            _merge(found, {(after, holders): cost})
            if broker in moment.up:
                _merge(found, {(after, holders - {broker}): cost + 1})
        return self._recovered(found)

    def _written(self, courses: _Costs) -> _Costs:
        """After a write where one is possible and the leader is a holder; of others the loss is counted."""
        found: _Costs = {}
        for (moment, holders), cost in courses.items():
            writes = moment.partition.leader in holders and self.is_writable(moment)
            _merge(found, {(moment, frozenset(moment.partition.isr) if writes else holders): cost})
        return found

    def _losses_of(self, courses: _Costs, failed: frozenset[int]) -> int | None:
        """The least cost of a loss in the courses, and after each return of failed brokers."""
        level = {failed: courses}
        costs = []
        while level:
            following: dict[frozenset[int], _Costs] = {}
            for left, found in level.items():
                costs += [cost for course, cost in found.items() if _is_loss(*course)]
                sound = {course: cost for course, cost in found.items() if not _is_loss(*course)}
                for broker in left:
                    back = {
                        (self._after("return", moment, broker), held): cost for (moment, held), cost in sound.items()
                    }
                    _merge(following.setdefault(left - {broker}, {}), self._written(self._recovered(back)))
            level = following
        return min(costs, default=None)

    def _recovered(self, courses: _Costs) -> _Costs:
        """With the leader that an unclean recovery finds: a holder, which has the longest log, where one answers."""
        found: _Costs = {}
        for (moment, holders), cost in courses.items():
            state = _controller(self.settings, moment)
            query = strategy_query(state.image, _KEY, moment.partition)
            if query is not None:
                answering = [broker.broker_id for broker in query.replicas]
                winner = next((broker for broker in answering if broker in holders), answering[0])
                change = state.change(_KEY, Election.ONLINE, designated_leader=winner)
                moment = _replayed(state, [change] if change else [], moment.up)
            _merge(found, {(moment, holders): cost})
        return found

    # -- events --------------------------------------------------------------------------------------------------------

    def _after(self, event: str, moment: Moment, broker: int) -> Moment:
        key = (event, moment, broker)
        if key not in self._moments:
            self._moments[key] = _decided(self.settings, event, moment, broker)
        return self._moments[key]


def _merge(into: _Costs, found: _Costs) -> None:
    for course, cost in found.items():
        into[course] = min(cost, into.get(course, cost))


def _is_loss(moment: Moment, holders: frozenset[int]) -> bool:
    """Whether no replica holds all records, or one that does not leads. Removed replicas are deleted."""
    held = holders.intersection(moment.partition.replicas)
    return not held or moment.partition.leader not in {NO_LEADER, *held}


def _decided(settings: Settings, event: str, moment: Moment, broker: int) -> Moment:
    """The moment after an event, which the controller handles as it does in a cluster."""
    if (broker in moment.up) == (event in ("return", "rejoin")):
        return moment
    if broker not in moment.partition.replicas:  # a reassignment has removed it
        return Moment(moment.partition, moment.up ^ {broker})
    state = _controller(settings, moment)
    records: Iterable[MetadataRecord]
    if event in ("fail", "stop"):
        up = moment.up - {broker}
        if event == "stop":
            _replay(state, brokers.begin_controlled_shutdown(state, broker, _epoch(state, broker)))
        records = brokers.fence(state, broker, _epoch(state, broker))
    else:
        up = moment.up | {broker}
        previous = NO_EPOCH if event == "return" else _epoch(state, broker)
        _replay(state, brokers.register(state, broker, "next", previous, None))
        _replay(state, brokers.unfence(state, broker, _epoch(state, broker)))
        records = _joined(state, broker) if event == "rejoin" else ()
    return _replayed(state, records, up)


def _joined(state: ControllerState, broker: int) -> list[MetadataRecord]:
    """The replica has caught up with its leader, if there is one, which has it join the ISR."""
    partition = state.image.partition(_KEY)
    assert partition is not None
    if partition.leader == NO_LEADER or broker in partition.isr:
        return []
    change = state.change(_KEY, target_isr=(*partition.isr, broker))
    return [] if change is None else [change]


def _epoch(state: ControllerState, broker: int) -> int:
    epoch = state.image.broker_epoch(broker)
    assert epoch is not None
    return epoch


def _controller(settings: Settings, moment: Moment | None) -> ControllerState:
    """A controller that knows the topic, and the partition and its brokers at this moment."""
    state = ControllerState(settings.cluster, Random(0))
    topic = TopicRecord.unchecked(name="topic", topic_id=_KEY.topic_id)
    configs = {
        MIN_INSYNC_REPLICAS: str(settings.min_isr),
        UNCLEAN_LEADER_ELECTION_ENABLE: str(settings.unclean_election).lower(),
    }
    _replay(
        state, [topic, *(ConfigRecord.unchecked(topic_id=_KEY.topic_id, name=n, value=v) for n, v in configs.items())]
    )
    if moment is not None:
        for broker in moment.partition.replicas:
            _replay(state, brokers.register(state, broker, "first", NO_EPOCH, None))
            if broker in moment.up:
                epoch = _epoch(state, broker)
                change = BrokerRegistrationChangeRecord.unchecked(broker_id=broker, broker_epoch=epoch, fenced=False)
                _replay(state, [change])
        _replay(state, [moment.partition.to_record(*_KEY)])
    return state


def _replay(state: ControllerState, records: Iterable[MetadataRecord]) -> None:
    for record in records:
        state.replay(record)


def _replayed(state: ControllerState, records: Iterable[MetadataRecord], up: frozenset[int]) -> Moment:
    _replay(state, records)
    partition = state.image.partition(_KEY)
    assert partition is not None
    return Moment(replace(partition, leader_epoch=0, partition_epoch=0, first_leader_epoch=0), up)
