"""Makes administration requests, writes and reads records through a node for callers outside the cluster, each of which
gets its own answer.

A host keeps the messages that its node sends to the experiment (`DRIVER`) until the next poll, and a poll returns all
of them; several callers that share one client would take each other's outcomes. The relay therefore passes what they
ask on under the peer id `ADMIN_CALLERS`, and resolves the future of the waiting caller when the answer comes back.
Commands to a client have negative ids (an experiment uses positive ones); a client ends every command with exactly one
outcome. A node of another kind answers administration requests itself, with positive correlation ids, as if they came
from a client.

All calls happen on the node's event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from actors.host import NodeHost, Outbound
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
    """The `Outbound` of a host: keeps answers to `ADMIN_CALLERS`, and passes everything else to `onward`."""

    def __init__(self, onward: Outbound) -> None:
        self._onward = onward
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._last_id = 0

    def send(self, to: NodeId, message: Message) -> None:
        if to != ADMIN_CALLERS:
            self._onward.send(to, message)
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
        return await self._ask(host, -self._last_id, replace(command, command_id=-self._last_id))

    async def query(self, host: NodeHost, request: AdminRequest) -> Message:
        """Passes a request, in the name of a client where it has no principal, to the host's node, which is no client,
        and returns its response."""
        self._last_id += 1
        principal = node_principal(FIRST_CLIENT) if request.principal == ANONYMOUS else request.principal
        request = replace(request, correlation_id=self._last_id, principal=principal)
        return await self._ask(host, self._last_id, request)

    async def _ask(self, host: NodeHost, number: int, message: Message) -> Message:
        self._waiting[number] = asyncio.get_running_loop().create_future()
        host.deliver(ADMIN_CALLERS, [message], control=True)
        return await self._waiting[number]
