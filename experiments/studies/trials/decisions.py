"""The controller's decisions about one partition, without the cluster: the protocol's own functions, each asked once.

A :class:`View` is what the controller knows of a partition: its recorded state and which of its replicas' brokers are
active. An event of a broker, a proposal of the leader or the result of a recovery leads to another view. The way there
is the one of a controller: `protocol/controller` decides on records, and their replay is the new state. The replicas
are numbered by their place in the assignment and epochs are left out, so that there are few views (some hundred with
three replicas), and each transition is decided once per process; later ones are a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from experiments.engines.admin_requests import reassign
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import TOPIC
from experiments.studies.failures.transitions import set_of
from experiments.studies.trials.setting import cluster_spec
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.controller import alter_partition, brokers
from protocol.controller.context import ControllerState
from protocol.controller.partition_change import Election
from protocol.controller.reassignments import alter_partition_reassignments
from protocol.controller.recovery_decisions import strategy_query
from protocol.ids import NO_EPOCH, NO_LEADER, BrokerId, TopicIdPartition
from protocol.messages.control import BrokerState, PartitionIsrProposal
from protocol.messages.records import ConfigRecord, MetadataRecord, RegisterBrokerRecord, TopicRecord
from protocol.messages.recovery import RecoveryMode, ReplicaAnswer
from protocol.metadata.partition import LeaderRecoveryState, PartitionState
from protocol.recovery.task import best

TOPIC_ID = "T"
_KEY = TopicIdPartition(TOPIC_ID, 0)
_Event = Callable[[ControllerState, int], Sequence[MetadataRecord]]


def _epoch(state: ControllerState, broker: BrokerId) -> int:
    return state.image.brokers[broker].broker_epoch


def _shut_down(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    return [*brokers.begin_controlled_shutdown(state, broker, _epoch(state, broker))]


def _register(state: ControllerState, broker: BrokerId, previous_epoch: int) -> list[MetadataRecord]:
    return brokers.register(state, broker, "next", previous_epoch, None)


def _elected(state: ControllerState, winner: int) -> list[MetadataRecord]:
    record = state.change(_KEY, Election.ONLINE, designated_leader=winner)
    return [] if record is None else [record]


SHUT_DOWN, FENCE, REGISTER_CLEAN, REGISTER_UNCLEAN, UNFENCE = range(5)
_EVENTS: tuple[_Event, ...] = (
    _shut_down,
    lambda state, broker: brokers.fence(state, broker, _epoch(state, broker)),
    lambda state, broker: _register(state, broker, _epoch(state, broker)),
    lambda state, broker: _register(state, broker, NO_EPOCH),
    lambda state, broker: brokers.unfence(state, broker, _epoch(state, broker)),
)
"""What the controller records when something happens to a broker, by the constants above."""


class View:
    """`state`: as the controller has it. The others follow: `leader` (-1: none), `in_sync`: the size of the ISR, 0
    without a leader; `refuses`: it is below min ISR; `is_whole`: all replicas are in the ISR and nothing is remembered.
    Sets of replicas are integers, bit p for place p: `isr`, `active`, and `asked`: those that a recovery queries, 0 if
    none is called for; `required` of them have to answer. The views that events lead to, as far as they were asked for:
    `after` by event and replica, `with_isr` by ISR, `recovered` by the winner, `moved` by target and whether its new
    broker is active; `winners` by the order of the logs."""

    __slots__ = (
        "active",
        "after",
        "asked",
        "in_sync",
        "is_whole",
        "isr",
        "leader",
        "moved",
        "recovered",
        "recovering",
        "refuses",
        "required",
        "state",
        "winners",
        "with_isr",
    )

    def __init__(self, state: PartitionState, active: int, min_isr: int, places: int) -> None:
        self.state = state
        self.leader: int = state.leader
        self.isr, self.active = set_of(state.isr), active
        self.in_sync = 0 if state.leader == NO_LEADER else len(state.isr)
        self.refuses = self.in_sync < min_isr
        self.recovering = state.leader_recovery_state is LeaderRecoveryState.RECOVERING
        is_plain = not state.elr and not state.last_known_elr and not self.recovering
        self.is_whole = self.in_sync == active.bit_count() == len(state.replicas) and is_plain
        self.asked = 0
        self.required: tuple[int, ...] = ()
        self.after: list[View | None] = [None] * (len(_EVENTS) * places)
        self.with_isr: dict[int, View] = {}
        self.recovered: dict[int, View] = {}
        self.moved: dict[tuple[tuple[int, ...], bool], View] = {}
        self.winners: dict[tuple[int, ...], int] = {}


class Decisions:
    """The views of the partitions in a cell that have so many replicas and that min ISR. `moves`: replicas move, for
    which there is one more of the `places`."""

    def __init__(self, params: CellParameters, replicas: int, min_isr: int, moves: bool = False) -> None:
        self._config = cluster_spec(params, 0).config
        assigned = tuple(range(replicas))
        self.places = replicas + moves
        self._replicas = tuple(range(self.places))
        self._min_isr, self._bound = min_isr, min(min_isr, replicas)
        self._views: dict[tuple[PartitionState, int], View] = {}
        state = PartitionState(replicas=assigned, isr=assigned, leader=0)
        self.whole = self._view(self._loaded(state, set_of(assigned)))

    def after(self, view: View, event: int, replica: int) -> View:
        """The view after an event of the broker of a replica."""
        place = event * self.places + replica
        found = view.after[place]
        if found is None:
            found = view.after[place] = self._decided(view, lambda state: _EVENTS[event](state, replica))
        return found

    def with_isr(self, view: View, isr: int) -> View:
        """The view after the leader has proposed this ISR, as one that has recovered."""
        found = view.with_isr.get(isr)
        if found is None:
            members = tuple(place for place in self._replicas if isr >> place & 1)
            found = view.with_isr[isr] = self._decided(view, lambda state: self._proposed(state, members))
        return found

    def recovered(self, view: View, logs: Sequence[int]) -> View:
        """The view after a recovery of replicas with these ends of their logs, of which the order alone counts."""
        ranks = sorted(set(logs))
        order = tuple([ranks.index(each) for each in logs])
        winner = view.winners.get(order, -1)
        if winner < 0:
            winner = view.winners[order] = self._winner(view, order)
        found = view.recovered.get(winner)
        if found is None:
            found = view.recovered[winner] = self._decided(view, lambda state: _elected(state, winner))
        return found

    def moved(self, view: View, target: tuple[int, ...], is_active: bool) -> View:
        """The view after a reassignment to the `target`, one of whose places had no replica; `is_active`: the broker
        that it has now is active. The state stays as it is where the controller refuses."""
        found = view.moved.get((target, is_active))
        if found is None:
            (joining,) = set(target).difference(view.state.replicas)
            active = view.active & ~(1 << joining) | is_active << joining
            request = reassign(TOPIC, 0, target)
            found = self._decided(view, lambda state: alter_partition_reassignments(state, request).records, active)
            view.moved[target, is_active] = found
        return found

    def _decided(
        self, view: View, records: Callable[[ControllerState], Sequence[MetadataRecord]], active: int | None = None
    ) -> View:
        controller = self._loaded(view.state, view.active if active is None else active)
        for record in records(controller):
            controller.replay(record)
        return self._view(controller)

    def _loaded(self, state: PartitionState, active: int) -> ControllerState:
        """A controller that knows the partition alone."""
        controller = ControllerState(self._config, Random(0))
        for broker in self._replicas:
            offset = controller.image.next_offset
            controller.replay(
                RegisterBrokerRecord.unchecked(
                    broker_id=broker, broker_epoch=offset, incarnation_id="present", fenced=not active >> broker & 1
                )
            )
        controller.replay(TopicRecord.unchecked(name=TOPIC, topic_id=TOPIC_ID))
        controller.replay(ConfigRecord.unchecked(topic_id=TOPIC_ID, name=MIN_INSYNC_REPLICAS, value=str(self._min_isr)))
        controller.replay(state.to_record(TOPIC_ID, 0))
        return controller

    def _proposed(self, state: ControllerState, isr: tuple[int, ...]) -> list[MetadataRecord]:
        partition = state.image.partition(_KEY)
        assert partition is not None
        proposal = PartitionIsrProposal.unchecked(
            topic_id=TOPIC_ID,
            partition_id=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr=tuple(BrokerState.unchecked(broker_id=broker, broker_epoch=NO_EPOCH) for broker in isr),
            leader_recovery_state=int(LeaderRecoveryState.RECOVERED),
        )
        record = alter_partition.propose(state, proposal)
        return [] if record is None else [record]

    def _view(self, controller: ControllerState) -> View:
        image = controller.image
        found = image.partition(_KEY)
        assert found is not None
        state = replace(found, leader_epoch=0, partition_epoch=0)
        active = set_of([broker for broker in self._replicas if image.is_active(broker)])
        view = self._views.get((state, active))
        if view is None:
            view = self._views[state, active] = View(state, active, self._bound, self.places)
            query = strategy_query(image, _KEY, state)
            if query is not None:
                view.asked = set_of([each.broker_id for each in query.replicas])
                view.required = tuple(query.required) if query.mode is RecoveryMode.BALANCED else ()
        return view

    def _winner(self, view: View, logs: Sequence[int]) -> int:
        """The replica that a recovery elects, where a longer log is one of a later leader, too."""
        answers = [
            ReplicaAnswer.unchecked(
                broker_id=place, broker_epoch=0, last_written_leader_epoch=logs[place], log_end_offset=logs[place]
            )
            for place in self._replicas
            if view.asked >> place & 1
        ]
        return best(answers, view.state.replicas, view.required).leader
