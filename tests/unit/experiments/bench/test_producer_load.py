"""The meter of `isray produce --throughput`, against values by hand."""

from __future__ import annotations

from experiments.bench.producer_load import Meter, words
from protocol.errors import ErrorCode
from protocol.messages.commands import ProduceOutcome

ALL, ONE = -1, 1


def outcome(command_id: int, error: ErrorCode = ErrorCode.NONE, unknown: bool = False) -> ProduceOutcome:
    return ProduceOutcome(command_id=command_id, error=error, base_offset=0, unknown=unknown)


def test_rates_latencies_and_gaps_of_a_run_by_hand() -> None:
    """Of 200 records, 197 are acknowledged: 98 after 4 ms, 98 after 6 ms, 1 after 500 ms. The 99th smallest of 197
    (half of it, rounded up) is the first of 6 ms; the 196th (99 %, rounded up from 195.03) the last of 6 ms. There are
    acknowledgements at 1,004, 1,106 and 1,700 in a sending from 1,000 to 3,000: the longest time between them, the
    beginning and the end is the last one. 197 records of 500 bytes in 2 s are 98.5 records/s and 0.04925 MB/s.
    """
    meter = Meter(began_ms=1_000, record_bytes=500)
    sent = ((1, 1_000, 98), (2, 1_100, 98), (3, 1_200, 1), (4, 1_200, 2), (5, 1_200, 1))
    for command_id, now_ms, records in sent:
        meter.begin(command_id, now_ms, records)
    meter.end(outcome(1), ALL, 1_004)
    meter.end(outcome(2), ALL, 1_106)
    meter.end(outcome(3), ALL, 1_700)
    meter.end(outcome(4, ErrorCode.INVALID_RECORD), ALL, 1_700)
    meter.end(outcome(5, ErrorCode.REQUEST_TIMED_OUT, unknown=True), ALL, 2_900)
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
    meter.end(outcome(1), ONE, 900)
    assert meter.counts["acknowledged"] == 1
    assert meter.longest_gap_ms(600) == 600
    assert meter.longest_gap_ms(1_000) == 900
