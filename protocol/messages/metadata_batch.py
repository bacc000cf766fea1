"""Encodes batches of metadata records: one frame per record, in the version of the feature levels in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgpack

from protocol.errors import ProtocolInvariantError
from protocol.features import record_version
from protocol.messages.codec import decode, encode
from protocol.messages.records import FeatureLevelRecord, MetadataRecord

SHORT_BYTES = 2_048
SHORT_PAYLOADS = 2_048
LONG_PAYLOADS = 16
_PACKER = msgpack.Packer()

_short: dict[bytes, tuple[MetadataRecord, ...]] = {}
_long: dict[bytes, tuple[MetadataRecord, ...]] = {}


def pack_batch(records: Sequence[MetadataRecord], levels: Mapping[str, int]) -> bytes:
    """The payload of a batch that begins under `levels`, which a FeatureLevelRecord changes for those after it."""
    frames = []
    for record in records:
        frames.append(encode(record, record_version(levels)))
        if isinstance(record, FeatureLevelRecord):
            levels = {**levels, record.name: record.feature_level}
    packed: bytes = _PACKER.pack(frames)
    return packed


def pack_records(records: Sequence[MetadataRecord], version: int | None = None) -> bytes:
    """The payload of a batch with all records in `version`, where their type has it; by default in the latest."""
    packed: bytes = _PACKER.pack([encode(record, version) for record in records])
    return packed


def unpack_records(payload: bytes) -> tuple[MetadataRecord, ...]:
    """The records of a batch's payload; MalformedMessageError. Results are cached by content for all nodes of the
    process: the newest `SHORT_PAYLOADS` of up to `SHORT_BYTES`, and `LONG_PAYLOADS` longer ones.
    """
    records = (_short if len(payload) <= SHORT_BYTES else _long).get(payload)
    if records is None:
        records = _unpack(payload)
        remember_unpacked(payload, records)
    return records


def remember_unpacked(payload: bytes, records: Sequence[MetadataRecord]) -> None:
    """Caches `records`, of which `payload` is the encoding, as the result of `unpack_records`."""
    cache, room = (_short, SHORT_PAYLOADS) if len(payload) <= SHORT_BYTES else (_long, LONG_PAYLOADS)
    cache[payload] = tuple(records)
    if len(cache) > room:
        del cache[next(iter(cache))]


def forget_unpacked() -> None:
    _short.clear()
    _long.clear()


def _unpack(payload: bytes) -> tuple[MetadataRecord, ...]:
    records = []
    for frame in msgpack.unpackb(payload):
        record = decode(frame)
        if not isinstance(record, MetadataRecord):
            raise ProtocolInvariantError(f"{type(record).__name__} in the metadata log")
        records.append(record)
    return tuple(records)
