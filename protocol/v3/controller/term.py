"""What a broker does while it is the controller: a term with its procedures, its commands and its store sessions (A1,
A32-A36, A55).

A term begins with an election and `on_controller_failover`. Watches of the broker's own session start the procedures
(`failover.py`). A term ends when the session expires, when a write finds that there is a newer controller, or when the
broker learns so: then everything that runs is aborted, commands that wait are dropped, and the other sessions are
closed. A broker that ends a term has to run the election again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar

from protocol.config import ISR_UPDATES, MIN_INSYNC_REPLICAS, ClusterConfig
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
    RemainingPartition,
)
from protocol.v3.controller.broker_changes import controlled_shutdown
from protocol.v3.controller.commands import CommandQueue
from protocol.v3.controller.context import Controller, Settings
from protocol.v3.controller.decisions import Author
from protocol.v3.controller.election import Elected
from protocol.v3.controller.failover import URGENT, event_of, procedures
from protocol.v3.controller.isr_updates import LEADER_WRITES, alter_isr
from protocol.v3.controller.procedure import BrokerCommand, Event, Procedure
from protocol.v3.controller.runner import Runner, SessionOutlet
from protocol.v3.store.client import StoreSession
from protocol.v3.store.paths import UnknownPathError
from protocol.v3.store.settings import StoreSettings

COMMAND_TIMER = "commands"
TERM = "controller"


@dataclass(slots=True, eq=False)
class Term:
    """One term of this broker as the controller, with the sessions beside the broker's own, and the time of its command
    timer.
    """

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

    # -- terms ---------------------------------------------------------------------------------------------------------

    def begin(self, now_ms: TimeMs, elected: Elected) -> None:
        """Begins a term, unless it has begun."""
        if self.term is not None and self.term.controller.author.controller_epoch == elected.epoch:
            return
        self.end(now_ms)
        author = Author(self._broker, elected.epoch)
        settings = Settings(
            leaders_write_isr=self._config.values[ISR_UPDATES] == LEADER_WRITES,
            min_isr=self._config.int_value(MIN_INSYNC_REPLICAS),
        )
        controller = Controller(author, settings)
        sessions = [self._open_session(now_ms) for _ in range(self._settings.sessions - 1)]
        outlet = SessionOutlet(TERM, [self._session, *sessions], self._out, self._deposed, self._put_command)
        runner = Runner(outlet, procedures(controller), self._settings.sessions, self._settings.multi)
        runner.fence = elected.fence
        self.term = Term(controller, outlet, runner, CommandQueue(author, self._out), sessions)
        self._out.trace(ControllerElected(elected.epoch))
        runner.submit(now_ms, Event.FAILOVER)

    def _open_session(self, now_ms: TimeMs) -> StoreSession:
        session = StoreSession(self._settings.session_timeout_ms, None, self._out, self._rng)
        session.start(now_ms)
        return session

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

    # -- inputs --------------------------------------------------------------------------------------------------------

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
        if event is not None:
            self.term.runner.submit(now_ms, event, is_urgent=event in URGENT)

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

    def _put_command(self, now_ms: TimeMs, command: BrokerCommand) -> None:
        if self.term is not None:
            self.term.queue.put(now_ms, command)

    def receive_response(self, now_ms: TimeMs, broker: NodeId, response: CommandResponse) -> None:
        if self.term is None:
            return
        if response.error is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._deposed(now_ms)
        else:
            self.term.queue.responded(now_ms, broker, response)

    def fire_commands(self, now_ms: TimeMs, _: str) -> None:
        if self.term is not None:
            self.term.due_ms = None
            self.term.queue.expire(now_ms)

    # -- requests of brokers -------------------------------------------------------------------------------------------

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
