"""The way of frames to the actors of the other nodes: one call of `deliver` each.

Ray passes bytes without pickling them, so the arguments are bytes: the frame behind its address, in as many pieces as
it takes to pass it without the object store, then what is attached to the frame. The address is the sender, a byte that
is 1 on the control channel, and the number of attached fields.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


_ADDRESS = struct.Struct(">i?I")


def arguments_of(sender: NodeId, control: bool, frame: bytes, attached: Sequence[Handle] = ()) -> list[Handle]:
    """The arguments of the call that delivers a frame; beyond `MAX_PIECES` it stays in one piece. `attached` are bytes
    or references to them.
    """
    data = _ADDRESS.pack(sender, control, len(attached)) + frame
    size = len(data) if len(data) > MAX_PIECES * PIECE_BYTES else PIECE_BYTES
    return [*(data[at : at + size] for at in range(0, len(data), size)), *attached]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a call delivers: the frame (a view), and what is attached to it."""

    sender: NodeId
    control: bool
    frame: memoryview
    attached: Sequence[bytes]


def delivery_of(arguments: Sequence[bytes]) -> Delivery:
    """The inverse of `arguments_of`."""
    sender, control, count = _ADDRESS.unpack_from(arguments[0])
    end = len(arguments) - count
    return Delivery(sender, control, memoryview(b"".join(arguments[:end]))[_ADDRESS.size :], arguments[end:])


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
        placed = [self._parts.place(part) for part in attached]
        try:
            answer: bytes = await handle.deliver.remote(*arguments_of(self._own_id, control, frame, placed))
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
