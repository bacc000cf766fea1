"""The producer state of a log: duplicates, gaps, epochs, wrapped sequence numbers, and truncation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.errors import ErrorCode
from protocol.log import producer_state
from protocol.log.producer_state import ProducedBatch, ProducerState
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import RecordBatch
from tests.unit.protocol.node_helpers import batch

NONE = ErrorCode.NONE
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
TOP = 2**31 - 1


def produced(sequence: int, count: int = 1, producer: int = 7, epoch: int = 0, at_ms: int = 0) -> RecordBatch:
    fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence, "timestamp_ms": at_ms}
    return RecordBatch(**({"record_count": count, "payload": b"p"} | fields))


def log_of(*batches: RecordBatch, expiration_ms: int = 1_000) -> ReplicaLog:
    log = ReplicaLog(SimLog(), 0, expiration_ms)
    for item in batches:
        log.append_as_leader(item, 1)
    return log


def verdict(log: ReplicaLog, item: RecordBatch) -> ErrorCode | int:
    """The error; for a duplicate the offset of the first append, for a batch that may be appended -1."""
    error, duplicate = log.producers.check(item)
    if error is not NONE:
        return error
    return -1 if duplicate is None else duplicate.base_offset


APPEND = -1
SEVEN = [produced(sequence) for sequence in range(7)]
VERDICTS: dict[str, tuple[list[RecordBatch], RecordBatch, ErrorCode | int]] = {
    "no producer id": ([produced(0)], batch(), APPEND),
    "first batch": ([], produced(0), APPEND),
    "unknown producer in the middle": ([], produced(3), ErrorCode.UNKNOWN_PRODUCER_ID),
    "the next one": ([produced(0, 3)], produced(3), APPEND),
    "a gap": ([produced(0, 3)], produced(4), GAP),
    "repeated": ([produced(0, 3)], produced(0, 3), 0),
    "repeated, not the last one": ([produced(0, 3), produced(3)], produced(0, 3), 0),
    "the oldest of the five that are kept": (SEVEN, produced(2), 2),
    "older than what is kept": (SEVEN, produced(1), ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    "a part of what was there": ([produced(0, 3)], produced(0, 2), ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    "more than what was there": ([produced(0, 3)], produced(1, 3), GAP),
    "an older epoch": ([produced(0, epoch=2)], produced(1, epoch=1), ErrorCode.INVALID_PRODUCER_EPOCH),
    "an older epoch, repeated": (
        [produced(0, epoch=1), produced(0, epoch=2)],
        produced(0, epoch=1),
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ),
    "a new epoch from 0": ([produced(0), produced(1)], produced(0, epoch=1), APPEND),
    "a new epoch in the middle": ([produced(0), produced(1)], produced(2, epoch=1), GAP),
    "another producer": ([produced(0, 3)], produced(0, 3, producer=8), APPEND),
    "the other producer's next": ([produced(0, 3)], produced(3, producer=8), ErrorCode.UNKNOWN_PRODUCER_ID),
}


@pytest.mark.parametrize(("before", "item", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_a_batch_is_appended_duplicate_or_refused(
    before: list[RecordBatch], item: RecordBatch, expected: ErrorCode | int
) -> None:
    assert verdict(log_of(*before), item) == expected


WRAPPED: dict[str, tuple[RecordBatch, ErrorCode | int]] = {
    "goes on at 0": (produced(0), APPEND),
    "goes on in the middle of a batch": (produced(TOP - 1, 2), 0),
    "does not go on at 1": (produced(1), GAP),
    "what lies before the end is old": (produced(TOP - 5), ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
}


@pytest.mark.parametrize(("item", "expected"), WRAPPED.values(), ids=WRAPPED)
def test_sequence_numbers_wrap(item: RecordBatch, expected: ErrorCode | int) -> None:
    log = log_of()
    log.append_as_leader(produced(TOP - 1, 2), 1)
    assert verdict(log, item) == expected


def test_a_batch_may_cross_the_wrap_of_sequence_numbers() -> None:
    log = log_of()
    log.append_as_leader(produced(TOP, 3), 1)
    assert verdict(log, produced(TOP, 3)) == 0
    assert (verdict(log, produced(2)), verdict(log, produced(3))) == (APPEND, GAP)


def test_a_producer_expires_by_the_timestamps_of_the_log() -> None:
    log = log_of(produced(0, at_ms=0), produced(0, producer=8, at_ms=1_000))
    assert verdict(log, produced(1, at_ms=9_999)) == APPEND, "its own timestamp does not count before it is appended"
    log.append_as_leader(produced(1, producer=8, at_ms=1_001), 1)
    assert verdict(log, produced(1)) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert verdict(log, produced(0)) == APPEND, "it starts again"
    log.truncate(2)
    assert verdict(log, produced(1)) == APPEND, "what made it expire is gone"


def test_many_expired_producers_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "_SWEEP_FROM", 8)
    state = ProducerState(expiration_ms=10)
    for number in range(100):
        item = replace(produced(0, producer=number, at_ms=number), base_offset=number)
        state.appended(item, high_watermark=number)
    assert sorted(state.entries()) == list(range(89, 100))
    assert len(state._entries) <= 2 * 8 + 11


def test_batches_without_producer_id_leave_no_state() -> None:
    log = log_of(batch(), batch())
    assert log.producers.entries() == {}
    assert not log.producers._undo


def test_leader_and_follower_have_the_same_producer_state() -> None:
    leader, follower = log_of(*SEVEN, produced(0, producer=9)), log_of()
    follower.append_as_follower(leader.storage.read(0, 10_000))
    assert follower.producers.entries() == leader.producers.entries()
    assert follower.producers.entries()[9].batches == (ProducedBatch(0, 0, 7, 8),)


def test_a_truncation_restores_what_the_removed_batches_replaced() -> None:
    log = log_of(produced(0, 2), produced(2), produced(0, epoch=1), produced(0, producer=8))
    log.truncate(2)
    assert log.producers.entries() == log_of(produced(0, 2)).producers.entries()
    assert (verdict(log, produced(2)), verdict(log, produced(0, 2))) == (APPEND, 0)


def test_a_truncation_below_a_snapshot_scans_the_log() -> None:
    """The snapshot names a second batch that is no longer in the log, and a producer all of whose batches are gone."""
    log = log_of(produced(0), produced(1), produced(0, producer=8))
    log.storage.flush()
    log.save_producers()
    again = ReplicaLog(log.storage, 0, 1_000)
    assert (verdict(again, produced(2)), verdict(again, produced(1, producer=8))) == (APPEND, APPEND)
    again.truncate(1)
    assert again.producers.entries() == log_of(produced(0)).producers.entries()


# -- any history -------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("bump"), st.integers(0, 2), st.integers(0, 0)),
        st.tuples(st.just("no producer"), st.integers(0, 0), st.integers(1, 2)),
        st.tuples(st.just("truncate"), st.integers(0, 12), st.integers(0, 0)),
        st.tuples(st.just("commit"), st.integers(0, 12), st.integers(0, 0)),
        st.tuples(st.just("reopen"), st.integers(0, 1), st.integers(0, 0)),
        st.tuples(st.just("wait"), st.integers(1, 400), st.integers(0, 0)),
    ),
    max_size=40,
)


class Log:
    """A log, and the next batch of each producer."""

    def __init__(self) -> None:
        self.log = log_of()
        self.now_ms = 0

    def next_of(self, producer: int, count: int, bump: int) -> RecordBatch:
        entry = self.log.producers.entry(producer)
        if entry is None or bump:
            return produced(0, count, producer, 0 if entry is None else entry.epoch + bump, self.now_ms)
        sequence = producer_state.sequence_after(entry.last_sequence)
        return produced(sequence, count, producer, entry.epoch, self.now_ms)

    def step(self, kind: str, number: int, count: int) -> None:
        log = self.log
        if kind in ("append", "bump"):
            item = self.next_of(number, max(count, 1), int(kind == "bump"))
            assert verdict(log, item) == APPEND
            log.append_as_leader(item, 1)
            assert verdict(log, item) == log.end_offset - item.record_count, "it would be known again"
        elif kind == "no producer":
            log.append_as_leader(batch(count), 1)
        elif kind == "truncate":
            log.truncate(max(0, log.end_offset - number))
        elif kind == "commit":
            log.advance_high_watermark(log.end_offset - number)
        elif kind == "reopen":
            self.log = ReplicaLog(log.storage, log.high_watermark * number, 1_000)
        else:
            self.now_ms += number


@settings(deadline=None)
@given(STEPS)
def test_the_state_equals_that_of_a_scan_after_any_operations(steps: list[tuple[str, int, int]]) -> None:
    under_test = Log()
    for step in steps:
        under_test.step(*step)
        scanned = ReplicaLog(under_test.log.storage, 0, 1_000)
        assert under_test.log.producers.entries() == scanned.producers.entries()


@pytest.mark.parametrize("start", [0, 4])
def test_a_log_is_scanned_from_its_log_start(start: int) -> None:
    log = log_of()
    log.reset(start)
    log.append_as_leader(produced(0), 1)
    log.truncate(start)
    assert log.producers.entries() == {}
    again: Any = ReplicaLog(log.storage, start, 1_000)
    assert again.end_offset == start
