"""The way of frames to the actors of the other nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayActorError

from protocol.ids import NodeId, node_name

Handle = Any
"""An actor class, an actor handle or an object reference, which Ray does not type."""
PIECE_BYTES = 96 * 1024
MAX_PIECES = 6


def pieces_of(frame: bytes) -> list[bytes]:
    """The pieces in which Ray passes a frame without its object store; one of over `MAX_PIECES` stays whole."""
    if len(frame) > MAX_PIECES * PIECE_BYTES:
        return [frame]
    return [frame[at : at + PIECE_BYTES] for at in range(0, len(frame), PIECE_BYTES)]


class PeerGoneError(Exception):
    """The peer does not exist, or died before it answered."""


class RayPeers:
    """Delivers frames to the actors of the other nodes; a call returns the peer's frame, or NOTHING."""

    def __init__(self, run: str, own_id: NodeId) -> None:
        self._run = run
        self._own_id = own_id
        self._handles: dict[NodeId, Handle] = {}
        self._incarnations: dict[NodeId, int] = {}

    async def __call__(self, peer: NodeId, frame: bytes, control: bool) -> bytes:
        handle = self._handles.get(peer) or await self._look_up(peer)
        try:
            answer: bytes = await handle.deliver.remote(self._own_id, control, *pieces_of(frame))
        except RayActorError as error:
            if self._handles.get(peer) is handle:
                del self._handles[peer]
            raise PeerGoneError(node_name(peer)) from error
        return answer

    async def _look_up(self, peer: NodeId) -> Handle:
        try:  # in a thread, since a look-up is a blocking call to Ray's control store
            handle = await asyncio.to_thread(ray.get_actor, node_name(peer), self._run)
        except ValueError as error:
            raise PeerGoneError(node_name(peer)) from error
        self._handles[peer] = handle
        return handle

    def observe_incarnation(self, peer: NodeId, incarnation: int) -> None:
        """To be called with the first frame of each newer incarnation of a peer."""
        if incarnation > self._incarnations.get(peer, 0):
            self._incarnations[peer] = incarnation
            self._handles.pop(peer, None)
