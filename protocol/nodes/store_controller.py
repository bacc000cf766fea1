"""What a broker does while it is the controller: a term with its procedures, its commands and its store sessions (A1,
A32-A36, A55).

A term begins with an election and `on_controller_failover`. Watches of the broker's own session start the procedures
(`zookeeper/term.py`). A term ends when the session expires, when a write finds that there is a newer controller, or
when the broker learns so: then everything that runs is aborted, commands that wait are dropped, and the other sessions
are closed. A broker that ends a term has to run the election again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import ClassVar

from protocol.config import ISR_UPDATES, MIN_INSYNC_REPLICAS, ClusterConfig
from protocol.contract import Outbox
from protocol.errors import ErrorCode, Refused
from protocol.events.store import ControllerDeposed, ControllerElected, StoreAlert
from protocol.ids import BrokerId, NodeId, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse
from protocol.messages.store import WatchKind
from protocol.messages.v3 import (
    CommandResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerCommand,
    RemainingPartition,
)
from protocol.nodes.store_calls import Moment, SessionOutlet
from protocol.nodes.store_isr import LEADER_WRITES
from protocol.zookeeper.commands import CommandQueue
from protocol.zookeeper.context import Controller, Settings
from protocol.zookeeper.decisions import Author
from protocol.zookeeper.election import Elected
from protocol.zookeeper.isr_updates import alter_isr
from protocol.zookeeper.leaders import controlled_shutdown
from protocol.zookeeper.paths import UnknownPathError
from protocol.zookeeper.procedure import BrokerCommand, Event, Procedure
from protocol.zookeeper.runner import Runner
from protocol.zookeeper.session import StoreSession
from protocol.zookeeper.settings import StoreSettings
from protocol.zookeeper.term import URGENT, event_of, procedures

COMMAND_TIMER = "commands"
TERM = "controller"


class _Bystander:
    """The owner of a session that only carries requests of the controller."""

    def session_opened(self, now_ms: TimeMs) -> None:
        """Nothing: requests that wait are sent by the session."""

    def session_expired(self, now_ms: TimeMs) -> None:
        """Nothing: the runner repeats the requests."""

    def watch_fired(self, now_ms: TimeMs, kind: WatchKind, path: str) -> None:
        """Nothing: this session has no watches."""


@dataclass(slots=True, eq=False)
class Term:
    """One term of this broker as the controller; `sessions` are those beside the broker's own, and `due_ms` is when the
    timer of its commands is due.
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"due_ms"})

    controller: Controller
    outlet: SessionOutlet
    runner: Runner
    queue: CommandQueue
    sessions: list[StoreSession] = field(default_factory=list)
    due_ms: TimeMs | None = None


