"""Kafka's record batches at a broker: what producers send is checked and stored, what is stored is served.

A batch of Kafka's is stored as it came (`protocol/messages/kafka_batch.py` has the format). The fields that the leader
stamps (base offset, leader epoch), and those that brokers read (record count, timestamp, producer), are fields of the
`RecordBatch`; offset and epoch are written into the header again when a client fetches. A batch of the project's own
clients is served to Kafka's clients as an uncompressed batch whose records have no key.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from protocol.client.records import split
from protocol.errors import ErrorCode
from protocol.log.checksum import Checksum
from protocol.messages.base import changed
from protocol.messages.batch import NO_PRODUCER_ID, NO_SEQUENCE, RecordBatch
from protocol.messages.kafka_batch import COVERED, CRC, MARK, encode_record, is_kafka

_HEADER = struct.Struct(">qiibI")
_PREFIX = struct.Struct(">qiib")
_LENGTH_FROM = 12
"""The length counts from here."""
_COVERED_FROM = _HEADER.size
HEADER_BYTES = _COVERED_FROM + COVERED.size
_MAGIC = 2
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
Pair = tuple[bytes | None, bytes | None]
"""The key and the value of a record."""
Producer = tuple[int, int, int]
"""The id of a producer, its epoch, and the sequence number of its next batch."""
NO_PRODUCER: Producer = (NO_PRODUCER_ID, -1, NO_SEQUENCE)


class InvalidBatch(Exception):
    """A batch that a broker refuses with `error`."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error = error


def read_produced(records: bytes | None, checksum: Checksum) -> RecordBatch:
    """The batch of a produce request's partition, with its fields and checksum checked. Raises InvalidBatch with the
    error that Kafka gives: INVALID_RECORD unless it is exactly one whole batch of format 2 with consistent counts,
    UNSUPPORTED_FOR_MESSAGE_FORMAT for an older format, CORRUPT_MESSAGE for a wrong length or checksum.
    """
    if not records or len(records) < HEADER_BYTES:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"found {len(records or b'')} bytes; a batch has {HEADER_BYTES}")
    _, length, _, magic, crc = _HEADER.unpack_from(records)
    if magic != _MAGIC:
        raise InvalidBatch(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"found magic {magic}; allowed: {_MAGIC}")
    if length < HEADER_BYTES - _LENGTH_FROM or length + _LENGTH_FROM > len(records):
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"found a batch length of {length} in {len(records)} bytes")
    if length + _LENGTH_FROM != len(records):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "found more than one batch for a partition; allowed: one")
    covered = records[_COVERED_FROM:]
    if checksum(covered, 0) != crc:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "found a batch that does not match its CRC")
    attributes, last_delta, _, newest_ms, producer, epoch, sequence, count = COVERED.unpack_from(covered)
    if count < 1 or last_delta != count - 1:
        text = f"found {count} records and last offset delta {last_delta}"
        raise InvalidBatch(ErrorCode.INVALID_RECORD, text)
    if attributes & _CONTROL or attributes & _TRANSACTIONAL:
        kind = "control" if attributes & _CONTROL else "transactional"
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"found a {kind} batch, which clients may not send here")
    if producer == NO_PRODUCER_ID:  # some clients count batches nevertheless
        epoch, sequence = -1, NO_SEQUENCE
    return RecordBatch.unchecked(
        record_count=count,
        payload=b"".join((MARK, CRC.pack(crc), covered)),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        timestamp_ms=newest_ms,
    )


def to_kafka(batch: RecordBatch, checksum: Checksum) -> bytes:
    """A stored batch as Kafka's clients read it, with its offsets and its leader epoch."""
    if is_kafka(batch.payload):
        crc_and_covered: bytes | memoryview = memoryview(batch.payload)[len(MARK) :]
    else:
        covered = _covered(batch, _own_records(batch))
        crc_and_covered = CRC.pack(checksum(covered, 0)) + covered
    length = _PREFIX.size + len(crc_and_covered) - _LENGTH_FROM
    return b"".join((_PREFIX.pack(batch.base_offset, length, batch.leader_epoch, _MAGIC), crc_and_covered))


def build_batch(
    records: Sequence[Pair], timestamp_ms: int, checksum: Checksum, producer: Producer = NO_PRODUCER
) -> RecordBatch:
    """An uncompressed batch of Kafka's with these (key, value) pairs, for a writer that is no broker's client, or for
    the producer of this id, in its epoch and with its next sequence number.
    """
    identity, epoch, sequence = producer
    content = RecordBatch.unchecked(
        record_count=len(records),
        payload=b"",
        producer_id=identity,
        producer_epoch=epoch,
        base_sequence=sequence,
        timestamp_ms=timestamp_ms,
    )
    covered = _covered(content, records)
    return changed(content, payload=b"".join((MARK, CRC.pack(checksum(covered, 0)), covered)))


def _own_records(batch: RecordBatch) -> list[Pair]:
    """The records of a batch of the project's own clients; a payload of another form is the value of the first."""
    values = split(batch.payload) if batch.payload else []
    if len(values) != batch.record_count:
        values = [batch.payload] + [b""] * (batch.record_count - 1)
    return [(None, value) for value in values]


def _covered(batch: RecordBatch, records: Sequence[Pair]) -> bytes:
    """What the CRC of an uncompressed batch of Kafka's covers, with the fields of `batch` and these records."""
    head = COVERED.pack(
        0,
        batch.record_count - 1,
        batch.timestamp_ms,
        batch.timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.record_count,
    )
    return head + b"".join(encode_record(delta, 0, key, value) for delta, (key, value) in enumerate(records))
