"""Frames of the transport: malformed frames, and malformed messages in frames."""

from __future__ import annotations

import pytest

from actors.transport import pack_frame, unpack_frame
from protocol.errors import CodecError
from protocol.messages.base import Message
from protocol.messages.codec import encode
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
