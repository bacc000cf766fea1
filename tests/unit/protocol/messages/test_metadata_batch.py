"""Payloads of the metadata log are decoded once, by content, and never to stale records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.errors import MalformedMessageError
from protocol.messages import metadata_batch
from protocol.messages.codec import decode
from protocol.messages.metadata_batch import (
    SHORT_BYTES,
    SHORT_PAYLOADS,
    forget_unpacked,
    pack_records,
    remember_unpacked,
    unpack_records,
)
from protocol.messages.records import ConfigRecord

Frames = list[bytes]


def payload_of(number: int, length: int = 1) -> bytes:
    return pack_records([ConfigRecord(topic_id=None, name=f"config-{number}", value="v" * length)])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frames]:
    """The frames that were decoded, in order."""
    found: Frames = []
    monkeypatch.setattr(metadata_batch, "decode", lambda frame: found.append(frame) or decode(frame))
    forget_unpacked()
    yield found
    forget_unpacked()


@pytest.mark.parametrize("length", [1, SHORT_BYTES])
def test_equal_bytes_are_decoded_once(decoded: Frames, length: int) -> None:
    first = unpack_records(payload_of(1, length))
    assert unpack_records(payload_of(1, length)) is first
    assert len(decoded) == 1


@pytest.mark.parametrize("length", [1, SHORT_BYTES])
def test_the_bytes_of_remembered_records_are_not_decoded(decoded: Frames, length: int) -> None:
    records = (ConfigRecord(topic_id=None, name="config", value="v" * length),)
    payload = pack_records(records)
    remember_unpacked(payload, list(records))
    assert unpack_records(payload) == records
    assert not decoded
    forget_unpacked()
    assert unpack_records(payload) == records
    assert len(decoded) == 1


def test_other_bytes_are_other_records_whatever_their_place_in_the_log(decoded: Frames) -> None:
    for number in (1, 2, 1):
        [record] = unpack_records(payload_of(number))
        assert isinstance(record, ConfigRecord)
        assert record.name == f"config-{number}"
    assert len(decoded) == 2


def test_damaged_bytes_are_refused_every_time(decoded: Frames) -> None:
    damaged = payload_of(1)[:-1] + b"\x00"
    unpack_records(payload_of(1))
    for _ in range(2):
        with pytest.raises(MalformedMessageError):
            unpack_records(damaged)


def test_the_oldest_payloads_leave_the_cache(decoded: Frames) -> None:
    for number in range(SHORT_PAYLOADS + 1):
        unpack_records(payload_of(number))
    unpack_records(payload_of(SHORT_PAYLOADS))
    assert len(decoded) == SHORT_PAYLOADS + 1
    unpack_records(payload_of(0))
    assert len(decoded) == SHORT_PAYLOADS + 2
