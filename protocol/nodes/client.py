"""The client node: behaves like an application with a Kafka client library, with any number of commands at once.

Every command has exactly one outcome. Every request carries the client's principal, unless the command sets another
one. Records that are written or read as another principal have a producer, with a producer id, of their own, as in a
client of that principal. Authorization errors end a command at once, since a retry does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from protocol.client.administration import Administration
from protocol.client.consumer import Read
from protocol.client.context import ClientContext, LeaderFinder
from protocol.client.producer import Producer
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.log.checksum import Checksum
from protocol.messages.base import ANONYMOUS, Message, Response
from protocol.messages.commands import AdminCommand, ConsumeCommand, ProduceCommand, RecordsCommand, SendRecords
from protocol.metadata.authorizer import node_principal
from protocol.nodes.refusals import refuse

_OTHER = "as/"
"""Begins the names of the timers of other principals than the client's own; their number and `/` follow."""


class _Session:
    """What the client does as one principal."""

    def __init__(self, context: ClientContext) -> None:
        self.context = context
        self.finder = LeaderFinder(context)
        self.producer = Producer(context, self.finder)


class ClientNode:
    """One client; it needs a controller at first. `principal` defaults to its own; `checksum` computes CRC-32Cs."""

    def __init__(
        self,
        client_id: NodeId,
        brokers: Sequence[NodeId],
        controllers: Sequence[NodeId],
        config: ClusterConfig,
        principal: str | None = None,
        checksum: Checksum | None = None,
    ) -> None:
        self.node_id = client_id
        self._out = Outbox()
        user, servers, first = principal or node_principal(client_id), tuple(controllers), controllers[0]
        self._context = ClientContext(client_id, user, tuple(brokers), servers, first, config, self._out, checksum)
        self._own = _Session(self._context)
        self._others: dict[str, _Session] = {}
        self._in_progress: dict[int, Read | Administration] = {}
        self._handlers: dict[type[Message], Callable[[TimeMs, NodeId, Any], None]] = {
            ProduceCommand: self._write,
            SendRecords: self._write,
            ConsumeCommand: self._start,
            AdminCommand: self._start,
        }

    @property
    def buffered_bytes(self) -> int:
        return sum(session.producer.buffered_bytes for session in self._sessions())

    def _sessions(self) -> tuple[_Session, ...]:
        return (self._own, *self._others.values())

    def _session_of(self, command: RecordsCommand) -> _Session:
        """That of the command's principal, which begins with its first command."""
        user = command.principal
        if user in (ANONYMOUS, self._context.principal):
            return self._own
        if user not in self._others:
            self._others[user] = _Session(self._context.of(user, f"{_OTHER}{len(self._others)}/"))
        return self._others[user]

    def start(self, now_ms: TimeMs) -> list[Effect]:
        """A client has no state on a disk, and nothing to do."""
        self._context.begin_ids(now_ms)
        return []

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(now_ms, sender, message)
        elif isinstance(message, Response):
            self._receive_response(now_ms, sender, message)
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
        return self._end_input(now_ms)

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        owner = self._context
        if name.startswith(_OTHER):
            place, _, name = name.removeprefix(_OTHER).partition("/")
            owner = [*self._others.values()][int(place)].context
        owner.fire(now_ms, name)
        return self._end_input(now_ms)

    def _end_input(self, now_ms: TimeMs) -> list[Effect]:
        for session in self._sessions():
            session.producer.admit_held(now_ms)
        return self._out.drain()

    def _write(self, now_ms: TimeMs, sender: NodeId, command: ProduceCommand | SendRecords) -> None:
        self._session_of(command).producer.submit(now_ms, sender, command)

    def _start(self, now_ms: TimeMs, sender: NodeId, command: ConsumeCommand | AdminCommand) -> None:
        on_done = partial(self._in_progress.pop, command.command_id)
        task: Read | Administration
        if isinstance(command, ConsumeCommand):
            session = self._session_of(command)
            task = Read(session.context, session.finder, sender, command, on_done)
        else:
            task = Administration(self._context, sender, command, on_done)
        self._in_progress[command.command_id] = task
        task.begin(now_ms)

    def _receive_response(self, now_ms: TimeMs, sender: NodeId, response: Response) -> None:
        answer, handler = self._context.requests.waiting.get(response.correlation_id, (Response, None))
        if not isinstance(response, answer):
            refuse(self._out, sender, response, ErrorCode.UNSUPPORTED_VERSION)
        elif handler is not None:
            handler(now_ms, response)