class StoreController:
    """The controller's part of one broker. `on_deposed` is called when a term ends before the broker knows why."""

    def __init__(
        self,
        broker: BrokerId,
        config: ClusterConfig,
        settings: StoreSettings,
        session: StoreSession,
        out: Outbox,
        moment: Moment,
        rng: Random,
    ) -> None:
        self.term: Term | None = None
        self.on_deposed: Callable[[], None] | None = None
        self._broker = broker
        self._config = config
        self._settings = settings
        self._session = session
        self._out = out
        self._moment = moment
        self._rng = rng

    # -- terms ---------------------------------------------------------------------------------------------------------

    def begin(self, elected: Elected) -> None:
        """Begins a term, unless it has begun."""
        if self.term is not None and self.term.controller.author.controller_epoch == elected.epoch:
            return
        self.end()
        author = Author(self._broker, elected.epoch)
        settings = Settings(
            leaders_write_isr=self._config.values[ISR_UPDATES] == LEADER_WRITES,
            min_isr=self._config.int_value(MIN_INSYNC_REPLICAS),
        )
        controller = Controller(author, settings)
        sessions = [self._open_session() for _ in range(self._settings.sessions - 1)]
        outlet = SessionOutlet(
            TERM, [self._session, *sessions], self._out, self._moment, self._deposed, self._put_command
        )
        runner = Runner(outlet, procedures(controller), self._settings.sessions, self._settings.multi)
        outlet.attach(runner)
        runner.fence = elected.fence
        self.term = Term(controller, outlet, runner, CommandQueue(author, self), sessions)
        self._out.trace(ControllerElected(elected.epoch))
        runner.submit(Event.FAILOVER)

    def _open_session(self) -> StoreSession:
        session = StoreSession(self._settings.session_timeout_ms, _Bystander(), self._out, self._rng)
        session.start(self._moment.now_ms)
        return session

    def end(self) -> None:
        """Ends the term, if there is one."""
        term, self.term = self.term, None
        if term is None:
            return
        term.runner.abort()
        term.outlet.cancel_timers()
        self._out.cancel_timer(COMMAND_TIMER)
        for session in term.sessions:
            session.close()
        self._out.trace(ControllerDeposed(term.controller.author.controller_epoch))

    def _deposed(self) -> None:
        self.end()
        if self.on_deposed is not None:
            self.on_deposed()

    # -- inputs --------------------------------------------------------------------------------------------------------

    def receive_store(self, now_ms: TimeMs, message: Message) -> bool:
        """Gives a message of the store to the session that it is for; returns whether it is for one of the term."""
        return self.term is not None and any(session.receive(now_ms, message) for session in self.term.sessions)

    def fire_session(self, now_ms: TimeMs, name: str) -> bool:
        """Gives a timer to the session whose timer it is; returns whether it is one of the term's."""
        return self.term is not None and any(session.fire(now_ms, name) for session in self.term.sessions)

    def watch_fired(self, path: str) -> None:
        """A watch of the broker's session has fired."""
        if self.term is None:
            return
        try:
            event = event_of(path)
        except UnknownPathError as error:
            self._out.trace(StoreAlert(str(error)))
            return
        if event is not None:
            self.term.runner.submit(event, is_urgent=event in URGENT)

    def fire_runner(self, name: str) -> None:
        """A timer of the term's procedures is due."""
        if self.term is not None:
            self.term.runner.fired(name)

    def settle(self, now_ms: TimeMs) -> None:
        """After an input: drops the commands to brokers that are gone, and sets the timer of the others."""
        if self.term is None:
            return
        self.term.queue.keep(self.term.controller.live)
        due_ms = self.term.queue.due_ms()
        if due_ms is not None and due_ms != self.term.due_ms:
            self._out.set_timer(COMMAND_TIMER, due_ms)
        self.term.due_ms = due_ms

    # -- commands ------------------------------------------------------------------------------------------------------

    def _put_command(self, command: BrokerCommand) -> None:
        if self.term is not None:
            self.term.queue.put(self._moment.now_ms, command)

    def send(self, broker: BrokerId, request: ControllerCommand) -> None:
        """Sends a command, for the queue."""
        self._out.send(broker, request)

    def alert(self, text: str) -> None:
        """Reports an alert of the queue."""
        self._out.trace(StoreAlert(text))

    def receive_response(self, now_ms: TimeMs, broker: NodeId, response: CommandResponse) -> None:
        """A broker has responded to a command."""
        if self.term is None:
            return
        if response.error is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._deposed()
        else:
            self.term.queue.responded(now_ms, broker, response)

    def fire_commands(self, now_ms: TimeMs, _: str) -> None:
        """Repeats the commands that have had no response."""
        if self.term is not None:
            self.term.due_ms = None
            self.term.queue.expire(now_ms)

    # -- requests of brokers -------------------------------------------------------------------------------------------

    def alter_partition(self, now_ms: TimeMs, sender: NodeId, request: AlterPartitionRequest) -> None:
        """Answers with a result per proposal, NOT_CONTROLLER where this broker is not the controller (any more)."""

        def respond(response: AlterPartitionResponse | None) -> None:
            error = ErrorCode.NOT_CONTROLLER
            refusal = AlterPartitionResponse(correlation_id=request.correlation_id, error=error)
            self._out.send(sender, response or refusal)

        if self.term is None:
            respond(None)
        else:
            self.term.runner.call("alter-partition", partial(alter_isr, self.term.controller, request), respond)

    def shut_down(self, now_ms: TimeMs, sender: NodeId, request: ControlledShutdownRequest) -> None:
        """Moves the leaderships of a broker that is going to stop, and answers with those that it keeps."""

        def respond(left: tuple[TopicPartition, ...] | ErrorCode | None) -> None:
            number = request.correlation_id
            if isinstance(left, tuple):
                remaining = tuple(RemainingPartition(topic=key.topic, partition_id=key.partition) for key in left)
                self._out.send(sender, ControlledShutdownResponse(correlation_id=number, remaining=remaining))
            else:
                error = ErrorCode.NOT_CONTROLLER if left is None else left
                self._out.send(sender, ControlledShutdownResponse(correlation_id=number, error=error))

        if self.term is None:
            respond(None)
        else:
            self.term.runner.call("controlled-shutdown", partial(_shut_down, self.term.controller, request), respond)


def _shut_down(
    controller: Controller, request: ControlledShutdownRequest
) -> Procedure[tuple[TopicPartition, ...] | ErrorCode]:
    try:
        return (yield from controlled_shutdown(controller, request.broker_id, request.broker_epoch))
    except Refused as refused:
        return refused.error
