"""Batches that every leader refuses. Retries of an idempotent producer: `testdata/idempotence.txt`."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from protocol.errors import ErrorCode
from protocol.log.checksum import checksum_of
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ProduceResponse
from protocol.messages.records import ConfigRecord
from protocol.nodes.broker import BrokerNode
from tests.unit.protocol.log.test_producer_state import produced
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, config_of, topic_records

NONE = ErrorCode.NONE


def leader() -> BrokerBench:
    return BrokerBench().run(*topic_records(min_isr=2))


def answers(bench: BrokerBench) -> list[tuple[int, ErrorCode, int]]:
    return [(message.correlation_id, message.error, message.base_offset) for _, message in bench.sends(ProduceResponse)]


# -- admission ---------------------------------------------------------------------------------------------------------


def crc(data: bytes, value: int) -> int:
    return zlib.crc32(data, value)


def checking() -> BrokerBench:
    """A leader with checksums, and a topic whose batches have at most 100 bytes."""
    bench = BrokerBench()
    bench.node = BrokerNode(0, [CONTROLLER], config_of(), bench.storage, Random(1), checksum=crc)
    return bench.run(*topic_records(), ConfigRecord(topic_id="T", name="max.message.bytes", value="100"))


def sealed(batch: RecordBatch) -> RecordBatch:
    return batch.model_copy(update={"crc": checksum_of(batch, crc)})


GOOD = sealed(produced(0, 2, at_ms=5))
DAMAGED = {
    "payload": {"payload": b"q"},
    "record count": {"record_count": 3},
    "producer id": {"producer_id": 6},
    "producer epoch": {"producer_epoch": 1},
    "sequence": {"base_sequence": 0, "timestamp_ms": 6},
    "checksum": {"crc": GOOD.crc ^ 1},
}


def test_an_intact_batch_is_appended_with_its_checksum() -> None:
    bench = checking().produce(acks=1, batch=GOOD)
    assert [error for _, error, _ in answers(bench)] == [NONE]
    [stored] = bench.replica.log.storage.read(0, 1)
    assert stored.crc == GOOD.crc == checksum_of(stored, crc)
    assert [error for _, error, _ in answers(bench.produce(acks=1, batch=produced(2)))] == [NONE], "it has none"


@pytest.mark.parametrize("changes", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_batch_is_refused(changes: dict[str, object]) -> None:
    bench = checking().produce(acks=1, batch=GOOD.model_copy(update=changes))
    assert answers(bench) == [(7, ErrorCode.CORRUPT_MESSAGE, -1)]
    assert bench.replica.log.end_offset == 0


@pytest.mark.parametrize(("size", "error"), [(100, NONE), (101, ErrorCode.MESSAGE_TOO_LARGE)])
def test_a_batch_may_be_as_large_as_the_topic_allows(size: int, error: ErrorCode) -> None:
    bench = checking().produce(acks=1, batch=RecordBatch(record_count=1, payload=b"x" * size))
    assert [found for _, found, _ in answers(bench)] == [error]
    assert bench.replica.log.end_offset == (error is NONE)


@pytest.mark.parametrize(
    "changes",
    [
        {"producer_id": -2},
        {"producer_epoch": -1},
        {"base_sequence": -1},
        {"producer_id": -1},
        {"producer_id": -1, "producer_epoch": -1},
    ],
)
def test_a_batch_with_inconsistent_producer_fields_is_refused(changes: dict[str, object]) -> None:
    bench = leader().produce(acks=1, batch=produced(0).model_copy(update=changes))
    assert answers(bench) == [(7, ErrorCode.INVALID_RECORD, -1)]
