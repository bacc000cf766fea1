"""The rules of when segments are closed and deleted. A broker that applies them: `broker/testdata/retention.txt`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.contract import SegmentInfo
from protocol.log.replica_log import UNLIMITED, retained_from, should_roll


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
