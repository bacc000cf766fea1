"""Logs that do not begin at 0: deletion from the front, reset, and divergence of two such logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.errors import ErrorCode
from protocol.log.epochs import LeaderEpochCache
from protocol.log.replica_log import ReplicaLog
from protocol.messages.data import EpochEndOffset, FetchResponse
from protocol.messages.records import PartitionChangeRecord
from tests.unit.protocol.node_helpers import BrokerBench, batch, topic_records


def log_of(*epochs: int, start: int = 0) -> ReplicaLog:
    """A log with one record per segment; the committed ones below `start` are deleted."""
    log = ReplicaLog(SimLog())
    log.segment_bytes = 1
    for epoch in epochs:
        log.append_as_leader(batch(1, payload=b"%d" % epoch), epoch)
    log.advance_high_watermark(start)
    assert log.delete_segments_before(start) == (start > 0)
    return log


def test_segments_keep_segment_bytes_and_closing_one_flushes_it() -> None:
    log = ReplicaLog(SimLog())
    log.segment_bytes = 2 * (BATCH_OVERHEAD_BYTES + 1)
    flushed = []
    for _ in range(5):
        log.append_as_leader(batch(1), 0)
        flushed.append(log.storage.flushed_offset)
    assert [segment.base_offset for segment in log.storage.segments()] == [0, 2, 4]
    assert flushed == [0, 0, 2, 2, 4]
    assert log.has_closed_segments


@pytest.mark.parametrize(("wanted", "high_watermark", "expected"), [(3, 4, 3), (4, 2, 2), (9, 9, 4), (0, 4, 0)])
def test_deletion_stops_at_the_high_watermark_and_the_active_segment(
    wanted: int, high_watermark: int, expected: int
) -> None:
    log = log_of(1, 1, 2, 2, 3)
    log.advance_high_watermark(high_watermark)
    log.delete_segments_before(wanted)
    assert log.start_offset == expected
    again = ReplicaLog(log.storage, 0)
    assert again.epochs.entries() == log.epochs.entries()
    assert again.high_watermark == expected, "what was deleted was committed"


def test_the_epochs_of_deleted_records_are_removed_except_the_current_one() -> None:
    assert log_of(1, 1, 2, 2, 3, start=1).epochs.entries() == [(1, 1), (2, 2), (3, 4)]
    assert log_of(1, 1, 2, 2, 3, start=2).epochs.entries() == [(2, 2), (3, 4)]
    assert log_of(1, 1, 2, 2, 3, start=3).epochs.entries() == [(2, 3), (3, 4)]


def test_a_log_whose_records_are_all_deleted_keeps_its_last_epoch() -> None:
    log = log_of(1, 2)
    log.advance_high_watermark(2)
    log.storage.roll()
    assert log.delete_segments_before(2)
    assert (log.start_offset, log.end_offset, log.latest_epoch) == (2, 2, 2)
    again = ReplicaLog(log.storage)
    assert (again.latest_epoch, again.high_watermark) == (2, 2)
    again.append_as_leader(batch(1), 3)
    assert again.epochs.entries() == [(3, 2)]


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (2, -1, None),
        (5, -1, None),
        (2, 1, None),
        (2, 2, None),
        (3, 2, None),
        (4, 2, None),
        (3, 1, (1, 2)),
        (5, 2, (2, 4)),
        (5, 3, None),
        (6, 3, (3, 5)),
        (6, -1, (-1, 0)),
        (1, -1, (-1, 0)),
    ],
)
def test_divergence_from_a_log_that_starts_at_2(offset: int, epoch: int, expected: tuple[int, int] | None) -> None:
    """Epochs 1, 1, 2, 2, 3, of which the first two records are deleted: at the log start every older epoch agrees."""
    found = log_of(1, 1, 2, 2, 3, start=2).divergence(offset, epoch)
    assert found == (None if expected is None else EpochEndOffset(leader_epoch=expected[0], end_offset=expected[1]))


@pytest.mark.parametrize(("epoch", "expected"), [(-1, False), (0, True), (1, True), (2, False), (3, False), (4, False)])
def test_has_forgotten_epochs_without_records(epoch: int, expected: bool) -> None:
    assert log_of(1, 1, 2, 2, 3, start=2).has_forgotten(epoch) is expected
    assert not log_of(1, 1, 2, 2, 3).has_forgotten(epoch), "nothing is deleted"


def test_truncation_below_the_log_start_resets_the_log() -> None:
    log = log_of(1, 1, 2, 2, 3, start=3)
    assert log.truncation_offset(EpochEndOffset(leader_epoch=1, end_offset=2)) == 2
    log.truncate(2)
    assert (log.start_offset, log.end_offset, log.high_watermark, log.latest_epoch) == (2, 2, 2, -1)
    assert not log.has_closed_segments


def test_truncation_above_the_log_end_changes_nothing() -> None:
    log = log_of(1, 2)
    log.advance_high_watermark(2)
    log.storage.roll()
    log.delete_segments_before(2)
    log.truncate(2)
    assert log.latest_epoch == 2


@given(st.lists(st.integers(0, 2), min_size=1, max_size=10), st.data())
def test_logs_with_different_log_starts_converge(rises: list[int], data: st.DataObject) -> None:
    """A follower whose log start differs from the leader's has the leader's records after a few fetches."""
    epochs = [sum(rises[: place + 1]) for place in range(len(rises))]
    leader = log_of(*epochs, start=data.draw(st.integers(0, len(epochs) - 1)))
    kept = data.draw(st.integers(0, len(epochs)))
    tail = data.draw(st.lists(st.just(epochs[-1] + 1), max_size=3))
    follower = log_of(*epochs[:kept], *tail)
    follower.advance_high_watermark(kept)
    follower.delete_segments_before(data.draw(st.integers(0, kept)))
    for _ in range(2 * len(epochs) + 5):
        if follower.end_offset < leader.start_offset:
            follower.reset(leader.start_offset)
            continue
        diverging = leader.divergence(follower.end_offset, follower.latest_epoch)
        if diverging is not None:
            follower.truncate(follower.truncation_offset(diverging))
        elif follower.end_offset < leader.end_offset:
            follower.append_as_follower(leader.storage.read(follower.end_offset, 1))
    assert follower.end_offset == leader.end_offset
    start = max(leader.start_offset, follower.start_offset)
    assert list(follower.storage.read(start, 2**40)) == list(leader.storage.read(start, 2**40))


def test_the_epoch_cache_replaces_an_epoch_without_records() -> None:
    cache = LeaderEpochCache()
    cache.assign(1, 0)
    cache.assign(2, 5)
    cache.forget_before(7)
    assert cache.entries() == [(2, 7)]
    cache.assign(4, 7)
    assert cache.entries() == [(4, 7)]
    cache.forget_before(3)
    assert cache.entries() == [(4, 7)]
    cache.clear()
    assert (cache.entries(), cache.latest_epoch) == ([], -1)


@pytest.mark.covers("N1")
@pytest.mark.parametrize(("offset", "epoch"), [(1, 0), (2, 0), (1, 1), (2, 1), (1, -1)])
def test_a_follower_whose_last_epoch_is_deleted_starts_again(offset: int, epoch: int) -> None:
    """The leader's log has one record, of epoch 1 at offset 1; one of epoch 0 is deleted."""
    bench = BrokerBench().run(*topic_records(1, isr=(0,), leader_epoch=0)).produce(acks=1)
    log = bench.replica.log
    log.storage.roll()
    assert log.delete_segments_before(1)
    bench.publish(PartitionChangeRecord(topic_id="T", partition_id=0, leader=0)).produce(acks=1)
    assert log.epochs.entries() == [(1, 1)]
    [(_, answer)] = bench.fetch(1, offset, last_fetched_epoch=epoch).sends(FetchResponse)
    [found] = answer.partitions
    if epoch == 0:
        assert (found.error, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)
    else:
        assert (found.error, found.diverging_epoch) == (ErrorCode.NONE, None)
