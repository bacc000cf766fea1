"""The way of frames to the actors of the other nodes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from protocol.ids import NodeId, node_name

Handle = Any
"""An actor class, an actor handle or an object reference, which Ray does not type."""
PIECE_BYTES = 96 * 1024
MAX_PIECES = 6
MAX_PLACED_BYTES = 8 * 1_048_576
"""How many bytes a node keeps in the object store for the case that another peer gets them too."""


def pieces_of(frame: bytes) -> list[bytes]:
    """The pieces in which Ray passes a frame without its object store; one of over `MAX_PIECES` stays whole."""
    if len(frame) > MAX_PIECES * PIECE_BYTES:
        return [frame]
    return [frame[at : at + PIECE_BYTES] for at in range(0, len(frame), PIECE_BYTES)]


class PeerGoneError(Exception):
    """The peer does not exist, or died before it answered."""


class PlacedParts:
    """What has been attached to frames, in Ray's object store: a leader puts a batch there once for all its followers.
    The newest parts are kept, up to `MAX_PLACED_BYTES`; Ray keeps the others until the calls with them have ended.
    """

    def __init__(self, put: Callable[[bytes], Handle] = ray.put) -> None:
        self._put = put
        self._placed: OrderedDict[int, tuple[bytes, Handle]] = OrderedDict()
        self._bytes = 0

    def place(self, part: bytes) -> Handle:
        """The reference to the same bytes object in the object store."""
        found = self._placed.get(id(part))  # the table holds the object, so that its id names no other one
        if found is None:
            found = self._placed[id(part)] = part, self._put(part)
            self._bytes += len(part)
            while self._bytes > MAX_PLACED_BYTES:
                self._bytes -= len(self._placed.popitem(last=False)[1][0])
        return found[1]


class RayPeers:
    """Delivers frames to the actors of the other nodes; a call returns the peer's frame, or NOTHING."""

    def __init__(self, run: str, own_id: NodeId) -> None:
        self._run = run
        self._own_id = own_id
        self._handles: dict[NodeId, Handle] = {}
        self._incarnations: dict[NodeId, int] = {}
        self._parts = PlacedParts()

    async def __call__(self, peer: NodeId, frame: bytes, control: bool, attached: Sequence[bytes]) -> bytes:
        handle = self._handles.get(peer) or await self._look_up(peer)
        pieces = pieces_of(frame)
        try:
            if attached:
                placed = [self._parts.place(part) for part in attached]
                call = handle.deliver.remote(self._own_id, control, *pieces, *placed, attached=len(placed))
            else:
                call = handle.deliver.remote(self._own_id, control, *pieces)
            answer: bytes = await call
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
