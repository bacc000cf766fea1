"""What a broker does while it is the controller: a term with its procedures, its commands and its store sessions (A1,
A32-A36, A55).

A term begins with an election and `on_controller_failover` (S1 D; A33, M33), after which the watches of the broker's
own session start the procedures (S1 A-H). It ends when the session expires, when a write finds that there is a newer
controller, or when the broker learns so: then everything that runs is aborted, commands that wait are dropped, and the
other sessions are closed. A broker that ends a term has to run the election again.

`on_controller_failover`, after the election, S1's steps 1 and 2:

    3. read the requests for reassignments, the live brokers, the topics, and leader and ISR of each partition
    4. send INIT to every live broker: all that it holds, in one request; commands of the former controller may be lost
    5. on_broker_change(), which ends with step 6: init_leaders() for partitions that have none
    7. on_partitions_reassigned()   8. on_partitions_add()   9. on_partitions_remove()

Watches are set by the reads themselves, so that nothing in between is missed. Departures: S1 reads reassignments in
step 7, after INIT, which would delete a replica that a reassignment adds, since it is not assigned yet. INIT goes to
all live brokers (A36), not only S1's "relevant" ones: the StopReplica of one that holds nothing any more may be lost. A
node that is damaged raises an alert and is left alone, and INIT deletes nothing while there is one.

Every broker has a queue of commands of its own (`CommandQueue`; A17, A36, A51, M38), so a slow broker delays no other.
The next request is sent when the broker has responded to the last, which keeps their order whatever the network does
with messages. A request without a response is repeated after `ack_timeout_ms`, with an alert (M38), until the broker
responds or is gone; brokers obey a command twice without effect (A25). Commands to a broker that is not alive are
dropped: a broker that comes back gets INIT. STALE_CONTROLLER_EPOCH means that there is a newer controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

from protocol.config import (
    AUTO_LEADER_REBALANCE_ENABLE,
    ISR_UPDATES,
    LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
    LEADER_IMBALANCE_PERCENTAGE,
    MIN_INSYNC_REPLICAS,
    ClusterConfig,
)
from protocol.contract import Outbox
from protocol.errors import ErrorCode, Refused
from protocol.events.store import ControllerDeposed, ControllerElected, StoreAlert
from protocol.ids import BrokerId, NodeId, TimeMs
from protocol.messages.base import Message, Request, Response
from protocol.messages.control import AlterPartitionRequest
from protocol.messages.v3 import (
    CommandResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerCommand,
    LeaderAndIsrRequest,
    RemainingPartition,
    StopReplicaRequest,
)
from protocol.v3.controller.broker_changes import controlled_shutdown, on_broker_change, rebalance_leaders
from protocol.v3.controller.context import Controller, Settings
from protocol.v3.controller.decisions import Author
from protocol.v3.controller.election import Elected
from protocol.v3.controller.isr_updates import LEADER_WRITES, alter_isr, on_isr_change, remove_notifications
from protocol.v3.controller.partitions import on_partitions_add, on_partitions_remove
from protocol.v3.controller.procedure import BrokerCommand, Event, Later, Procedure
from protocol.v3.controller.publishing import read_brokers, read_states, read_topics
from protocol.v3.controller.reassignments import on_partitions_reassigned, on_wakeup, read_moves
from protocol.v3.controller.runner import Runner, SessionOutlet
from protocol.v3.controller.topics import on_topic_change
from protocol.v3.store import paths
from protocol.v3.store.client import StoreSession
from protocol.v3.store.paths import UnknownPathError
from protocol.v3.store.settings import StoreSettings

COMMAND_TIMER = "commands"
TERM = "controller"
ACK_TIMEOUT_MS = 30_000
"""The default of `ack_timeout_ms` (H13)."""


def on_controller_failover(controller: Controller) -> Procedure[None]:
    controller.live = yield from read_brokers(controller)
    controller.topics = yield from read_topics(controller)
    yield from read_states(controller, controller.partitions())
    yield from read_moves(controller)
    yield controller.init(sorted(controller.live))
    yield from on_broker_change(controller)
    yield from on_wakeup(controller)
    yield from on_partitions_add(controller)
    yield from on_partitions_remove(controller)
    yield from remove_notifications()
    if controller.settings.leaders_write_isr:
        yield from on_isr_change(controller)
    if controller.settings.rebalance_ms is not None:
        yield Later(Event.REBALANCE, controller.settings.rebalance_ms)


_EVENTS: Final = {
    paths.BROKER_IDS: Event.BROKER_CHANGE,
    paths.TOPICS: Event.TOPIC_CHANGE,
    paths.REASSIGNED: Event.REASSIGNED,
    paths.ADDED: Event.ADDED,
    paths.REMOVED: Event.REMOVED,
    paths.ISR_CHANGES: Event.ISR_CHANGE,
}


def procedures(controller: Controller) -> dict[Event, Callable[[], Procedure[None]]]:
    return {
        Event.FAILOVER: partial(on_controller_failover, controller),
        Event.BROKER_CHANGE: partial(on_broker_change, controller),
        Event.TOPIC_CHANGE: partial(on_topic_change, controller),
        Event.REASSIGNED: partial(on_partitions_reassigned, controller),
        Event.WAKE_UP: partial(on_wakeup, controller),
        Event.ADDED: partial(on_partitions_add, controller),
        Event.REMOVED: partial(on_partitions_remove, controller),
        Event.ISR_CHANGE: partial(on_isr_change, controller),
        Event.REBALANCE: partial(rebalance_leaders, controller),
    }


def event_of(path: str) -> Event | None:
    """The event of a watch that has fired at `path`, None for that of the election. Raises UnknownPathError."""
    return _EVENTS.get(paths.locate(path)[0])


@dataclass(slots=True)
class _Channel:
    """The requests for one broker. The first is under way, and due again at `due_ms`."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"due_ms"})

    requests: deque[ControllerCommand] = field(default_factory=deque)
    due_ms: TimeMs = 0


