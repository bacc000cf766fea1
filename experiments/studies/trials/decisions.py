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

from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import TOPIC
from experiments.studies.trials.setting import cluster_spec
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.controller import alter_partition, brokers
from protocol.controller.context import ControllerState
from protocol.controller.partition_change import Election
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


EVENTS: dict[str, _Event] = {
    "shut down": _shut_down,
    "fence": lambda state, broker: brokers.fence(state, broker, _epoch(state, broker)),
    "register clean": lambda state, broker: _register(state, broker, _epoch(state, broker)),
    "register unclean": lambda state, broker: _register(state, broker, NO_EPOCH),
    "unfence": lambda state, broker: brokers.unfence(state, broker, _epoch(state, broker)),
}
"""What the controller records when something happens to a broker."""


class View:
    """`state`, `active`: of each replica, by its place in the assignment. The others follow: `leader` (-1: none), `isr`
    as a set, `in_sync`: its size, 0 without a leader; `refuses`: it is below min ISR; `is_whole`: all replicas are in
    the ISR and nothing is remembered; `asked`: the replicas that a recovery queries, if one is called for, and `rank`:
    elects one of them by the ends of their logs. `next`: the views that events lead to, as far as they were asked
    for."""

    __slots__ = (
        "active",
        "asked",
        "in_sync",
        "is_whole",
        "isr",
        "leader",
        "next",
        "rank",
        "recovering",
        "refuses",
        "state",
    )

    def __init__(self, state: PartitionState, active: tuple[bool, ...], min_isr: int) -> None:
        self.state, self.active = state, active
        self.leader, self.isr = state.leader, frozenset(state.isr)
        self.in_sync = 0 if state.leader == NO_LEADER else len(state.isr)
        self.refuses = self.in_sync < min_isr
        self.recovering = state.leader_recovery_state is LeaderRecoveryState.RECOVERING
        is_plain = not state.elr and not state.last_known_elr and not self.recovering
        self.is_whole = self.in_sync == len(active) and is_plain and all(active)
        self.asked: tuple[int, ...] = ()
        self.rank: Callable[[Sequence[int]], int] = lambda logs: NO_LEADER
        self.next: dict[tuple[str, int | tuple[int, ...]], View] = {}


class Decisions:
    """The views of a partition in a cell."""

    def __init__(self, params: CellParameters) -> None:
        self._config = cluster_spec(params, 0).config
        self._replicas = tuple(range(params.replication_factor))
        self._min_isr = params.min_insync_replicas
        self._bound = min(params.min_insync_replicas, params.replication_factor)
        self._views: dict[tuple[PartitionState, tuple[bool, ...]], View] = {}
        state = PartitionState(replicas=self._replicas, isr=self._replicas, leader=0)
        self.whole = self._view(self._loaded(state, (True,) * len(self._replicas)))

    def after(self, view: View, event: str, replica: int) -> View:
        """The view after an event (`EVENTS`) of the broker of a replica."""
        found = view.next.get((event, replica))
        if found is None:
            found = view.next[event, replica] = self._decided(view, lambda state: EVENTS[event](state, replica))
        return found

    def with_isr(self, view: View, isr: tuple[int, ...]) -> View:
        """The view after the leader has proposed this ISR, as one that has recovered."""
        found = view.next.get(("isr", isr))
        if found is None:
            found = view.next["isr", isr] = self._decided(view, lambda state: self._proposed(state, isr))
        return found

    def recovered(self, view: View, winner: int) -> View:
        """The view after a recovery that `winner` has won."""

        def elected(state: ControllerState) -> list[MetadataRecord]:
            record = state.change(_KEY, Election.ONLINE, designated_leader=winner)
            return [] if record is None else [record]

        found = view.next.get(("recovered", winner))
        if found is None:
            found = view.next["recovered", winner] = self._decided(view, elected)
        return found

    def _decided(self, view: View, records: Callable[[ControllerState], Sequence[MetadataRecord]]) -> View:
        controller = self._loaded(view.state, view.active)
        for record in records(controller):
            controller.replay(record)
        return self._view(controller)

    def _loaded(self, state: PartitionState, active: tuple[bool, ...]) -> ControllerState:
        """A controller that knows the partition alone."""
        controller = ControllerState(self._config, Random(0))
        for broker, is_active in enumerate(active):
            offset = controller.image.next_offset
            controller.replay(
                RegisterBrokerRecord.unchecked(
                    broker_id=broker, broker_epoch=offset, incarnation_id="present", fenced=not is_active
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
        active = tuple(image.is_active(broker) for broker in self._replicas)
        view = self._views.get((state, active))
        if view is None:
            view = self._views[state, active] = View(state, active, self._bound)
            query = strategy_query(image, _KEY, state)
            if query is not None:
                view.asked = tuple(each.broker_id for each in query.replicas)
                required = query.required if query.mode is RecoveryMode.BALANCED else ()
                view.rank = lambda logs: self._winner(view.asked, required, logs)
        return view

    def _winner(self, asked: tuple[int, ...], required: tuple[int, ...], logs: Sequence[int]) -> int:
        """The replica that a recovery elects, where a longer log is one of a later leader, too."""
        answers = [
            ReplicaAnswer.unchecked(
                broker_id=broker, broker_epoch=0, last_written_leader_epoch=logs[broker], log_end_offset=logs[broker]
            )
            for broker in asked
        ]
        return best(answers, self._replicas, required).leader
