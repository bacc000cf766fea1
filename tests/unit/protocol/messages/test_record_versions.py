"""Record versions: fields that a version lacks are rejected unless they have their defaults."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import CodecError, MalformedMessageError, ProtocolInvariantError
from protocol.features import Generation
from protocol.ids import NO_LEADER, UNCHANGED_LEADER
from protocol.messages.codec import decode, encode
from protocol.messages.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from protocol.metadata.image import MetadataImage
from tests.unit.protocol.messages.malformed_helpers import framed, instances_of, message_body
from tests.unit.protocol.node_helpers import T0, config_of

ELR_FIELDS = ("eligible_leader_replicas", "last_known_elr", "last_known_leader")
VERSIONED = st.one_of(instances_of(PartitionRecord), instances_of(PartitionChangeRecord))
OTHERS: list[MetadataRecord] = [
    TopicRecord(name="t", topic_id="T"),
    ConfigRecord(topic_id=None, name="min.insync.replicas", value=None),
    FeatureLevelRecord(name="metadata.version", feature_level=2),
    BrokerRegistrationChangeRecord(broker_id=0, broker_epoch=3, fenced=True),
]


def without_elr(record: MetadataRecord) -> MetadataRecord:
    defaults = {field.name: field.default for field in fields(record) if field.name in ELR_FIELDS}
    return replace(record, **defaults)


def parts_of(frame: bytes) -> list[Any]:
    found: list[Any] = msgpack.unpackb(msgpack.unpackb(frame[4:]).data)
    return found


@pytest.mark.covers("G20", "G21")
@settings(deadline=None)
@given(VERSIONED)
def test_the_latest_version_carries_everything(record: MetadataRecord) -> None:
    for version in (1, None, 7):
        assert decode(encode(record, version)) == record
    assert parts_of(encode(record))[1] == 1


@pytest.mark.covers("G34", "K3", "K11")
@settings(deadline=None)
@given(VERSIONED)
def test_version_0_round_trips_without_elr_fields(record: MetadataRecord) -> None:
    plain = without_elr(record)
    frame = encode(plain, 0)
    assert decode(frame) == plain
    assert len(parts_of(frame)) == len(parts_of(encode(plain, 1))) - len(ELR_FIELDS)
    if record == plain:
        return
    with pytest.raises(ProtocolInvariantError, match="version 0 cannot carry"):
        encode(record, 0)


@pytest.mark.covers("G34", "K11", "N16")
@pytest.mark.parametrize("field", ELR_FIELDS)
def test_version_0_cannot_encode_elr_fields(field: str) -> None:
    value = NO_LEADER if field == "last_known_leader" else ()
    record = PartitionChangeRecord(**{"topic_id": "T", "partition_id": 0, field: value})
    with pytest.raises(ProtocolInvariantError, match=field):
        encode(record, 0)
    assert decode(encode(record, 1)) == record


@pytest.mark.parametrize("record", OTHERS, ids=lambda record: type(record).__name__)
def test_records_without_versions_have_the_same_bytes_in_all(record: MetadataRecord) -> None:
    assert encode(record, 0) == encode(record, 1) == encode(record)
    assert decode(encode(record, 0)) == record


@settings(deadline=None)
@given(VERSIONED, st.integers(0, 1), st.data())
def test_a_version_with_another_number_of_fields_is_malformed(
    record: MetadataRecord, version: int, data: st.DataObject
) -> None:
    name, _, *values = parts_of(encode(without_elr(record), version))
    count = data.draw(st.integers(0, len(values) + 4).filter(lambda count: count != len(values)))
    values = [*values, None, None, None, None][:count]
    with pytest.raises(MalformedMessageError):
        decode(framed(message_body(name, version, *values)))


@pytest.mark.parametrize("version", [2, -1, 2**40, "0", None, True, 0.0])
def test_an_unknown_version_is_malformed(version: object) -> None:
    name, _, *values = parts_of(
        encode(PartitionRecord(topic_id="T", partition_id=0, replicas=(0,), isr=(0,), leader=0))
    )
    with pytest.raises(MalformedMessageError, match="version"):
        decode(framed(message_body(name, version, *values)))


@settings(deadline=None)
@given(VERSIONED, st.integers(0, 1), st.integers(0, 2**16), st.binary(min_size=1, max_size=1))
def test_a_damaged_record_is_another_record_or_a_codec_error(
    record: MetadataRecord, version: int, at: int, damage: bytes
) -> None:
    body = bytearray(encode(without_elr(record), version)[4:])
    body[at % len(body)] = damage[0]
    try:
        found = decode(framed(bytes(body)))
    except CodecError:
        return
    assert decode(encode(found)) == found


@pytest.mark.covers("G22", "G34", "K3")
def test_records_of_version_0_replay_with_an_empty_elr() -> None:
    image = MetadataImage(config_of(Generation.KIP_966))
    old = PartitionRecord(topic_id="T", partition_id=0, replicas=(0, 1, 2), isr=(0, 1), leader=0, leader_epoch=4)
    shrink = PartitionChangeRecord(topic_id="T", partition_id=0, isr=(0,))
    for record in (TopicRecord(name="t", topic_id="T"), old, shrink):
        image.replay(decode(encode(record, 0)))  # type: ignore[arg-type]
    state = image.partition(T0)
    assert state is not None
    assert (state.isr, state.elr, state.last_known_elr, state.last_known_leader) == ((0,), (), (), NO_LEADER)
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (0, 4, 1)
    new = PartitionChangeRecord(topic_id="T", partition_id=0, isr=(), leader=NO_LEADER, eligible_leader_replicas=(0,))
    for record in (new, PartitionChangeRecord(topic_id="T", partition_id=0, replicas=(0, 1))):
        image.replay(decode(encode(record, 1)))  # type: ignore[arg-type]
    state = image.partition(T0)
    assert state is not None
    assert (state.elr, state.replicas, state.leader_epoch) == ((0,), (0, 1), 5), "what a record leaves out stays"
    assert new.last_known_leader == UNCHANGED_LEADER
