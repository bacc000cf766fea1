"""The meter of `isray produce --throughput`, against values by hand."""

from __future__ import annotations

from experiments.bench.producer_load import Meter, words
from protocol.errors import ErrorCode
from protocol.messages.commands import SendOutcome, SentRange

ALL, ONE = -1, 1


def outcome(command_id: int, *parts: tuple[int, ErrorCode, bool]) -> SendOutcome:
    """Parts are (records, error, unknown)."""
    ranges, first = [], 0
    for records, error, unknown in parts:
        ranges.append(SentRange(first=first, count=records, partition=0, error=error, unknown=unknown))
        first += records
    return SendOutcome(command_id=command_id, error=parts[0][1], ranges=tuple(ranges))


def ok(command_id: int, records: int) -> SendOutcome:
    return outcome(command_id, (records, ErrorCode.NONE, False))


def test_rates_latencies_and_gaps_of_a_run_by_hand() -> None:
    """Of 200 records, 197 are acknowledged: 98 after 4 ms, 98 after 6 ms, 1 after 500 ms. The 99th smallest of 197
    (half of it, rounded up) is the first of 6 ms; the 196th (99 %, rounded up from 195.03) the last of 6 ms. There are
    acknowledgements at 1,004, 1,106 and 1,700 in a sending from 1,000 to 3,000: the longest time between them, the
    beginning and the end is the last one. 197 records of 500 bytes in 2 s are 98.5 records/s and 0.04925 MB/s.
    """
    meter = Meter(began_ms=1_000, record_bytes=500)
    for command_id, now_ms, records in ((1, 1_000, 98), (2, 1_100, 98), (3, 1_200, 4)):
        meter.begin(command_id, now_ms, records)
    meter.end(ok(1, 98), ALL, 1_004)
    meter.end(ok(2, 98), ALL, 1_106)
    parts = (1, ErrorCode.NONE, False), (2, ErrorCode.INVALID_RECORD, False), (1, ErrorCode.REQUEST_TIMED_OUT, True)
    meter.end(outcome(3, *parts), ALL, 1_700)
    found = meter.document(3_000)
    assert found == {
        "records": 200,
        "acknowledged": 197,
        "failed": 2,
        "unknown": 1,
        "seconds": 2.0,
        "records_per_second": 98.5,
        "mb_per_second": 0.049,
        "latency_ms": {"p50": 6, "p99": 6, "max": 500},
        "longest_gap_ms": 1_300,
    }
    assert "200 records sent, 197 acknowledged, 2 failed, 1 unknown; 98.5 records/s" in words(found)


def test_a_cluster_that_acknowledges_nothing_has_one_gap_and_no_latency() -> None:
    meter = Meter(began_ms=50, record_bytes=100)
    meter.begin(1, 60, 7)
    meter.abandon()
    found = meter.document(1_050)
    assert (found["longest_gap_ms"], found["unknown"], found["acknowledged"]) == (1_000, 7, 0)
    assert found["latency_ms"] == {"p50": None, "p99": None, "max": None}


def test_an_acknowledgement_after_the_end_of_the_sending_ends_no_gap() -> None:
    meter = Meter(began_ms=0, record_bytes=100)
    meter.begin(1, 0, 1)
    meter.end(ok(1, 1), ONE, 900)
    assert meter.counts["acknowledged"] == 1
    assert meter.longest_gap_ms(600) == 600
    assert meter.longest_gap_ms(1_000) == 900
