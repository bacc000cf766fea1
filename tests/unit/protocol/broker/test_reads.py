"""Reads of consumers at the leader: valid offsets, waiting for the high watermark, divergence."""

from __future__ import annotations

import pytest

from protocol.broker import reads
from protocol.broker.reads import READ_TIMER
from protocol.errors import ErrorCode
from protocol.messages.data import (
    EARLIEST,
    LATEST,
    ConsumeRequest,
    ConsumeResponse,
    EpochEndOffset,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from protocol.messages.records import PartitionChangeRecord
from tests.unit.protocol.node_helpers import CLIENT, BrokerBench, batch, config_of, topic_records

NONE = ErrorCode.NONE


def change(leader: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id="T", partition_id=0, leader=leader)


def leader() -> BrokerBench:
    """A leader of `t-0` with four batches of one record, three of them committed."""
    bench = BrokerBench(config=config_of()).run(*topic_records())
    for _ in range(4):
        bench.produce()
    return bench.fetch(1, 3).fetch(2, 3)


def consume(bench: BrokerBench, offset: int, correlation_id: int = 1, **fields: object) -> BrokerBench:
    stands = {"correlation_id": correlation_id, "topic": "t", "partition": 0, "fetch_offset": offset}
    return bench.receive(CLIENT, ConsumeRequest(**(stands | fields)))


def shown(bench: BrokerBench) -> list[tuple[int, ErrorCode, list[int]]]:
    """Correlation id, error and offsets of the responses to consumers."""
    found = [message for _, message in bench.sends(ConsumeResponse)]
    return [(item.correlation_id, item.error, [b.base_offset for b in item.batches]) for item in found]


@pytest.mark.covers("A31", "E7", "M31")
@pytest.mark.parametrize(
    ("offset", "error", "offsets"),
    [
        (0, NONE, [0, 1, 2]),
        (2, NONE, [2]),
        (3, NONE, []),
        (4, NONE, []),
        (5, ErrorCode.OFFSET_OUT_OF_RANGE, []),
        (2**63 - 1, ErrorCode.OFFSET_OUT_OF_RANGE, []),
    ],
)
def test_what_a_consumer_reads(offset: int, error: ErrorCode, offsets: list[int]) -> None:
    bench = consume(leader(), offset)
    assert shown(bench) == [(1, error, offsets)]
    assert bench.sent(ConsumeResponse).high_watermark == 3


def test_a_response_has_at_most_max_bytes_but_at_least_one_batch() -> None:
    assert shown(consume(leader(), 0, max_bytes=2)) == [(1, NONE, [0, 1])]
    assert shown(consume(leader(), 0, max_bytes=0)) == [(1, NONE, [0])]


def test_a_read_below_the_log_start_is_out_of_range() -> None:
    bench = leader()
    bench.replica.log.reset(10)
    answer = consume(bench, 9).sent(ConsumeResponse)
    assert (answer.error, answer.log_start_offset, answer.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 10, 10)
    assert consume(bench, 10).sent(ConsumeResponse).error is NONE


def test_a_consumer_at_the_end_waits_for_the_high_watermark() -> None:
    bench = consume(leader(), 3, max_wait_ms=500)
    assert shown(bench) == []
    assert shown(bench.produce()) == [], "the log end alone is nothing to see"
    assert shown(bench.fetch(1, 4)) == []
    assert shown(bench.fetch(2, 4)) == [(1, NONE, [3])]


def test_a_consumer_between_high_watermark_and_log_end_waits_for_its_offset() -> None:
    bench = consume(leader(), 4, max_wait_ms=500).produce()
    assert shown(bench.fetch(1, 4).fetch(2, 4)) == [], "the high watermark is where it stands"
    assert shown(bench.fetch(1, 5).fetch(2, 5)) == [(1, NONE, [4])]


def test_parked_reads_are_answered_after_max_wait_ms() -> None:
    bench = consume(consume(leader(), 3, 1, max_wait_ms=500), 3, 2, max_wait_ms=200)
    timer = bench.timer(READ_TIMER)
    assert timer is not None
    assert timer.at_ms == 200
    assert shown(bench.fire(READ_TIMER, 200)) == [(2, NONE, [])]
    assert shown(bench.fire(READ_TIMER, 500)) == [(1, NONE, [])]
    assert bench.timer(READ_TIMER) is None


@pytest.mark.covers("M32")
def test_parked_reads_are_answered_when_the_leader_resigns() -> None:
    bench = consume(leader(), 3, max_wait_ms=500).publish(change(leader=1))
    assert shown(bench) == [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
    assert shown(bench.fire(READ_TIMER, 500)) == []


def test_at_most_max_parked_reads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_PARKED", 2)
    bench = leader()
    answered = [shown(consume(bench, 3, number, max_wait_ms=500)) for number in (1, 2, 3)]
    assert answered == [[], [], [(3, NONE, [])]]


def test_a_consumer_with_a_diverged_position_gets_the_diverging_epoch() -> None:
    bench = leader().publish(change(leader=1), change(leader=0))
    bench.produce().fetch(1, 4).fetch(2, 5).fetch(1, 5)
    assert consume(bench, 4, last_fetched_epoch=0).sent(ConsumeResponse).diverging_epoch is None
    answer = consume(bench, 5, last_fetched_epoch=1, max_wait_ms=500).sent(ConsumeResponse)
    assert (answer.diverging_epoch, answer.batches) == (EpochEndOffset(leader_epoch=0, end_offset=4), ())


@pytest.mark.parametrize(
    ("fields", "error", "offset"),
    [
        ({"timestamp": EARLIEST}, NONE, 0),
        ({"timestamp": LATEST}, NONE, 3),
        ({"timestamp": 5}, ErrorCode.INVALID_REQUEST, -1),
        ({"topic": "no"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ],
)
def test_list_offsets(fields: dict[str, object], error: ErrorCode, offset: int) -> None:
    stands: dict[str, object] = {"correlation_id": 7, "topic": "t", "partition": 0, "timestamp": LATEST}
    bench = leader().receive(CLIENT, ListOffsetsRequest(**(stands | fields)))
    answer = bench.sent(ListOffsetsResponse)
    assert (answer.correlation_id, answer.error, answer.offset) == (7, error, offset)


def test_only_the_leader_answers_list_offsets() -> None:
    bench = leader().publish(change(leader=1))
    bench.receive(CLIENT, ListOffsetsRequest(correlation_id=7, topic="t", partition=0, timestamp=LATEST))
    assert bench.sent(ListOffsetsResponse).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_batch_across_the_high_watermark_is_not_returned() -> None:
    bench = BrokerBench().run(*topic_records()).produce(count=2)
    bench.produce(batch=batch(2))
    assert shown(consume(bench.fetch(1, 2).fetch(2, 4), 0)) == [(1, NONE, [0])]
