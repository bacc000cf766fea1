"""Frames of the transport: malformed frames, and malformed messages in frames."""

from __future__ import annotations

import pytest

from actors.peers import MAX_PIECES, MAX_PLACED_BYTES, PIECE_BYTES, Delivery, PlacedParts, arguments_of, delivery_of
from actors.transport import pack_frame, unpack_frame
from protocol.errors import CodecError
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import ATTACH_BYTES, encode
from tests.unit.actors.transport_helpers import data, frame_of


def unpacked(frame: bytes, errors: list[CodecError]) -> list[Message]:
    found = unpack_frame(frame, errors.append)
    return [] if found is None else found.messages


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x01",
        b"\x91\x01",
        b"\x00\x00\x00\x02\x91\x01",
        b"\x00\x00\x00\x04\x93\x01\xc0\x00",
        b"\x00\x00\x00\x05\x94\x01\x01\x01\x01",
        pack_frame([b"junk"]),
        frame_of(1)[:-1],
        frame_of(1) + b"\x00",
    ],
)
def test_a_malformed_frame_gives_no_message_and_one_error(frame: bytes) -> None:
    errors: list[CodecError] = []
    assert unpacked(frame, errors) == []
    assert len(errors) == 1


def test_the_other_messages_of_a_frame_with_a_malformed_message_are_decoded() -> None:
    errors: list[CodecError] = []
    damaged = bytearray(encode(data(1)))
    damaged[-1] ^= 1
    assert unpacked(pack_frame([encode(data(0)), bytes(damaged), encode(data(2))]), errors) == [data(0), data(2)]
    assert len(errors) == 1


def test_each_message_of_a_frame_gets_what_is_attached_to_it() -> None:
    """Also if the message before it cannot be read."""
    batches = [RecordBatch(record_count=1, payload=bytes([place]) * ATTACH_BYTES, crc=7) for place in range(3)]
    attached: list[bytes] = []
    encoded = [encode(batch, attached=attached) for batch in batches]
    damaged = [encoded[0], encoded[1][:-1] + b"\xff", encoded[2]]
    errors: list[CodecError] = []
    found = unpack_frame(pack_frame(damaged, attached=[1, 1, 1]), errors.append, attached)
    assert found is not None
    assert found.messages == [batches[0], batches[2]]
    assert len(errors) == 1
    for counts in ([1, 1, 2], [1, 1], [3, -1, 1]):
        assert unpack_frame(pack_frame(encoded, attached=counts), errors.append, attached) is None
    assert len(errors) == 4


def test_a_part_is_placed_once_while_it_is_among_the_newest() -> None:
    placed: list[bytes] = []
    parts = PlacedParts(lambda part: placed.append(part) or len(placed))  # type: ignore[func-returns-value]
    half = MAX_PLACED_BYTES // 2
    first, second, third = bytes(half), bytes(half), bytes(half)
    assert [parts.place(part) for part in (first, second, first, third)] == [1, 2, 1, 3]
    assert [parts.place(part) for part in (third, second, first)] == [3, 2, 4]


@pytest.mark.parametrize(
    ("size", "pieces"), [(0, 1), (PIECE_BYTES - 9, 1), (PIECE_BYTES - 8, 2), (MAX_PIECES * PIECE_BYTES, 1)]
)
def test_a_call_delivers_a_frame_in_pieces_and_what_is_attached_to_it(size: int, pieces: int) -> None:
    """The address takes 9 bytes."""
    frame, attached = bytes(size), [b"a", b"b"]
    arguments = arguments_of(7, True, frame, attached)
    assert len(arguments) == pieces + len(attached)
    assert delivery_of(arguments) == Delivery(7, True, memoryview(frame), attached)
