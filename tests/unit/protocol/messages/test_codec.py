"""The codec: round trips of every message type, and rejection of everything else."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines.admin_requests import elect_leader
from protocol.errors import (
    CodecError,
    ErrorCode,
    MalformedMessageError,
    ProtocolInvariantError,
    UnknownMessageTypeError,
)
from protocol.messages.base import Message, field_values
from protocol.messages.batch import NO_PRODUCER_ID, RecordBatch
from protocol.messages.codec import ATTACH_BYTES, DETACH_BYTES, decode, encode
from protocol.messages.commands import AdminCommand, ConsumeOutcome
from protocol.messages.data import EpochEndOffset, FetchPartitionResult
from protocol.messages.metadata_batch import pack_records
from protocol.messages.partitions import ElectionType, ElectLeadersRequest
from protocol.messages.quorum import QuorumFetchResponse
from protocol.messages.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from protocol.messages.v3 import ControllerCommand, LeaderAndIsrPartition
from tests.unit.protocol.messages.malformed_helpers import TYPES, framed, instances_of, message_body

MESSAGES = st.sampled_from(TYPES).flatmap(instances_of)
RECORDS = [
    TopicRecord(name="t", topic_id="T"),
    PartitionRecord(topic_id="T", partition_id=0, replicas=(0, 1), isr=(), leader=-1),
    PartitionChangeRecord(topic_id="T", partition_id=0, isr=(), eligible_leader_replicas=None),
]
SAMPLES: list[Message] = [
    RecordBatch(base_offset=2**40, leader_epoch=3, record_count=2, payload=b"\x00\xff payload"),
    elect_leader("t", 0, ElectionType.UNCLEAN),
    FetchPartitionResult(
        topic_id="T",
        partition_id=0,
        fetch_offset=3,
        leader_epoch=1,
        error=ErrorCode.NONE,
        diverging_epoch=EpochEndOffset(leader_epoch=1, end_offset=2),
        batches=(RecordBatch(record_count=1, payload=b"x"),),
    ),
    QuorumFetchResponse(
        correlation_id=7,
        leader_id=1000,
        leader_epoch=1,
        high_watermark=3,
        batches=(RecordBatch(leader_epoch=1, record_count=3, payload=pack_records(RECORDS)),),
    ),
]


@pytest.mark.covers("G28", "N14")
def test_election_types_have_the_numbers_of_the_existing_protocol_and_three_more() -> None:
    numbers = {"PREFERRED": 0, "UNCLEAN": 1, "LONGEST_LOG_BALANCED": 2, "LONGEST_LOG_PROACTIVE": 3, "DESIGNATION": 4}
    assert {kind.name: kind.value for kind in ElectionType} == numbers
    for kind in ElectionType:
        body = msgpack.unpackb(msgpack.unpackb(encode(elect_leader("t", 0, kind, 0))[4:]).data)
        assert kind.value in body


@pytest.mark.parametrize("model", TYPES, ids=lambda model: model.__name__)
def test_every_message_type_round_trips(model: type[Message]) -> None:
    @settings(max_examples=12, deadline=None)
    @given(instances_of(model))
    def round_trip(message: Message) -> None:
        frame = encode(message)
        decoded = decode(frame)
        assert type(decoded) is model
        assert decoded == message
        assert encode(decoded) == frame

    round_trip()


def test_nested_messages_keep_their_own_type() -> None:
    request = elect_leader("t", 0, ElectionType.PREFERRED)
    decoded = decode(encode(AdminCommand(command_id=1, request=request)))
    assert isinstance(decoded, AdminCommand)
    assert type(decoded.request) is ElectLeadersRequest
    assert decoded.request.election_type is ElectionType.PREFERRED


def test_null_and_empty_values_are_distinct() -> None:
    for value in (None, ()):
        decoded = decode(encode(PartitionChangeRecord(topic_id="T", partition_id=0, isr=value)))
        assert isinstance(decoded, PartitionChangeRecord)
        assert decoded.isr == value


def test_the_encoding_of_a_message_is_stable() -> None:
    body = bytes.fromhex("c70f01") + b"\x95" + b"\xabTopicRecord" + b"\x00" + b"\xa1t" + b"\xa1T" + b"\x00"
    body = b"\xc7" + bytes([len(body) - 3]) + body[2:]
    assert encode(TopicRecord(name="t", topic_id="T")) == framed(body)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_flipped_bit_and_truncation_is_rejected(message: Message) -> None:
    frame = encode(message)
    for bit in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            decode(bytes(damaged))
    for size in range(len(frame)):
        with pytest.raises(MalformedMessageError):
            decode(frame[:size])
    with pytest.raises(MalformedMessageError):
        decode(frame + b"\x00")


def test_an_unknown_type_is_rejected_with_its_name() -> None:
    with pytest.raises(UnknownMessageTypeError, match="'NoSuchMessage'"):
        decode(framed(message_body("NoSuchMessage", 1)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb([1, 2]),
        msgpack.packb({"a": 1}),
        msgpack.packb(msgpack.Timestamp(1, 1)),
        msgpack.packb(msgpack.ExtType(2, b"")),
        msgpack.packb(msgpack.ExtType(1, b"")),
        msgpack.packb(msgpack.ExtType(1, msgpack.packb([]))),
        msgpack.packb(msgpack.ExtType(1, msgpack.packb(7))),
        message_body(7, "t", "T"),
        message_body("TopicRecord"),
        message_body("TopicRecord", "t"),
        message_body("TopicRecord", "t", "T", "more"),
        message_body("TopicRecord", "t", 7),
        message_body("TopicRecord", None, "T"),
        message_body("RecordBatch", 0, 0, "many", b""),
        message_body("AdminCommand", 1, msgpack.ExtType(1, msgpack.packb(["TopicRecord", "t", "T"]))),
        message_body("ProduceOutcome", 1, 12345, 0, False),
        message_body("TopicRecord", "t", "T") + b"\x00",
        msgpack.packb([message_body("TopicRecord", "t", "T")]),
    ],
)
def test_a_frame_with_a_valid_checksum_but_no_message_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode(framed(body))


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_bytes_are_a_message_or_a_codec_error(body: bytes) -> None:
    for frame in (body, framed(body)):
        try:
            decoded = decode(frame)
        except CodecError:
            continue
        assert isinstance(decoded, Message)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, st.data())
def test_a_modified_body_with_a_valid_checksum_is_a_message_or_a_codec_error(message: Message, data: Any) -> None:
    body = bytearray(encode(message)[4:])
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(framed(bytes(body)))
    except CodecError:
        return
    assert decode(encode(decoded)) == decoded


@settings(max_examples=50, deadline=None)
@given(MESSAGES)
def test_messages_are_immutable_and_reject_unknown_fields(message: Message) -> None:
    model = type(message)
    values = field_values(message)
    for name in values:
        with pytest.raises(FrozenInstanceError):
            setattr(message, name, None)
    with pytest.raises(ValueError, match="no_such_field"):
        model(**values, no_such_field=1)


def test_two_types_cannot_share_a_name() -> None:
    with pytest.raises(TypeError, match="TopicRecord"):
        type("TopicRecord", (Message,), {"__module__": __name__})


@pytest.mark.parametrize(("depth", "complaint"), [(8, "without type name"), (9, "nested deeper than 8")])
def test_messages_nest_eight_deep(depth: int, complaint: str) -> None:
    body = b"\xc0"
    for _ in range(depth):
        body = msgpack.packb(msgpack.ExtType(1, body))
    with pytest.raises(CodecError, match=complaint):
        decode(framed(body))


def test_a_batch_without_producer_timestamp_and_checksum_says_so_as_kafka_does() -> None:
    batch = RecordBatch(record_count=1, payload=b"")
    unset = (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.timestamp_ms)
    assert (unset, batch.producer_id == NO_PRODUCER_ID == -1) == ((-1, -1, -1, -1), True)


def test_an_outcome_of_a_read_says_nothing_of_offsets_unless_told() -> None:
    outcome = ConsumeOutcome(command_id=1, error=ErrorCode.NONE)
    assert (outcome.high_watermark, outcome.log_start_offset, outcome.next_offset) == (0, 0, -1)


@pytest.mark.covers("C7")
def test_unclean_leaders_are_marked_from_version_1_of_a_partitions_state_on() -> None:
    numbers = dict.fromkeys(("partition_id", "leader", "leader_epoch", "version", "controller_id"), 0)
    state = {"topic": "t", "topic_id": "T", "isr": (0,), "replicas": (0,), "controller_epoch": 0, **numbers}
    clean, unclean = (LeaderAndIsrPartition(**(state | {"is_unclean_leader": mark})) for mark in (False, True))
    assert decode(encode(unclean, 1)) == unclean
    assert decode(encode(clean, 0)) == clean
    with pytest.raises(ProtocolInvariantError):
        encode(unclean, 0)


def test_a_response_takes_the_channel_of_its_request() -> None:
    requests = [kind for kind in TYPES if hasattr(kind, "response_type") and kind is not ControllerCommand]
    assert len(requests) > 30
    assert [kind.__name__ for kind in requests if kind.response_type().CONTROL is not kind.CONTROL] == []


def test_deeply_nested_messages_are_rejected() -> None:
    """A frame with a valid checksum could otherwise exhaust the stack."""
    body = b"\xc0"
    for _ in range(2_000):
        body = msgpack.packb(msgpack.ExtType(1, body))
    with pytest.raises(CodecError):
        decode(framed(body))


def batches_of(*crcs: int, size: int) -> FetchPartitionResult:
    """A result with a batch per checksum, -1 for one without; `size` bytes of payload each."""
    batches = tuple(
        RecordBatch(record_count=1, payload=bytes([place]) * size, crc=crc) for place, crc in enumerate(crcs)
    )
    return FetchPartitionResult(topic_id="T", partition_id=0, fetch_offset=3, leader_epoch=1, batches=batches)


@pytest.mark.parametrize("crcs", [(-1, -1), (7, 7), (-1, 7, -1, 7), (7, -1)])
def test_long_payloads_follow_the_message_in_their_order_sealed_or_not(crcs: tuple[int, ...]) -> None:
    message = batches_of(*crcs, size=DETACH_BYTES)
    assert decode(encode(message)) == message


@pytest.mark.parametrize(("crc", "is_noticed"), [(-1, True), (7, False)])
def test_the_checksum_of_a_frame_leaves_out_a_long_payload_that_has_its_own(crc: int, is_noticed: bool) -> None:
    message = batches_of(crc, size=DETACH_BYTES)
    damaged = bytearray(encode(message))
    damaged[-1] ^= 1
    if is_noticed:
        with pytest.raises(MalformedMessageError, match="checksum"):
            decode(damaged)
    else:
        decoded = decode(damaged)
        assert isinstance(decoded, FetchPartitionResult)
        assert decoded.batches[0].payload == bytes(DETACH_BYTES - 1) + b"\x01"


def test_a_very_long_payload_is_attached_without_a_copy_if_it_has_a_checksum() -> None:
    message = batches_of(7, -1, 7, size=ATTACH_BYTES)
    attached: list[bytes] = []
    frame = encode(message, attached=attached)
    assert [id(part) for part in attached] == [id(message.batches[0].payload), id(message.batches[2].payload)]
    assert ATTACH_BYTES < len(frame) < ATTACH_BYTES + 500
    decoded = decode(frame, attached)
    assert decoded == message
    assert isinstance(decoded, FetchPartitionResult)
    assert decoded.batches[2].payload is attached[1]
    first, last = attached
    for wrong in ([], [first], [first, last[1:]], [first, last, b""]):
        with pytest.raises(MalformedMessageError, match="attached"):
            decode(frame, wrong)