class CommandQueue:
    """The commands of one term of a controller. The owner calls `expire` at `due_ms()`."""

    def __init__(self, author: Author, out: Outbox, ack_timeout_ms: int = ACK_TIMEOUT_MS) -> None:
        self._author = author
        self._out = out
        self._ack_timeout_ms = ack_timeout_ms
        self._channels: dict[BrokerId, _Channel] = {}
        self._next_id = 0

    def put(self, now_ms: TimeMs, command: BrokerCommand) -> None:
        """Queues a command for a live broker: a LeaderAndIsr request, a StopReplica request, or both in this order."""
        if command.leader_and_isr or command.is_init:
            request = LeaderAndIsrRequest(**self._head(), is_init=command.is_init, partitions=command.leader_and_isr)
            self._put(now_ms, command.broker, request)
        if command.stop_replica:
            self._put(now_ms, command.broker, StopReplicaRequest(**self._head(), partitions=command.stop_replica))

    def responded(self, now_ms: TimeMs, broker: BrokerId, response: CommandResponse) -> None:
        """A broker has responded. A response to another request than the one under way is a copy."""
        channel = self._channels.get(broker)
        if channel is not None and channel.requests[0].correlation_id == response.correlation_id:
            channel.requests.popleft()
            self._send_next(now_ms, broker, channel)

    def keep(self, live: Collection[BrokerId]) -> None:
        """Drops the commands to brokers that are not alive."""
        for broker in self._channels.keys() - set(live):
            del self._channels[broker]

    def due_ms(self) -> TimeMs | None:
        """When the first request that is under way has to be repeated, None if none is."""
        return min((channel.due_ms for channel in self._channels.values()), default=None)

    def expire(self, now_ms: TimeMs) -> None:
        """Repeats the requests that are due, with an alert for each."""
        for broker, channel in sorted(self._channels.items()):
            if channel.due_ms <= now_ms:
                kind = type(channel.requests[0]).__name__
                self._out.trace(StoreAlert(f"broker {broker} has not responded to {kind} in {self._ack_timeout_ms} ms"))
                self._send_next(now_ms, broker, channel)

    def _head(self) -> dict[str, int]:
        self._next_id += 1
        return {
            "correlation_id": self._next_id,
            "controller_id": self._author.controller,
            "controller_epoch": self._author.controller_epoch,
            "ack_timeout_ms": self._ack_timeout_ms,
        }

    def _put(self, now_ms: TimeMs, broker: BrokerId, request: ControllerCommand) -> None:
        channel = self._channels.setdefault(broker, _Channel())
        channel.requests.append(request)
        if len(channel.requests) == 1:
            self._send_next(now_ms, broker, channel)

    def _send_next(self, now_ms: TimeMs, broker: BrokerId, channel: _Channel) -> None:
        if not channel.requests:
            del self._channels[broker]
            return
        channel.due_ms = now_ms + self._ack_timeout_ms
        self._out.send(broker, channel.requests[0])


