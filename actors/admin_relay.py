"""Makes administration requests, writes and reads records through a client node for callers outside the cluster, each
of which gets its own outcome.

A host keeps the messages that its node sends to the experiment (`DRIVER`) until the next poll, and a poll returns all
of them; several callers that share one client would take each other's outcomes. The relay therefore submits a command
under the peer id `ADMIN_CALLERS` with a negative command id (an experiment uses positive ones), resolves the future of
the waiting caller when the outcome comes back to `ADMIN_CALLERS`, and passes all other messages on to the peers. A
client ends every command with exactly one outcome, so each future is resolved.

All calls happen on the node's event loop.
"""

from __future__ import annotations

import asyncio

from actors.host import NodeHost, Outbound
from protocol.errors import ProtocolInvariantError
from protocol.ids import DRIVER, NodeId
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
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

CallerCommand = SendRecords | ProduceCommand | ConsumeCommand
CallerOutcome = AdminOutcome | SendOutcome | ProduceOutcome | ConsumeOutcome
ADMIN_CALLERS: NodeId = DRIVER + 1
"""The peer id under which the client sees all callers of the relay."""


class AdminRelay:
    """The `Outbound` of a client's host: keeps outcomes for `ADMIN_CALLERS` and passes everything else to `onward`."""

    def __init__(self, onward: Outbound) -> None:
        self._onward = onward
        self._waiting: dict[int, asyncio.Future[CallerOutcome]] = {}
        self._last_id = 0

    def send(self, to: NodeId, message: Message) -> None:
        if to != ADMIN_CALLERS:
            self._onward.send(to, message)
        elif isinstance(message, CallerOutcome):
            waiting = self._waiting.pop(message.command_id)
            if not waiting.done():  # the caller may have given up
                waiting.set_result(message)
        else:
            raise ProtocolInvariantError(f"a client answers a caller with {type(message).__name__}")

    async def request(self, host: NodeHost, request: AdminRequest | CallerCommand) -> CallerOutcome:
        """Submits a request, or a command whose id it replaces, to the host's client and returns its outcome."""
        self._last_id -= 1
        command = (
            request.model_copy(update={"command_id": self._last_id})
            if isinstance(request, CallerCommand)
            else AdminCommand(command_id=self._last_id, request=request)
        )
        outcome: asyncio.Future[CallerOutcome] = asyncio.get_running_loop().create_future()
        self._waiting[command.command_id] = outcome
        host.deliver(ADMIN_CALLERS, [command], control=True)
        return await outcome
