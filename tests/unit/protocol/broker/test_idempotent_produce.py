"""A leader and the retries of an idempotent producer; batches that every leader refuses."""

from __future__ import annotations

import zlib
from dataclasses import replace
from random import Random

import pytest

from experiments.engines.sim.disk import SimStorage
from protocol.broker import leader as partition_leader
from protocol.broker.delayed_produce import PRODUCE_TIMER
from protocol.errors import ErrorCode
from protocol.log.checksum import checksum_of
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ProduceResponse
from protocol.messages.records import ConfigRecord
from protocol.nodes.broker import BrokerNode
from tests.unit.protocol.log.test_producer_state import produced
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, config_of, topic_records

NONE = ErrorCode.NONE
TIMEOUT_MS = 5_000


def leader(storage: SimStorage | None = None) -> BrokerBench:
    bench = BrokerBench(config=config_of(request_timeout_ms=TIMEOUT_MS), storage=storage)
    return bench.run(*topic_records(min_isr=2))


def answers(bench: BrokerBench) -> list[tuple[int, ErrorCode, int]]:
    return [(message.correlation_id, message.error, message.base_offset) for _, message in bench.sends(ProduceResponse)]


def replicate(bench: BrokerBench, offset: int) -> BrokerBench:
    """Both followers fetch from `offset`; the effects are those of the second fetch."""
    return bench.fetch(1, offset).fetch(2, offset)


def test_a_duplicate_is_answered_with_the_first_offset_and_not_appended() -> None:
    bench = leader().produce(batch=produced(0, 3), correlation_id=1)
    assert answers(replicate(bench, 3)) == [(1, NONE, 0)]
    assert answers(bench.produce(batch=produced(0, 3), correlation_id=2)) == [(2, NONE, 0)]
    assert bench.replica.log.end_offset == 3
    assert bench.traces("appended") == []


def test_a_duplicate_of_an_uncommitted_batch_waits_for_the_high_watermark() -> None:
    bench = leader().produce(batch=produced(0), correlation_id=1).produce(batch=produced(1), correlation_id=2)
    assert answers(bench.produce(batch=produced(0), correlation_id=3)) == []
    assert answers(replicate(bench, 1)) == [(1, NONE, 0), (3, NONE, 0)], "it does not wait for what came later"
    assert answers(replicate(bench, 2)) == [(2, NONE, 1)]
    assert bench.replica.log.end_offset == 2


def test_a_duplicate_with_acks_1_is_answered_at_once() -> None:
    bench = leader()
    for number in (1, 2):
        assert answers(bench.produce(acks=1, batch=produced(0), correlation_id=number)) == [(number, NONE, 0)]
    assert bench.replica.log.end_offset == 1


def test_a_duplicate_has_a_timeout_of_its_own() -> None:
    bench = leader().produce(batch=produced(0), correlation_id=1)
    bench.now_ms = 3_000
    bench.produce(batch=produced(1), correlation_id=2).produce(batch=produced(0), correlation_id=3)
    late = ErrorCode.REQUEST_TIMED_OUT
    assert answers(bench.fire(PRODUCE_TIMER, TIMEOUT_MS)) == [(1, late, 0)]
    assert answers(bench.fire(PRODUCE_TIMER, 3_000 + TIMEOUT_MS)) == [(3, late, 0), (2, late, 1)]


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (produced(2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (produced(1, producer=8), ErrorCode.UNKNOWN_PRODUCER_ID),
        (produced(5, epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_a_batch_after_a_gap_is_refused_and_not_appended(batch: RecordBatch, error: ErrorCode) -> None:
    bench = leader().produce(batch=produced(0))
    assert answers(bench.produce(batch=batch, correlation_id=2)) == [(2, error, -1)]
    assert bench.produce(acks=0, batch=batch).sends(ProduceResponse) == []
    assert bench.replica.log.end_offset == 1


def test_a_restarted_leader_keeps_its_producer_state() -> None:
    storage = SimStorage()
    leader(storage).produce(batch=produced(0, 2)).produce(batch=produced(2))
    again = leader(storage)
    assert answers(again.produce(acks=1, batch=produced(0, 2), correlation_id=3)) == [(3, NONE, 0)]
    assert answers(again.produce(acks=1, batch=produced(3), correlation_id=4)) == [(4, NONE, 3)]


def test_too_many_delayed_produces_are_refused_with_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_leader, "MAX_DELAYED", 2)
    bench = leader()
    for number in (1, 2):
        assert answers(bench.produce(batch=produced(number - 1), correlation_id=number)) == []
    refused = answers(bench.produce(batch=produced(2), correlation_id=3))
    assert refused == [(3, ErrorCode.BROKER_NOT_AVAILABLE, -1)]
    assert bench.replica.log.end_offset == 2
    replicate(bench, 2)
    assert answers(bench.produce(batch=produced(2), correlation_id=4)) == []


# -- admission ---------------------------------------------------------------------------------------------------------


def crc(data: bytes, value: int) -> int:
    return zlib.crc32(data, value)


def checking() -> BrokerBench:
    """A leader with checksums, and a topic whose batches have at most 100 bytes."""
    bench = BrokerBench()
    bench.node = BrokerNode(0, [CONTROLLER], config_of(), bench.storage, Random(1), checksum=crc)
    return bench.run(*topic_records(), ConfigRecord(topic_id="T", name="max.message.bytes", value="100"))


def sealed(batch: RecordBatch) -> RecordBatch:
    return replace(batch, crc=checksum_of(batch, crc))


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
    bench = checking().produce(acks=1, batch=replace(GOOD, **changes))
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
    bench = leader().produce(acks=1, batch=replace(produced(0), **changes))
    assert answers(bench) == [(7, ErrorCode.INVALID_RECORD, -1)]