@dataclass(slots=True, eq=False)
class Term:
    """One term as the controller, with the sessions beside the broker's own, and the time of its command timer."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"due_ms"})

    controller: Controller
    outlet: SessionOutlet
    runner: Runner
    queue: CommandQueue
    sessions: list[StoreSession] = field(default_factory=list)
    due_ms: TimeMs | None = None


@dataclass(eq=False)
class ControllerTerms:
    """The controller's part of one broker. `on_deposed` is called when a term ends before the broker knows why."""

    _broker: BrokerId
    _config: ClusterConfig
    _settings: StoreSettings
    _session: StoreSession
    _out: Outbox
    _rng: Random
    term: Term | None = None
    on_deposed: Callable[[TimeMs], None] | None = None

    def begin(self, now_ms: TimeMs, elected: Elected) -> None:
        """Begins a term, unless it has begun."""
        if self.term is not None and self.term.controller.author.controller_epoch == elected.epoch:
            return
        self.end(now_ms)
        author = Author(self._broker, elected.epoch)
        config = self._config
        interval_ms = config.int_value(LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS) * 1_000
        settings = Settings(
            leaders_write_isr=config.values[ISR_UPDATES] == LEADER_WRITES,
            min_isr=config.int_value(MIN_INSYNC_REPLICAS),
            rebalance_ms=interval_ms if config.values[AUTO_LEADER_REBALANCE_ENABLE] else None,
            imbalance_percentage=config.int_value(LEADER_IMBALANCE_PERCENTAGE),
        )
        controller = Controller(author, settings)
        timeout_ms = self._settings.session_timeout_ms
        sessions = [StoreSession(timeout_ms, None, self._out, self._rng) for _ in range(self._settings.sessions - 1)]
        for session in sessions:
            session.start(now_ms)
        queue = CommandQueue(author, self._out)
        outlet = SessionOutlet(TERM, [self._session, *sessions], self._out, self._deposed, queue.put)
        runner = Runner(outlet, procedures(controller), self._settings.sessions, self._settings.multi)
        runner.fence = elected.fence
        self.term = Term(controller, outlet, runner, queue, sessions)
        self._out.trace(ControllerElected(elected.epoch))
        runner.submit(now_ms, Event.FAILOVER)

    def end(self, now_ms: TimeMs) -> None:
        term, self.term = self.term, None
        if term is None:
            return
        term.runner.abort(now_ms)
        term.outlet.cancel_timers()
        self._out.cancel_timer(COMMAND_TIMER)
        for session in term.sessions:
            session.close()
        self._out.trace(ControllerDeposed(term.controller.author.controller_epoch))

    def _deposed(self, now_ms: TimeMs) -> None:
        self.end(now_ms)
        if self.on_deposed is not None:
            self.on_deposed(now_ms)

    def receive_store(self, now_ms: TimeMs, message: Message) -> bool:
        """Gives a message of the store to the session that it is for; returns whether it is for one of the term."""
        return self.term is not None and any(session.receive(now_ms, message) for session in self.term.sessions)

    def fire_session(self, now_ms: TimeMs, name: str) -> bool:
        """Gives a timer to the session whose timer it is; returns whether it is one of the term's."""
        return self.term is not None and any(session.fire(now_ms, name) for session in self.term.sessions)

    def watch_fired(self, now_ms: TimeMs, path: str) -> None:
        if self.term is None:
            return
        try:
            event = event_of(path)
        except UnknownPathError as error:
            self._out.trace(StoreAlert(str(error)))
            return
        if event is not None:  # a change of brokers goes before the events that wait (A41)
            self.term.runner.submit(now_ms, event, is_urgent=event is Event.BROKER_CHANGE)

    def settle(self, now_ms: TimeMs) -> None:
        """After an input: drops the commands to brokers that are gone, and sets the timer of the others."""
        if self.term is not None:
            self.term.queue.keep(self.term.controller.live)
            due_ms = self.term.queue.due_ms()
            if due_ms is not None and due_ms != self.term.due_ms:
                self._out.set_timer(COMMAND_TIMER, due_ms)
            self.term.due_ms = due_ms

    def receive_response(self, now_ms: TimeMs, broker: NodeId, response: CommandResponse) -> None:
        if self.term is not None and response.error is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._deposed(now_ms)
        elif self.term is not None:
            self.term.queue.responded(now_ms, broker, response)

    def fire_commands(self, now_ms: TimeMs, _: str) -> None:
        if self.term is not None:
            self.term.due_ms = None
            self.term.queue.expire(now_ms)

    def alter_partition(self, now_ms: TimeMs, sender: NodeId, request: AlterPartitionRequest) -> None:
        self._answer(now_ms, sender, request, "alter-partition", alter_isr)

    def shut_down(self, now_ms: TimeMs, sender: NodeId, request: ControlledShutdownRequest) -> None:
        """Moves the leaderships of a broker that is going to stop, and answers with those that it keeps."""
        self._answer(now_ms, sender, request, "controlled-shutdown", _shut_down)

    def _answer(
        self,
        now_ms: TimeMs,
        sender: NodeId,
        request: Request,
        name: str,
        procedure: Callable[[Controller, Any], Procedure[Response]],
    ) -> None:
        """Answers with the result of a procedure, NOT_CONTROLLER where this broker is not the controller (any more)."""

        def respond(now_ms: TimeMs, response: Response | None) -> None:
            kind, number = request.response_type(), request.correlation_id
            self._out.send(sender, response or kind(correlation_id=number, error=ErrorCode.NOT_CONTROLLER))

        if self.term is None:
            respond(now_ms, None)
        else:
            self.term.runner.call(now_ms, name, partial(procedure, self.term.controller, request), respond)


def _shut_down(controller: Controller, request: ControlledShutdownRequest) -> Procedure[Response]:
    number = request.correlation_id
    try:
        left = yield from controlled_shutdown(controller, request.broker_id, request.broker_epoch)
    except Refused as refused:
        return ControlledShutdownResponse(correlation_id=number, error=refused.error)
    remaining = tuple(RemainingPartition(topic=key.topic, partition_id=key.partition) for key in left)
    return ControlledShutdownResponse(correlation_id=number, remaining=remaining)
