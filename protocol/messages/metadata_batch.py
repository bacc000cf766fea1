"""Encodes batches of metadata records: one frame per record, in the version of the feature levels in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgpack

from protocol.config import record_version
from protocol.errors import ProtocolInvariantError
from protocol.messages.codec import decode, encode
from protocol.messages.records import FeatureLevelRecord, MetadataRecord


def pack_batch(records: Sequence[MetadataRecord], levels: Mapping[str, int]) -> bytes:
    """The payload of a batch that begins under these feature levels. Each record has the version of the levels in force
    at its place: a FeatureLevelRecord changes them for the records after it.
    """
    frames = []
    for record in records:
        frames.append(encode(record, record_version(levels)))
        if isinstance(record, FeatureLevelRecord):
            levels = {**levels, record.name: record.feature_level}
    packed: bytes = msgpack.packb(frames)
    return packed


def pack_records(records: Sequence[MetadataRecord], version: int | None = None) -> bytes:
    """The payload of a batch with all records in `version`, where their type has it; by default in the latest."""
    packed: bytes = msgpack.packb([encode(record, version) for record in records])
    return packed


@lru_cache(maxsize=64)
def unpack_records(payload: bytes) -> Sequence[MetadataRecord]:
    """The records of a batch's payload. Raises MalformedMessageError for a payload that is not a list of records. The
    newest results are cached, because a node that appends a batch decodes it more than once.
    """
    records = []
    for frame in msgpack.unpackb(payload):
        record = decode(frame)
        if not isinstance(record, MetadataRecord):
            raise ProtocolInvariantError(f"{type(record).__name__} in the metadata log")
        records.append(record)
    return tuple(records)
