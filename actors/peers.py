"""The addresses of the other nodes: where their processes take connections, as their actors answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError

from protocol.ids import NodeId, node_name

Handle = Any
"""An actor class, an actor handle or an object reference, which Ray does not type."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the process of an `incarnation` of a node takes connections, from those who know its `secret`."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    incarnation: int


class PeerGoneError(Exception):
    """The peer does not exist, or has ended."""


class RayPeers:
    """Asks the actors of a run for their addresses, each once until `forget`."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._addresses: dict[NodeId, Address] = {}

    async def address(self, peer: NodeId) -> Address:
        """Waits for a node that is starting. PeerGoneError where no actor has the peer's name, or where it ends."""
        found = self._addresses.get(peer)
        if found is None:
            found = self._addresses[peer] = await self._ask(peer)
        return found

    async def _ask(self, peer: NodeId) -> Address:
        try:  # in a thread, since a look-up is a blocking call to Ray's control store
            handle: Handle = await asyncio.to_thread(ray.get_actor, node_name(peer), self._run)
            address: Address = await handle.address.remote()
        except (ValueError, RayActorError, ActorUnschedulableError, GetTimeoutError) as error:
            raise PeerGoneError(node_name(peer)) from error
        return address

    def forget(self, peer: NodeId, older_than: int | None = None) -> None:
        """Has the next question for the peer's address reach its present actor, unless the last answer is that of this
        incarnation or of a newer one.
        """
        found = self._addresses.get(peer)
        if found is not None and (older_than is None or found.incarnation < older_than):
            del self._addresses[peer]
