"""The client node: behaves like an application with a Kafka client library, with any number of commands at once.

Every command has exactly one outcome. Every request carries the client's principal, unless the command sets another
one. Authorization errors end a command at once, since a retry does not help.
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
from protocol.messages.base import Message, Response
from protocol.messages.commands import AdminCommand, ConsumeCommand, ProduceCommand, SendRecords
from protocol.metadata.authorizer import node_principal
from protocol.nodes.refusals import refuse


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
        self._finder = LeaderFinder(self._context)
        self._producer = Producer(self._context, self._finder)
        self._in_progress: dict[int, Read | Administration] = {}
        self._handlers: dict[type[Message], Callable[[TimeMs, NodeId, Any], None]] = {
            ProduceCommand: self._producer.submit,
            SendRecords: self._producer.submit,
            ConsumeCommand: self._start,
            AdminCommand: self._start,
        }

    @property
    def buffered_bytes(self) -> int:
        return self._producer.buffered_bytes

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
        self._producer.admit_held(now_ms)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        self._context.fire(now_ms, name)
        self._producer.admit_held(now_ms)
        return self._out.drain()

    def _start(self, now_ms: TimeMs, sender: NodeId, command: ConsumeCommand | AdminCommand) -> None:
        on_done = partial(self._in_progress.pop, command.command_id)
        task: Read | Administration
        if isinstance(command, ConsumeCommand):
            task = Read(self._context, self._finder, sender, command, on_done)
        else:
            task = Administration(self._context, sender, command, on_done)
        self._in_progress[command.command_id] = task
        task.begin(now_ms)

    def _receive_response(self, now_ms: TimeMs, sender: NodeId, response: Response) -> None:
        answer, handler = self._context.waiting.get(response.correlation_id, (Response, None))
        if not isinstance(response, answer):
            refuse(self._out, sender, response, ErrorCode.UNSUPPORTED_VERSION)
        elif handler is not None:
            handler(now_ms, response)
