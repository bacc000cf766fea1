"""Gathered batches that are too large for their topic are split in their place, with their sequence numbers."""

from __future__ import annotations

import zlib

from protocol.client.records import identity, joined_size, split
from protocol.errors import ErrorCode
from protocol.log.checksum import is_intact
from protocol.messages.commands import SendOutcome, SentRange
from protocol.messages.data import ProduceRequest
from tests.unit.protocol.client.client_helpers import DELIVERY_MS, ClientBench, client_config, numbers

NONE = ErrorCode.NONE
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
SIZE = joined_size(12)
"""Bytes of a record in a batch."""


def records(request: ProduceRequest) -> list[tuple[int, int]]:
    """Command and number of the records in a batch."""
    return [identity(data) for data in split(request.batch.payload)]


def outcomes(bench: ClientBench) -> list[SendOutcome]:
    return [item for item in bench.outcomes if isinstance(item, SendOutcome)]


def test_a_gathered_batch_that_is_too_large_is_split_in_its_place() -> None:
    bench = ClientBench(config=client_config(batch_size=5 * SIZE), checksum=zlib.crc32)
    first, second = bench.send_records(1, 10).requests()
    bench.answer(second, GAP)
    halves = bench.answer(first, ErrorCode.MESSAGE_TOO_LARGE).requests()
    assert [records(request) for request in halves[:2]] == [[(1, 0), (1, 1)], [(1, 2), (1, 3), (1, 4)]]
    assert numbers(halves) == [(5, 0, 0), (5, 0, 2), (5, 0, 5)], "the next one follows the halves again"
    assert all(is_intact(request.batch, zlib.crc32) and request.batch.crc >= 0 for request in halves)
    bench.answer(halves[0])
    quarters = bench.answer(halves[1], ErrorCode.MESSAGE_TOO_LARGE).requests()
    assert numbers(quarters[:2]) == [(5, 0, 2), (5, 0, 3)]
    for request in (*quarters[:2], halves[2]):
        bench.answer(request)
    [outcome] = outcomes(bench)
    assert outcome.ranges == (SentRange(first=0, count=10, partition=0, error=NONE, base_offset=0),)
    assert bench.is_at_rest()


def test_a_single_record_that_is_too_large_definitely_fails() -> None:
    bench = ClientBench(config=client_config(batch_size=2 * SIZE))
    [request] = bench.send_records(1, 2).requests()
    for half in bench.answer(request, ErrorCode.MESSAGE_TOO_LARGE).requests():
        bench.answer(half, ErrorCode.MESSAGE_TOO_LARGE)
    [outcome] = outcomes(bench)
    assert [(part.count, part.error, part.unknown) for part in outcome.ranges] == [
        (2, ErrorCode.MESSAGE_TOO_LARGE, False)
    ]
    assert bench.is_at_rest()


def test_a_batch_that_may_be_in_the_log_is_not_split() -> None:
    bench = ClientBench(config=client_config(batch_size=2 * SIZE))
    [request] = bench.send_records(1, 2).requests()
    bench.leader_epoch = 1
    [again] = bench.answer(request, ErrorCode.REQUEST_TIMED_OUT, base_offset=0).watch().requests()
    assert bench.answer(again, ErrorCode.MESSAGE_TOO_LARGE).requests() == []
    [outcome] = outcomes(bench)
    assert [(part.error, part.unknown) for part in outcome.ranges] == [(ErrorCode.MESSAGE_TOO_LARGE, True)]


def test_halves_without_sequence_numbers_are_sent_as_well() -> None:
    bench = ClientBench(config=client_config(batch_size=4 * SIZE, enable_idempotence=False))
    [request] = bench.send_records(1, 4).requests()
    halves = bench.answer(request, ErrorCode.MESSAGE_TOO_LARGE).requests()
    assert [records(half) for half in halves] == [[(1, 0), (1, 1)], [(1, 2), (1, 3)]]
    bench.answer(halves[0], base_offset=7).answer(halves[1], base_offset=9)
    [outcome] = outcomes(bench)
    assert outcome.ranges == (SentRange(first=0, count=4, partition=0, error=NONE, base_offset=7),)


def test_halves_keep_the_deadline_of_the_whole() -> None:
    bench = ClientBench(config=client_config(batch_size=2 * SIZE))
    [request] = bench.send_records(1, 2).requests()
    bench.now_ms = DELIVERY_MS // 2
    bench.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    bench.leader = None
    bench.run_until(DELIVERY_MS + 10)
    [outcome] = outcomes(bench)
    assert [(part.count, part.unknown) for part in outcome.ranges] == [(2, True)]
    assert bench.is_at_rest()
