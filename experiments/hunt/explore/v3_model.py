"""A small cluster of `v3` as a transition system: what differs from `model.py`, where the centre is a controller.

The first node is the store. Every request to the store, every response and every watch event is a message in a channel
of its own, so reads, decisions and conditional writes of the controller and of leaders are steps, between which
anything else may come. A request is carried out when it arrives: its latency is the delay of its channel. Commands and
proposals travel between brokers; what the controller sends to itself it receives at once, as in every engine.

- Pauses of procedures, before a conflicting write is repeated, and notifications of ISRs are queues of each broker.
- The session of a dead process may end at any time, that of a running one within the bound on fences.
- Pings, silences and the repetition of messages are left out: no message is lost while both ends run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from experiments.hunt.explore.machines import Outcome
from experiments.hunt.explore.model import Model
from experiments.hunt.explore.states import BOUND_NAMES, CRASHES, FENCES, LOSSY, Action, State, Step
from protocol.ids import STORE, NodeId, is_broker
from protocol.messages.records import MetadataRecord
from protocol.nodes.base_broker import BaseBroker
from protocol.v3.broker.isr_writer import NOTIFY_TIMER
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.node import StoreNode
from protocol.v3.store.sessions import SESSION_PREFIX

_IDS_OF_A_BROKER = 1_000_000
_IDS_OF_AN_INCARNATION = 1_000
"""Connections have other numbers in each incarnation of each broker."""


class V3Model(Model):
    """The transition system of one configuration of `v3`. In the first state all brokers are registered and in the ISR
    of one partition, led by broker 0; one of them is the controller, and nothing is under way.
    """

    CENTRE: ClassVar[NodeId] = STORE
    OWN_QUEUES: ClassVar[tuple[str, ...]] = ("pauses of", "notifications of", "repetitions of")

    def store(self, step: Step) -> StoreNode:
        found = self.machines.nodes[step.parts[0]]
        assert isinstance(found, StoreNode)
        return found

    def records_of(self, state: State) -> Sequence[MetadataRecord]:
        return ()

    def _take(self, step: Step, node: NodeId, outcome: Outcome, exchange: type | None = None) -> None:
        step.parts[self._place(node)] = outcome.local
        step.outcomes.append((node, outcome))
        for receiver, number in outcome.sends:
            if receiver == STORE or is_broker(receiver):
                self._push(step, node, receiver, number)
        if node == STORE:
            for timer in self.store(step).work_timers:
                self._take(step, STORE, self.machines.fire(step.parts[0], timer))

    def _from_own_queue(self, state: State, place: int, broker: NodeId, node: BaseBroker) -> tuple[Step, Action] | None:
        assert isinstance(node, V3BrokerNode)
        if place == 0:
            return self._fire(state, broker, node.pause_timers[0]) if node.pause_timers else None
        if place == 1:
            return self._fire(state, broker, NOTIFY_TIMER)
        return self._repetition(state, broker, node)

    def _session_expires(self, state: State, broker: NodeId, *, is_dead: bool) -> tuple[Step, Action] | None:
        """The end of a broker's oldest session. That of a former process ends once the present one has its own."""
        sessions = [found for found in self.store(self._open(state)).state.sessions.values() if found.owner == broker]
        is_former = is_dead or len(sessions) > 1
        if not sessions or not (is_former or state[self._first_bound + FENCES]):
            return None
        oldest = min(found.session_id for found in sessions)
        step, _ = self._fire(state, STORE, f"{SESSION_PREFIX}{oldest}", None if is_former else FENCES)
        return step, ("expire", broker, oldest)

    def _restart(self, state: State, broker: NodeId) -> tuple[Step, Action] | None:
        step = self._open(state)
        left = {bound: step.parts[self._first_bound + bound] for bound in (LOSSY, CRASHES)}
        crashed = sum(max(0, getattr(self.bounds, BOUND_NAMES[bound])) - count for bound, count in left.items())
        first_id = (1 + broker) * _IDS_OF_A_BROKER + crashed * _IDS_OF_AN_INCARNATION
        self._take(step, broker, self.machines.start(step.parts[1 + broker], first_id))
        return step, ("start", broker)

    def _boot(self, min_isr: int) -> State:
        state = self._before_any_start(self.machines.new_store())
        for broker in self._brokers:
            state = self._settled(self._booted(state, self._restart(state, broker)))
        return self._settled(self._booted(state, self._create_topic(state, min_isr)))

    def _active_controller(self, step: Step) -> NodeId:
        nodes = ((broker, self.broker(step, broker)) for broker in self._brokers)
        return next(b for b, node in nodes if isinstance(node, V3BrokerNode) and node.controller.term is not None)
