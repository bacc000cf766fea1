"""Frames: cut out of the bytes of a connection; malformed frames, and malformed messages in frames."""

from __future__ import annotations

import pytest

from actors.frames import MAX_HEAD_BYTES, Encoded, FrameReader, joined_frame, pack_frame, unpack_frame
from protocol.errors import CodecError, MalformedMessageError
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import ATTACH_BYTES, encode
from tests.unit.actors.transport_helpers import data

FRAME = joined_frame([encode(data(1)), encode(data(2))])


def encoded(message: Message) -> Encoded:
    attached: list[bytes] = []
    return Encoded(encode(message, attached=attached), attached)


def long_batch(value: int) -> RecordBatch:
    return RecordBatch(record_count=1, payload=bytes([value]) * ATTACH_BYTES, crc=7)


def unpacked(frame: bytes, errors: list[CodecError]) -> list[Message]:
    found = unpack_frame(frame, errors.append)
    return [] if found is None else found.messages


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x00\x00\x00\x02\x91\x01",
        b"\x00\x00\x00\x01\x07",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x03\x91\x91\xff",
        b"\x00\x00\x00\x03\x91\x91\xc0",
        b"\x00\x00\x00\x02\x91\x90",
        joined_frame([b"junk"]),
        FRAME[:-1],
        FRAME + b"\x00",
        FRAME + FRAME,
        (MAX_HEAD_BYTES + 1).to_bytes(4, "big") + bytes(MAX_HEAD_BYTES),
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
    assert unpacked(joined_frame([encode(data(0)), bytes(damaged), encode(data(2))]), errors) == [data(0), data(2)]
    assert len(errors) == 1


def test_each_message_of_a_frame_gets_what_is_attached_to_it() -> None:
    """Also if the message before it cannot be read."""
    batches = [long_batch(value) for value in range(3)]
    items = [encoded(batch) for batch in batches]
    items[1] = Encoded(items[1].data[:-1] + b"\xff", items[1].attached)
    errors: list[CodecError] = []
    assert unpacked(b"".join(pack_frame(items)), errors) == [batches[0], batches[2]]
    assert len(errors) == 1


def test_what_is_attached_is_a_piece_of_the_frame_that_is_not_copied() -> None:
    batch = long_batch(1)
    pieces = pack_frame([encoded(data(1)), encoded(batch), encoded(data(2))])
    assert len(pieces) == 2
    assert pieces[1] is batch.payload
    assert len(pieces[0]) < ATTACH_BYTES


@pytest.mark.parametrize("step", [1, 7, ATTACH_BYTES])
def test_frames_are_found_wherever_the_bytes_of_a_connection_are_cut(step: int) -> None:
    messages = [[data(1), data(2)], [data(3)], [data(4), RecordBatch(record_count=1, payload=b"p" * 5_000)]]
    if step > 1_000:
        messages += [[long_batch(1), data(5), long_batch(2)], [data(6)]]
    stream = b"".join(piece for group in messages for piece in pack_frame([encoded(each) for each in group]))
    errors: list[CodecError] = []
    reader = FrameReader(errors.append)
    found = [frame for at in range(0, len(stream), step) for frame in reader.feed(stream[at : at + step])]
    assert [frame.messages for frame in found] == messages
    assert sum(frame.size for frame in found) == len(stream)
    assert not errors
    assert not reader.has_rest


def test_a_connection_whose_bytes_are_no_frames_gives_those_before_them() -> None:
    frames = FrameReader(pytest.fail).feed(FRAME + b"\xff" * 100)
    assert next(frames).messages == [data(1), data(2)]
    with pytest.raises(MalformedMessageError, match="not a frame"):
        next(frames)
