"""The desk at which callers from outside have a client ask for them: each gets the outcome of its own request.

A node's messages to the experiment (`DRIVER`) are kept until somebody polls, and whoever polls takes them all; several
who share a client would take each other's. What is asked here comes to the client from `ASKER` instead, under command
ids below 0, which no experiment gives; the outcomes that go back to `ASKER` are handed to those who wait for them, and
everything else goes on to the peers. A client ends every command with one outcome, so nobody waits for ever.

Everything here happens on the node's loop.
"""

from __future__ import annotations

import asyncio

from actors.host import NodeHost, Outbound
from protocol.errors import ProtocolInvariantError
from protocol.ids import DRIVER, NodeId
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.commands import AdminCommand, AdminOutcome

ASKER: NodeId = DRIVER + 1
"""All callers at the desk, seen as one peer."""


class Desk:
    """See the module docstring. Stands between a host and its transport, as the host's `Outbound`."""

    def __init__(self, onward: Outbound) -> None:
        self._onward = onward
        self._waiting: dict[int, asyncio.Future[AdminOutcome]] = {}
        self._last_id = 0

    def send(self, to: NodeId, message: Message) -> None:
        if to != ASKER:
            self._onward.send(to, message)
        elif isinstance(message, AdminOutcome):
            waiting = self._waiting.pop(message.command_id)
            if not waiting.done():  # the caller may have given up
                waiting.set_result(message)
        else:
            raise ProtocolInvariantError(f"{type(message).__name__} for those who asked")

    async def ask(self, host: NodeHost, request: AdminRequest) -> AdminOutcome:
        """Has the host's client make a request; its outcome."""
        self._last_id -= 1
        command = AdminCommand(command_id=self._last_id, request=request)
        outcome: asyncio.Future[AdminOutcome] = asyncio.get_running_loop().create_future()
        self._waiting[command.command_id] = outcome
        host.deliver(ASKER, [command], control=True)
        return await outcome
