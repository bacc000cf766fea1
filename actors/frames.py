"""Frames: how encoded messages travel between processes, in the bytes of a connection or as one string of bytes.

A frame is the length of its head (4 bytes, big endian), the head, the encoded messages, and the fields that are
attached to them (`codec.ATTACH_BYTES`). The head is a msgpack list with a list of sizes in bytes for each message: that
of the message, then those of its attached fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgpack

from protocol.errors import CodecError, MalformedMessageError
from protocol.messages.base import Message
from protocol.messages.codec import decode

MAX_HEAD_BYTES = 16 * 1_048_576
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded message, and the fields that are attached to it."""

    data: bytes
    attached: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        return len(self.data) + sum(map(len, self.attached))


@dataclass(frozen=True, slots=True)
class Frame:
    """The messages of a frame that could be decoded, and its size in bytes."""

    messages: list[Message]
    size: int


def pack_frame(items: Sequence[Encoded]) -> list[bytes]:
    """The frame of encoded messages, in pieces: attached fields are pieces of their own, so that none is copied."""
    head: bytes = msgpack.packb([[len(item.data), *map(len, item.attached)] for item in items])
    begin = b"".join((len(head).to_bytes(_LENGTH_BYTES, "big"), head, *(item.data for item in items)))
    return [begin, *(part for item in items for part in item.attached)]


def joined_frame(encoded: Iterable[bytes]) -> bytes:
    """The frame of encoded messages without attached fields, in one piece."""
    return b"".join(pack_frame([Encoded(data) for data in encoded]))


def unpack_frame(data: bytes, malformed: Callable[[CodecError], None]) -> Frame | None:
    """Decodes one frame, without the messages that are `malformed`; None where the bytes are not one frame."""
    reader = FrameReader(malformed)
    try:
        frames = list(reader.feed(data))
        if len(frames) != 1 or reader.has_rest:
            raise MalformedMessageError(f"not a frame: {len(data)} bytes do not fit its head")
    except MalformedMessageError as error:
        malformed(error)
        return None
    return frames[0]


class FrameReader:
    """Cuts frames out of the bytes of a connection, and passes on which of their messages are `malformed`."""

    def __init__(self, malformed: Callable[[CodecError], None]) -> None:
        self._malformed = malformed
        self._bytes = bytearray()
        self._sizes: list[list[int]] | None = None
        self._begin = 0
        self._needed = _LENGTH_BYTES

    @property
    def has_rest(self) -> bool:
        """Whether there are bytes of a frame that is not complete."""
        return bool(self._bytes)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete. MalformedMessageError where they are no frames; the rest of the
        connection is none either.
        """
        self._bytes += data
        while self._is_complete():
            assert self._sizes is not None
            frame = Frame(self._messages(self._sizes), self._needed)
            del self._bytes[: self._needed]
            self._sizes, self._needed = None, _LENGTH_BYTES
            yield frame

    def _is_complete(self) -> bool:
        if self._sizes is None and len(self._bytes) >= self._needed:
            head_bytes = int.from_bytes(self._bytes[:_LENGTH_BYTES], "big")
            if head_bytes > MAX_HEAD_BYTES:
                raise MalformedMessageError(f"not a frame: a head of {head_bytes} bytes")
            self._begin = self._needed = _LENGTH_BYTES + head_bytes
            if len(self._bytes) >= self._begin:
                self._sizes = _sizes_of(bytes(self._bytes[_LENGTH_BYTES : self._begin]))
                self._needed = self._begin + sum(map(sum, self._sizes))
        return self._sizes is not None and len(self._bytes) >= self._needed

    def _messages(self, sizes: Sequence[Sequence[int]]) -> list[Message]:
        own, others = [first for first, *_ in sizes], [size for _, *rest in sizes for size in rest]
        attached_at = self._begin + sum(own)
        with memoryview(self._bytes) as view:
            data = memoryview(bytes(view[self._begin : attached_at]))
            attached = iter([bytes(view[begin:end]) for begin, end in _ranges(attached_at, others)])
        messages = []
        for (begin, end), (_, *rest) in zip(_ranges(0, own), sizes, strict=True):
            parts = [next(attached) for _ in rest]
            try:
                messages.append(decode(data[begin:end], parts))
            except CodecError as error:
                self._malformed(error)
        return messages


def _sizes_of(head: bytes) -> list[list[int]]:
    """The sizes in a head."""
    try:
        sizes = msgpack.unpackb(head)
        if not all(parts and all(type(size) is int and size >= 0 for size in parts) for parts in sizes):
            raise ValueError("its head has no sizes")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedMessageError(f"not a frame: {error}") from error
    return list(map(list, sizes))


def _ranges(begin: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where parts of these sizes begin and end, one behind the other."""
    for size in sizes:
        yield begin, begin + size
        begin += size
