"""When segments are closed and deleted: the rules, and a broker that applies them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.broker.flushing import RETENTION_TIMER
from protocol.config import Generation
from protocol.contract import BATCH_OVERHEAD_BYTES, SegmentInfo
from protocol.events.registry import detail_of
from protocol.log.replica_log import UNLIMITED, retained_from, should_roll
from protocol.messages.batch import RecordBatch
from protocol.messages.records import ConfigRecord
from tests.unit.protocol.node_helpers import BrokerBench, config_of, topic_records

INTERVAL_MS = 1_000
BATCH_BYTES = BATCH_OVERHEAD_BYTES + 48


@pytest.mark.parametrize(
    ("active", "added", "limit", "expected"),
    [(0, 500, 100, False), (50, 50, 100, False), (50, 51, 100, True), (100, 1, 100, True), (1, 1, 1, True)],
)
def test_a_segment_is_closed_before_it_gets_too_large(active: int, added: int, limit: int, expected: bool) -> None:
    assert should_roll(active, added, limit) is expected


def row(*segments: tuple[int, int]) -> list[SegmentInfo]:
    """Segments of 10 records each, given as (size, newest timestamp)."""
    return [SegmentInfo(10 * at, 10 * at + 10, size, newest) for at, (size, newest) in enumerate(segments)]


SEGMENTS = row((100, 10), (100, 20), (100, 30), (50, 40))


@pytest.mark.parametrize(
    ("high_watermark", "now_ms", "retention_ms", "retention_bytes", "expected"),
    [
        (40, 1_000, UNLIMITED, UNLIMITED, 0),
        (40, 30, 20, UNLIMITED, 0),
        (40, 31, 20, UNLIMITED, 10),
        (40, 1_000, 20, UNLIMITED, 30),
        (40, 1_000, 0, 0, 30),
        (29, 1_000, 20, UNLIMITED, 20),
        (9, 1_000, 20, UNLIMITED, 0),
        (40, 0, UNLIMITED, 350, 0),
        (40, 0, UNLIMITED, 251, 0),
        (40, 0, UNLIMITED, 250, 10),
        (40, 0, UNLIMITED, 150, 20),
        (15, 0, UNLIMITED, 150, 10),
        (40, 41, 20, 150, 20),
    ],
)
def test_old_and_excess_segments_are_deleted_from_the_front(
    high_watermark: int, now_ms: int, retention_ms: int, retention_bytes: int, expected: int
) -> None:
    assert retained_from(SEGMENTS, high_watermark, now_ms, retention_ms, retention_bytes) == expected


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ((-1, 1, 1), 20),
        ((-1, -1, 1), 20),
        ((-1, -1, -1), 0),
        ((1, -1, -1), 10),
        ((-1, 100, 1), 0),
        ((-1, 1, 100), 20),
        ((1, 101, 1), 10),
        ((0, 0, 0), 20),
        ((0, 10**15, 0), 10),
    ],
)
def test_a_segment_without_timestamps_is_as_old_as_the_next_that_has_any(
    newest: tuple[int, ...], expected: int
) -> None:
    assert retained_from(row(*((100, newest_ms) for newest_ms in newest)), 30, 101, 1, UNLIMITED) == expected


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(-1, 100)), min_size=1, max_size=8),
    st.integers(0, 80),
    st.integers(0, 200),
    st.integers(-1, 100),
    st.integers(-1, 400),
)
def test_only_committed_closed_segments_are_deleted_and_no_more_than_needed(
    sizes: list[tuple[int, int]], high_watermark: int, now_ms: int, retention_ms: int, retention_bytes: int
) -> None:
    segments = row(*sizes)
    offset = retained_from(segments, high_watermark, now_ms, retention_ms, retention_bytes)
    kept = [segment for segment in segments if segment.base_offset >= offset]
    assert kept
    assert offset <= max(high_watermark, 0)
    if offset and retention_ms == UNLIMITED:
        assert sum(segment.size_bytes for segment in kept) >= retention_bytes > UNLIMITED


# -- a broker ----------------------------------------------------------------------------------------------------------


def leader(**configs: object) -> BrokerBench:
    """Broker 0 leads `t-0` alone; segments hold two batches of `produce`."""
    values = {"segment.bytes": 2 * BATCH_BYTES, "retention.bytes": 2 * BATCH_BYTES} | {
        name.replace("_", "."): value for name, value in configs.items()
    }
    overrides = [ConfigRecord(topic_id="T", name=name, value=str(value)) for name, value in values.items()]
    config = config_of(Generation.KIP_966, log_retention_check_interval_ms=INTERVAL_MS)
    records = topic_records(1, replicas=(0,), isr=(0,))
    return BrokerBench(config=config).run(*records[:2], *overrides, *records[2:])


def produce(bench: BrokerBench, count: int, timestamp_ms: int = -1) -> None:
    for _ in range(count):
        bench.produce(batch=RecordBatch(record_count=1, payload=b"x" * 48, timestamp_ms=timestamp_ms))


def bases(bench: BrokerBench) -> list[int]:
    return [segment.base_offset for segment in bench.replica.log.storage.segments()]


def test_a_log_of_one_segment_sets_no_retention_timer() -> None:
    bench = leader()
    for _ in range(2):
        produce(bench, 1)
        assert bench.timer(RETENTION_TIMER) is None
    produce(bench, 1)
    timer = bench.timer(RETENTION_TIMER)
    assert timer is not None
    assert timer.at_ms == INTERVAL_MS
    assert bases(bench) == [0, 2]


def test_later_appends_do_not_delay_the_retention_timer() -> None:
    bench = leader()
    produce(bench, 3)
    assert bench.timer(RETENTION_TIMER) is not None
    for _ in range(4):
        produce(bench, 1)
        assert bench.timer(RETENTION_TIMER) is None


def test_a_closed_segment_is_flushed() -> None:
    bench = leader()
    produce(bench, 5)
    assert bench.replica.log.storage.flushed_offset == 4


def test_excess_segments_are_deleted_and_the_timer_stops_with_the_last_closed_one() -> None:
    bench = leader()
    produce(bench, 6)
    bench.fire(RETENTION_TIMER, at_ms=INTERVAL_MS)
    assert bases(bench) == [4]
    assert [detail_of(trace) for trace in bench.traces("segments_deleted")] == [{"log_start": 4}]
    assert bench.timer(RETENTION_TIMER) is None
    assert (bench.replica.log.start_offset, bench.replica.log.epochs.entries()) == (4, [(0, 4)])


def test_old_segments_are_deleted_by_the_timestamps_of_their_records() -> None:
    bench = leader(retention_bytes=-1, retention_ms=5_000)
    produce(bench, 2, timestamp_ms=1_000)
    produce(bench, 3, timestamp_ms=2_000)
    bench.fire(RETENTION_TIMER, at_ms=6_000)
    assert bases(bench) == [0, 2, 4]
    timer = bench.timer(RETENTION_TIMER)
    assert timer is not None
    bench.fire(RETENTION_TIMER, at_ms=6_001)
    assert bases(bench) == [2, 4]
    bench.fire(RETENTION_TIMER, at_ms=7_001)
    assert bases(bench) == [4]


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    config = config_of(Generation.KIP_966, log_retention_check_interval_ms=INTERVAL_MS)
    override = ConfigRecord(topic_id="T", name="segment.bytes", value=str(BATCH_BYTES))
    records = topic_records(1)
    bench = BrokerBench(config=config).run(
        *records[:2], override, ConfigRecord(topic_id="T", name="retention.bytes", value="0"), *records[2:]
    )
    produce(bench, 4)
    bench.fetch(1, 2).fetch(2, 3)
    assert bench.high_watermark == 2
    bench.fire(RETENTION_TIMER, at_ms=INTERVAL_MS)
    assert bases(bench) == [2, 3]


def test_a_changed_segment_size_applies_from_the_next_batch_on() -> None:
    bench = leader()
    produce(bench, 1)
    bench.publish(ConfigRecord(topic_id="T", name="segment.bytes", value="1"))
    produce(bench, 2)
    assert bases(bench) == [0, 1, 2]


def test_a_restarted_broker_watches_its_closed_segments() -> None:
    bench = leader()
    produce(bench, 3)
    again = BrokerBench(config=config_of(log_retention_check_interval_ms=INTERVAL_MS), storage=bench.storage)
    again.start().registered().publish(*bench.records)
    assert again.timer(RETENTION_TIMER) is not None
    assert bases(again) == [0, 2]
