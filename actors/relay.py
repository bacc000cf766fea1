"""How callers outside a cluster reach its nodes: administration requests, and commands about records to a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from actors.caller_log import CallerLog, first_command
from actors.host import NodeHost
from protocol.errors import ProtocolInvariantError
from protocol.ids import DRIVER, FIRST_CLIENT, NodeId
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import ANONYMOUS, Message
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
)
from protocol.metadata.authorizer import node_principal

CallerCommand = SendRecords | ProduceCommand | ConsumeCommand
ADMIN_CALLERS: NodeId = DRIVER + 1
"""The peer id under which a node sees all callers of the relay."""


class AdminRelay:
    """Makes administration requests, writes and reads records through a node for callers outside the cluster, each of
    which gets its own answer. All calls happen on the node's event loop.

    The host sends through it. What a node sends to the experiment (`DRIVER`) is kept until the next poll, which returns
    all of it. So the relay passes requests on under the peer id `ADMIN_CALLERS`, resolves the future of the waiting
    caller when the answer comes back, and passes everything else to `onward`. Commands to a client have negative ids
    (an experiment uses positive ones); a client ends every command with exactly one outcome. Requests that a node of
    another kind answers itself have positive correlation ids. No two `incarnation`s of a client give one id twice, so
    that the records of all have different names. `calls` keeps what callers do with records, None where none does.
    """

    def __init__(
        self, onward: Callable[[NodeId, Message], None], incarnation: int = 0, calls: CallerLog | None = None
    ) -> None:
        self._onward = onward
        self._calls = calls
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._last_id = first_command(incarnation)
        self._last_query = 0

    def send(self, to: NodeId, message: Message) -> None:
        if to != ADMIN_CALLERS:
            self._onward(to, message)
        elif isinstance(message, AdminOutcome | SendOutcome | ProduceOutcome | ConsumeOutcome):
            self._resolve(message.command_id, message)
        elif isinstance(message, AdminResponse):
            self._resolve(message.correlation_id, message)
        else:
            raise ProtocolInvariantError(f"a node answers a caller with {type(message).__name__}")

    def _resolve(self, number: int, answer: Message) -> None:
        waiting = self._waiting.pop(number)
        if not waiting.done():  # the caller may have given up
            waiting.set_result(answer)

    async def request(self, host: NodeHost, request: AdminRequest | CallerCommand) -> Message:
        """Submits a request, or a command whose id it replaces, to the host's client and returns its outcome."""
        self._last_id += 1
        command = request if isinstance(request, CallerCommand) else AdminCommand(command_id=0, request=request)
        command = replace(command, command_id=-self._last_id)
        if self._calls is not None:
            self._calls.began(command)
            host.announce()
        outcome = await self._ask(host, command.command_id, command)
        if self._calls is not None:
            self._calls.ended(command, outcome)
            host.announce()
        return outcome

    async def query(self, host: NodeHost, request: AdminRequest) -> Message:
        """The response of the host's node, which is no client; a request without a principal is a client's."""
        self._last_query += 1
        principal = node_principal(FIRST_CLIENT) if request.principal == ANONYMOUS else request.principal
        request = replace(request, correlation_id=self._last_query, principal=principal)
        return await self._ask(host, self._last_query, request)

    async def _ask(self, host: NodeHost, number: int, message: Message) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        host.deliver(ADMIN_CALLERS, [message], control=True)
        return await answer
