"""The cluster as a transition system: its states (`states.py`), and the actions that lead from one to the next.

Every action is an input to one node, or a short exchange between two that nothing can come between. What is abstracted,
and why no violation is missed by that, is explained in docs/explore.md.

- A channel is a queue per pair of nodes and direction; its first message may arrive at any time. A crash loses what was
  on its way to the broker, and not what it has sent.
- Clients: the next record may arrive at any broker that takes itself for the leader, with acks=all, once.
- Metadata: any broker may get what the metadata log has behind its offset, up to the end of any batch.
- Registration, and the heartbeat that unfences, are exchanges; other heartbeats change nothing and are left out.
- A session may expire at any time if the broker is dead, and within a bound if it runs.
- A leader may find a follower lagging or silent at any time, within a bound; a fetch is repeated where that would help.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import ClassVar

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.disk import SimStorage
from experiments.faults.schema import Bounds
from experiments.hunt.explore.checker import StepChecker
from experiments.hunt.explore.machines import AnyNode, DeadBroker, Local, Machines, Outcome, message_of
from experiments.hunt.explore.states import (
    BOUND_NAMES,
    CRASHES,
    DELAYS,
    FENCES,
    HELD,
    LOSSY,
    RECORDS,
    RETRIES,
    SHRINKS,
    SHUTDOWNS,
    Action,
    Channels,
    State,
    Step,
    Successor,
)
from experiments.hunt.explore.values import VALUES
from protocol.broker.fetcher import FETCH_PREFIX
from protocol.broker.isr_manager import ALTER_PARTITION_TIMER, LAG_PREFIX, SILENT_PREFIX
from protocol.broker.leader import ISR_RETRY_TIMER
from protocol.broker.lifecycle import HEARTBEAT_TIMER, SHUTDOWN_TIMER
from protocol.config import ClusterConfig
from protocol.errors import ProtocolInvariantError
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NO_EPOCH, NodeId, Offset, is_broker, node_name
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.data import FetchResponse, ProduceRequest
from protocol.messages.records import MetadataRecord
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.broker import BrokerNode
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode
from protocol.v3.store.node import StoreNode

TOPIC = "t"
CONTROLLER = FIRST_CONTROLLER


class Model:
    """The transition system of one configuration. `first` is the state in which the search begins: all brokers are up,
    unfenced and in the ISR of one partition, led by broker 0, and nothing is under way.
    """

    CENTRE: ClassVar[NodeId] = CONTROLLER
    OWN_QUEUES: ClassVar[tuple[str, ...]] = ("metadata for", "heartbeats of", "repetitions of")
    """The node that all brokers are linked with, and the queues of each broker beside those of its links."""

    def __init__(self, config: ClusterConfig, brokers: int, min_isr: int, bounds: Bounds) -> None:
        self.spec = ClusterSpec(brokers, 1, config)
        self.bounds = bounds
        self.machines = Machines(self.spec)
        self.checker = StepChecker(self.spec, self.machines)
        self.channels = Channels()
        self._brokers = range(brokers)
        pairs = [(a, b) for a in self._brokers for b in self._brokers if a != b]
        control = [(b, self.CENTRE) for b in self._brokers] + [(self.CENTRE, b) for b in self._brokers]
        self.links: tuple[tuple[NodeId, NodeId], ...] = (*pairs, *control, *self._more_links())
        self._link_number = {link: number for number, link in enumerate(self.links)}
        self._nodes = 1 + brokers + len(self._more_nodes())
        self._queues = len(self.links) + len(self.OWN_QUEUES) * brokers
        self._first_bound = self._nodes + len(self.links)
        self.held_place = self._first_bound + HELD
        self._may_help = cache(self._repetition_may_help)
        self.boot: list[Successor] = []
        self.first = self._boot(min_isr)

    def _more_nodes(self) -> Sequence[AnyNode]:
        """The nodes behind the brokers, as they are at first."""
        return ()

    def _more_links(self) -> Sequence[tuple[NodeId, NodeId]]:
        return ()

    def _topic_configs(self, min_isr: int) -> dict[str, str | int]:
        return {"min.insync.replicas": min_isr}

    # -- parts of a state ----------------------------------------------------------------------------------------------

    def _open(self, state: State, spent: int | None = None) -> Step:
        """A step from a state, which uses up one of what the bound `spent` allows."""
        step = Step(list(state[:-1]))
        if spent is not None:
            step.parts[self._first_bound + spent] -= 1
        return step

    def _close(self, before: State, step: Step, action: Action) -> Successor | None:
        """The step as a successor; None where it has changed nothing."""
        parts = tuple(step.parts)
        if parts == before[:-1]:
            return None
        nodes, suite_state, wrong = self._nodes, before[-1], ""
        if step.crash is not None or step.outcomes:
            old, new = before[:nodes], parts[:nodes]
            suite_state, wrong = self.checker.check(suite_state, old, new, step.outcomes, step.crash, step.now_ms)
        return Successor(action, (*parts, suite_state), wrong, tuple(step.outcomes))

    def broker(self, step: Step, broker: NodeId) -> BaseBroker | None:
        """The broker as it runs, None while it is dead."""
        found = self.machines.nodes[step.parts[1 + broker]]
        return found if isinstance(found, BaseBroker) else None

    def controller(self, step: Step) -> ControllerNode:
        found = self.machines.nodes[step.parts[0]]
        assert isinstance(found, ControllerNode)
        return found

    def records_of(self, state: State) -> Sequence[MetadataRecord]:
        return self.controller(self._open(state)).records

    # -- inputs and what follows from them -----------------------------------------------------------------------------

    def _place(self, node: NodeId) -> int:
        return 0 if node == self.CENTRE else 1 + node

    def _take(self, step: Step, node: NodeId, outcome: Outcome, exchange: type | None = None) -> None:
        """Carries out what an input came to. A request of the type `exchange` reaches the controller at once."""
        step.parts[self._place(node)] = outcome.local
        step.outcomes.append((node, outcome))
        for receiver, number in outcome.sends:
            kind = type(message_of(number))
            if kind in _ENDS_OF_EXCHANGES:
                self._receive(step, receiver, node, number)
            elif receiver == CONTROLLER and kind is exchange:
                self._receive(step, CONTROLLER, node, number)
            elif kind is AlterPartitionRequest or is_broker(receiver):
                self._push(step, node, receiver, number)

    def _receive(self, step: Step, node: NodeId, sender: NodeId, number: int) -> None:
        self._take(step, node, self.machines.receive(step.parts[self._place(node)], sender, number))

    def _push(self, step: Step, sender: NodeId, receiver: NodeId, number: int) -> None:
        if is_broker(receiver) and self.broker(step, receiver) is None:
            return
        place = self._nodes + self._link_number[sender, receiver]
        step.parts[place] = self.channels.with_last(step.parts[place], number)

    # -- actions -------------------------------------------------------------------------------------------------------

    def successors(self, state: State) -> Iterator[Successor]:
        """Every step that can be taken, in a fixed order.

        Without a bound on delays all queues move in every order. With one, the first queue in which anything waits
        moves before the others do, unless it is held up, which is a step of its own; one that is held up may move at
        any time, and is not held up any more.
        """
        if self.bounds.delays < 0:
            yield from self._progress(state)
        else:
            yield from self._ordered_progress(state)
        yield from self._environment(state)

    def _ordered_progress(self, state: State) -> Iterator[Successor]:
        held, first = state[self.held_place], True
        for queue in range(self._queues):
            is_held = held >> queue & 1
            if not (first or is_held):
                if not held >> queue:
                    return
                continue
            for successor in self._from_queue(state, queue):
                if is_held:
                    yield self._changed(successor._replace(action=(*successor.action, LATE)), HELD, -(1 << queue))
                    continue
                first = False
                yield successor
                if state[self._first_bound + DELAYS]:
                    now_held = self._changed(Successor(("hold", queue), state, "", ()), HELD, 1 << queue)
                    yield self._changed(now_held, DELAYS, -1)

    def _changed(self, successor: Successor, bound: int, change: int) -> Successor:
        """The same step, with another account of what may still be done."""
        place, state = self._first_bound + bound, successor.state
        return successor._replace(state=(*state[:place], state[place] + change, *state[place + 1 :]))

    def queue_name(self, queue: int) -> str:
        """What waits in a queue, in words."""
        if queue < len(self.links):
            source, target = self.links[queue]
            return f"what {node_name(source)} sends to {node_name(target)}"
        place, broker = divmod(queue - len(self.links), len(self._brokers))
        return f"{self.OWN_QUEUES[place]} broker {broker}"

    def _progress(self, state: State) -> Iterator[Successor]:
        """What happens by itself sooner or later."""
        return chain.from_iterable(self._from_queue(state, queue) for queue in range(self._queues))

    def _from_queue(self, state: State, queue: int) -> Iterator[Successor]:
        """What a queue's next move leads to, if anything waits in it."""
        if queue < len(self.links):
            yield from self._delivery(state, queue)
            return
        place, broker = divmod(queue - len(self.links), len(self._brokers))
        node = self.machines.nodes[state[1 + broker]]
        if isinstance(node, BaseBroker):
            yield from self._some(state, self._from_own_queue(state, place, broker, node))

    def _from_own_queue(self, state: State, place: int, broker: NodeId, node: BaseBroker) -> tuple[Step, Action] | None:
        assert isinstance(node, BrokerNode)
        step = (self._metadata, self._heartbeat, self._repetition)[place]
        return step(state, broker, node)

    def _environment(self, state: State) -> Iterator[Successor]:
        """What clients, disks and time may do at any moment."""
        step = self._open(state)
        for broker in self._brokers:
            node = self.broker(step, broker)
            if node is None:
                yield from self._some(state, self._restart(state, broker))
            else:
                yield from self._crashes(state, step, broker, node)
                replica = next(iter(node.context.replicas.values()), None)
                if replica is not None and replica.leadership is not None:
                    yield from self._some(state, self._produce(state, broker))
                    yield from self._leader_timers(state, step, broker, node)
            yield from self._some(state, self._session_expires(state, broker, is_dead=node is None))

    def _some(self, state: State, done: tuple[Step, Action] | None) -> Iterator[Successor]:
        successor = None if done is None else self._close(state, *done)
        if successor is not None:
            yield successor

    def _delivery(self, state: State, number: int) -> Iterator[Successor]:
        place = self._nodes + number
        if state[place]:
            link, step = self.links[number], self._open(state)
            message, step.parts[place] = self.channels.first_of(state[place])
            self._receive(step, link[1], link[0], message)
            yield from self._some(state, (step, ("deliver", *link, message)))

    def _repetition(self, state: State, broker: NodeId, node: BaseBroker) -> tuple[Step, Action] | None:
        """The fetch timer of a follower."""
        replica = next(iter(node.context.replicas.values()), None)
        if replica is None or replica.leadership is not None or not is_broker(leader := replica.leader_id):
            return None
        may_help = self._are_quiet(state, broker, leader) and self._may_help(state[1 + broker], state[1 + leader])
        return self._fire(state, broker, f"{FETCH_PREFIX}{leader}") if may_help else None

    def _fire(self, state: State, node: NodeId, timer: str, bound: int | None = None) -> tuple[Step, Action]:
        step = self._open(state, bound)
        self._take(step, node, self.machines.fire(step.parts[self._place(node)], timer))
        return step, ("fire", node, timer)

    # -- metadata and the controller -----------------------------------------------------------------------------------

    def _metadata(self, state: State, broker: NodeId, node: BrokerNode) -> tuple[Step, Action] | None:
        """The next batch that lets the broker do anything."""
        offset, step = node.context.image.next_offset, self._open(state)
        least = max(offset, node.context.broker_epoch)
        end = next((end for end in self.machines.batch_ends(state[0]) if end > least), None)
        if end is None:
            return None
        self._feed(step, broker, offset, end)
        return step, ("metadata", broker, offset, end)

    def _feed(self, step: Step, broker: NodeId, offset: Offset, end: Offset) -> None:
        """The answer to the broker's fetch of the metadata log: the batches between these offsets."""
        node = self.broker(step, broker)
        assert isinstance(node, BrokerNode)
        message = self.machines.fetched(step.parts[0], offset, end, node.replica.pending_fetch_id or 0)
        self._receive(step, broker, CONTROLLER, message)

    def _heartbeat(self, state: State, broker: NodeId, node: BrokerNode) -> tuple[Step, Action] | None:
        """The heartbeat by which a broker is unfenced."""
        if self.machines.fenced_epoch(state[0], broker) != node.context.broker_epoch:
            return None
        step = self._open(state)
        fired = self.machines.fire(step.parts[1 + broker], HEARTBEAT_TIMER)
        self._take(step, broker, fired, exchange=BrokerHeartbeatRequest)
        unfenced = self.controller(step).state.image.is_active(broker)
        return (step, ("heartbeat", broker)) if unfenced else None

    def _session_expires(self, state: State, broker: NodeId, *, is_dead: bool) -> tuple[Step, Action] | None:
        may_expire = is_dead or state[self._first_bound + FENCES]
        if not may_expire or self.machines.fenced_epoch(state[0], broker) != NO_EPOCH:
            return None
        return self._fire(state, CONTROLLER, f"{SESSION_PREFIX}{broker}", None if is_dead else FENCES)

    # -- crashes and starts --------------------------------------------------------------------------------------------

    def _restart(self, state: State, broker: NodeId) -> tuple[Step, Action] | None:
        """A start with its registration; None while the controller would refuse that."""
        step = self._open(state)
        incarnation = self.controller(step).state.image.next_offset + 1
        outcome = self.machines.start(step.parts[1 + broker], incarnation)
        self._take(step, broker, outcome, exchange=BrokerRegistrationRequest)
        self._feed(step, broker, 0, 0)
        node = self.broker(step, broker)
        return None if node is None or node.context.broker_epoch < 0 else (step, ("start", broker))

    def _crashes(self, state: State, step: Step, broker: NodeId, node: BaseBroker) -> Iterator[Successor]:
        if step.parts[self._first_bound + CRASHES]:
            yield from self._some(state, self._crash(state, broker, Loss("none"), CRASHES))
        if step.parts[self._first_bound + LOSSY]:
            longest = max((replica.log.end_offset for replica in node.context.replicas.values()), default=0)
            for count in range(1, longest + 1):
                yield from self._some(state, self._crash(state, broker, Loss("records", count), LOSSY))
        if step.parts[self._first_bound + SHUTDOWNS]:
            yield from self._some(state, self._shut_down(state, broker))

    def _crash(self, state: State, broker: NodeId, loss: Loss, bound: int) -> tuple[Step, Action]:
        step = self._open(state, bound)
        step.parts[1 + broker] = self.machines.crash(step.parts[1 + broker], loss)
        step.crash = (broker, loss)
        self._lose_what_is_on_its_way_to(step, broker)
        return step, ("crash", broker, loss.count)

    def _shut_down(self, state: State, broker: NodeId) -> tuple[Step, Action]:
        """A broker whose controller has not answered for five minutes goes by itself, in good order."""
        step = self._open(state, SHUTDOWNS)
        command = VALUES.number(ShutdownCommand())
        self._receive(step, broker, FIRST_CONTROLLER, command)
        self._take(step, broker, self.machines.fire(step.parts[1 + broker], SHUTDOWN_TIMER))
        self._lose_what_is_on_its_way_to(step, broker)
        return step, ("shut down", broker)

    def _lose_what_is_on_its_way_to(self, step: Step, broker: NodeId) -> None:
        for number, link in enumerate(self.links):
            if link[1] == broker:
                step.parts[self._nodes + number] = 0

    # -- leaders and followers -----------------------------------------------------------------------------------------

    def _produce(self, state: State, broker: NodeId) -> tuple[Step, Action] | None:
        left = state[self._first_bound + RECORDS]
        if not left:
            return None
        step, record = self._open(state, RECORDS), self.bounds.records - left
        batch = RecordBatch(record_count=1, payload=b"%d" % record)
        request = ProduceRequest(correlation_id=record, topic=TOPIC, partition=0, acks=-1, batch=batch)
        before = step.parts[1 + broker]
        self._receive(step, broker, FIRST_CLIENT, VALUES.number(request))
        return None if step.parts[1 + broker] == before else (step, ("produce", broker, record))

    def _leader_timers(self, state: State, step: Step, broker: NodeId, node: BaseBroker) -> Iterator[Successor]:
        [replica] = node.context.replicas.values()
        leadership = replica.leadership
        assert leadership is not None
        if step.parts[self._first_bound + SHRINKS] and leadership.proposed_isr is None:
            for follower, progress in leadership.followers.items():
                if follower in leadership.isr:
                    prefix = LAG_PREFIX if progress.delayed_fetch is None else SILENT_PREFIX
                    yield from self._some(state, self._fire(state, broker, f"{prefix}{follower}", SHRINKS))
        if step.parts[self._first_bound + RETRIES] and self._are_quiet(state, broker, self.CENTRE):
            timer = ISR_RETRY_TIMER if leadership.proposed_isr is None else ALTER_PARTITION_TIMER
            yield from self._some(state, self._fire(state, broker, timer, RETRIES))

    def _are_quiet(self, state: State, node: NodeId, other: NodeId) -> bool:
        to, back = self._link_number[node, other], self._link_number[other, node]
        return not (state[self._nodes + to] or state[self._nodes + back])

    def _repetition_may_help(self, follower: Local, leader: Local) -> bool:
        """Whether the leader would take what it has refused, or does not know the follower's session."""
        mine, theirs = self.machines.nodes[follower], self.machines.nodes[leader]
        if not isinstance(mine, BaseBroker) or not isinstance(theirs, BaseBroker):
            return False
        [replica] = mine.context.replicas.values()
        led = theirs.context.replicas.get(replica.key)
        if led is None or led.leadership is None or led.leader_epoch != replica.leader_epoch:
            return False
        fired = self.machines.fire(follower, f"{FETCH_PREFIX}{theirs.node_id}")
        return any(self._is_news(leader, mine.node_id, number) for to, number in fired.sends if to == theirs.node_id)

    def _is_news(self, leader: Local, follower: NodeId, message: int) -> bool:
        """Whether a repeated fetch has news for the leader, and is not refused again."""
        heard = self.machines.receive(leader, follower, message)
        answers = [message_of(number) for to, number in heard.sends if to == follower]
        fetched = [part for answer in answers if isinstance(answer, FetchResponse) for part in answer.partitions]
        return (heard.local != leader or bool(answers)) and not any(part.error for part in fetched)

    # -- the first state -----------------------------------------------------------------------------------------------

    def _before_any_start(self, centre: ControllerNode | StoreNode) -> State:
        """The centre has started, the brokers have not, and nothing is under way."""
        centre.start(0)
        nodes = (centre, *[DeadBroker(broker, SimStorage()) for broker in self._brokers], *self._more_nodes())
        bounds = [max(0, getattr(self.bounds, name)) for name in BOUND_NAMES]
        return (*map(self.machines.intern, nodes), *[0] * len(self.links), *bounds, 0, self.checker.first)

    def _boot(self, min_isr: int) -> State:
        """Starts everything, creates the topic, and lets all that is under way arrive."""
        state = self._before_any_start(self.machines.new_controller())
        for broker in self._brokers:
            state = self._booted(state, self._restart(state, broker))
        for broker in self._brokers:
            state = self._settled(state)
            node = self.broker(self._open(state), broker)
            assert isinstance(node, BrokerNode)
            state = self._booted(state, self._heartbeat(state, broker, node))
        return self._settled(self._booted(state, self._create_topic(state, min_isr)))

    def _active_controller(self, step: Step) -> NodeId:
        return CONTROLLER

    def _create_topic(self, state: State, min_isr: int) -> tuple[Step, Action]:
        step = self._open(state)
        request = create_topic(TOPIC, [tuple(self._brokers)], self._topic_configs(min_isr))
        self._receive(step, self._active_controller(step), FIRST_CLIENT, VALUES.number(request))
        return step, ("create topic",)

    def _settled(self, state: State) -> State:
        """What comes when all metadata and all messages have arrived, brokers in order."""
        while True:
            following = next((found for found in self._progress(state) if found.action[0] in _SETTLING), None)
            if following is None:
                return state
            self.boot.append(following)
            state = following.state

    def _booted(self, state: State, done: tuple[Step, Action] | None) -> State:
        successor = None if done is None else self._close(state, *done)
        if successor is None or successor.wrong:
            raise ProtocolInvariantError(f"the cluster does not come up: {successor}")
        self.boot.append(successor)
        return successor.state


_ENDS_OF_EXCHANGES = frozenset({BrokerHeartbeatResponse, BrokerRegistrationResponse})
_SETTLING = frozenset({"deliver", "metadata"})
LATE = "late"
"""The last word of an action that a queue had been held up for."""
