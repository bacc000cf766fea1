"""The client node: behaves like an application with a Kafka client library, with any number of commands at once.

Its parts are in `protocol/client`: producer, reads, administration, and what they share. Every command has exactly one
outcome. Every request carries the client's principal, unless the command sets another one. Authorization errors end a
command at once, since a retry does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocol.client.administration import Administration
from protocol.client.consumer import Read
from protocol.client.context import ClientContext
from protocol.client.metadata import LeaderFinder
from protocol.client.producer import Producer
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.log.checksum import Checksum
from protocol.messages.base import Message, Response
from protocol.messages.commands import AdminCommand, Command, ConsumeCommand, ProduceCommand, SendRecords
from protocol.metadata.authorizer import node_principal
from protocol.nodes.refusals import refuse


class ClientNode:
    """One client. `brokers` and `controllers` (at least one) are its bootstrap list; `principal` defaults to the node's
    own; `checksum` computes the CRC-32C of its batches, None leaves it out.
    """

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
        self._context = ClientContext(
            client_id,
            principal or node_principal(client_id),
            tuple(brokers),
            tuple(controllers),
            controllers[0],
            config,
            self._out,
            checksum,
        )
        self._finder = LeaderFinder(self._context)
        self._producer = Producer(self._context, self._finder)
        self._under_way: dict[int, Read | Administration] = {}

    @property
    def buffered_bytes(self) -> int:
        """The bytes of `buffer.memory` in use, for observers."""
        return self._producer.buffered_bytes

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return []

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, Response):
            self._receive_response(now_ms, sender, message)
        elif isinstance(message, ProduceCommand | SendRecords):
            self._producer.submit(now_ms, sender, message)
        elif isinstance(message, ConsumeCommand):
            self._start(now_ms, message, Read(self._context, self._finder, sender, message, self._completion(message)))
        elif isinstance(message, AdminCommand):
            self._start(now_ms, message, Administration(self._context, sender, message, self._completion(message)))
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
        self._producer.admit_held(now_ms)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        self._context.fire(now_ms, name)
        self._producer.admit_held(now_ms)
        return self._out.drain()

    def _start(self, now_ms: TimeMs, command: Command, task: Read | Administration) -> None:
        self._under_way[command.command_id] = task
        task.begin(now_ms)

    def _completion(self, command: Command) -> Callable[[], None]:
        def on_done() -> None:
            del self._under_way[command.command_id]

        return on_done

    def _receive_response(self, now_ms: TimeMs, sender: NodeId, response: Response) -> None:
        waiting = self._context.waiting.get(response.correlation_id)
        if waiting is None:
            return
        answer, handler = waiting
        if isinstance(response, answer):
            handler(now_ms, response)
        else:
            refuse(self._out, sender, response, ErrorCode.UNSUPPORTED_VERSION)
