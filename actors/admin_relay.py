"""Makes administration requests, writes and reads records through a client node for callers outside the cluster, each
of which gets its own outcome.

A host keeps the messages that its node sends to the experiment (`DRIVER`) until the next poll, and a poll returns all
of them; several callers that share one client would take each other's outcomes. The relay therefore submits a command
under the peer id `ADMIN_CALLERS` with a negative command id (an experiment uses positive ones), resolves the future of
the waiting caller when the outcome comes back to `ADMIN_CALLERS`, and passes all other messages on to the peers. A
client ends every command with exactly one outcome, so each future is resolved.

A node of another kind answers administration requests itself: `query` passes one to it as if it came from a client, and
waits for the response.

All calls happen on the node's event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TypeVar

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
CallerOutcome = AdminOutcome | SendOutcome | ProduceOutcome | ConsumeOutcome
ADMIN_CALLERS: NodeId = DRIVER + 1
"""The peer id under which a node sees all callers of the relay."""
Answer = TypeVar("Answer")


class AdminRelay:
    """The `Outbound` of a host: keeps outcomes and responses for `ADMIN_CALLERS`, and passes everything else to
    `onward`.
    """

    def __init__(self, onward: Outbound) -> None:
        self._onward = onward
        self._waiting: dict[int, asyncio.Future[CallerOutcome]] = {}
        self._queries: dict[int, asyncio.Future[AdminResponse]] = {}
        self._last_id = 0

    def send(self, to: NodeId, message: Message) -> None:
        if to != ADMIN_CALLERS:
            self._onward.send(to, message)
        elif isinstance(message, CallerOutcome):
            _resolve(self._waiting.pop(message.command_id), message)
        elif isinstance(message, AdminResponse):
            _resolve(self._queries.pop(message.correlation_id), message)
        else:
            raise ProtocolInvariantError(f"a node answers a caller with {type(message).__name__}")

    async def request(self, host: NodeHost, request: AdminRequest | CallerCommand) -> CallerOutcome:
        """Submits a request, or a command whose id it replaces, to the host's client and returns its outcome."""
        self._last_id += 1
        command = (
            replace(request, command_id=-self._last_id)
            if isinstance(request, CallerCommand)
            else AdminCommand(command_id=-self._last_id, request=request)
        )
        outcome: asyncio.Future[CallerOutcome] = asyncio.get_running_loop().create_future()
        self._waiting[command.command_id] = outcome
        host.deliver(ADMIN_CALLERS, [command], control=True)
        return await outcome

    async def query(self, host: NodeHost, request: AdminRequest) -> AdminResponse:
        """Passes a request, in the name of a client where it has no principal, to the host's node, which is no client,
        and returns its response."""
        self._last_id += 1
        principal = node_principal(FIRST_CLIENT) if request.principal == ANONYMOUS else request.principal
        request = replace(request, correlation_id=self._last_id, principal=principal)
        response: asyncio.Future[AdminResponse] = asyncio.get_running_loop().create_future()
        self._queries[self._last_id] = response
        host.deliver(ADMIN_CALLERS, [request], control=True)
        return await response


def _resolve(waiting: asyncio.Future[Answer], answer: Answer) -> None:
    """Passes an answer to its caller, which may have given up."""
    if not waiting.done():
        waiting.set_result(answer)
