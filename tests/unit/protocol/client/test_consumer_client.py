"""The client's consumer: start offset, end of a read, and a leader whose log has diverged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.broker.reads import read
from protocol.client.context import DEADLINE_PREFIX, WATCH_MS, WATCH_PREFIX
from protocol.errors import ErrorCode
from protocol.ids import DRIVER, NO_LEADER
from protocol.log.replica_log import ReplicaLog
from protocol.messages.commands import ConsumeCommand, ConsumeOutcome
from protocol.messages.data import (
    EARLIEST,
    LATEST,
    ConsumeRequest,
    ConsumeResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.unit.protocol.client.client_helpers import BACKOFF_MS, DELIVERY_MS, ClientBench
from tests.unit.protocol.node_helpers import batch

NONE = ErrorCode.NONE
OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


def log_of(*epochs: int, start: int = 0, committed: int | None = None) -> ReplicaLog:
    """Batches of one record each in these leader epochs, the first at `start`; `committed` is the high watermark."""
    log = ReplicaLog(SimLog())
    if start:
        log.reset(start)
    for epoch in epochs:
        log.append_as_leader(batch(), epoch)
    log.advance_high_watermark(log.end_offset if committed is None else committed)
    return log


class Reader(ClientBench):
    """A client with one read of `t-0` in progress, and the leader's log."""

    def __init__(self, log: ReplicaLog, leader: int = 0, **fields: object) -> None:
        super().__init__()
        self.leader = leader
        self.log = log
        self.asked: list[ConsumeRequest] = []
        stands: dict[str, object] = {"command_id": 1, "topic": "t", "partition": 0}
        self.receive(DRIVER, ConsumeCommand(**(stands | fields)))

    def serve(self, steps: int = 1, max_bytes: int = 1) -> Reader:
        """The leader answers the last request, one batch at a time, `steps` times."""
        for _ in range(steps):
            for request in self.messages(ListOffsetsRequest):
                offset = self.log.high_watermark
                self.receive(0, ListOffsetsResponse(correlation_id=request.correlation_id, offset=offset))
            for fetch in self.messages(ConsumeRequest):
                self.asked.append(fetch)
                self.receive(0, read(self.log, fetch, max_bytes))
        return self

    def refuse(self, error: ErrorCode) -> Reader:
        [fetch] = self.messages(ConsumeRequest)
        self.receive(0, ConsumeResponse(correlation_id=fetch.correlation_id, error=error))
        return self

    def outcome(self) -> ConsumeOutcome:
        [found] = self.outcomes
        assert isinstance(found, ConsumeOutcome)
        assert self.is_at_rest()
        return found

    def offsets(self) -> list[int]:
        return [item.base_offset for item in self.outcome().batches]


BEGINNINGS: dict[str, tuple[int, list[int]]] = {
    "earliest": (EARLIEST, [10, 11, 12]),
    "latest": (LATEST, []),
    "in the middle": (11, [11, 12]),
    "at the end": (13, []),
    "at the log start": (10, [10, 11, 12]),
}


@pytest.mark.parametrize(("offset", "expected"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_the_start_offset_of_a_read(offset: int, expected: list[int]) -> None:
    reader = Reader(log_of(0, 0, 0, start=10), offset=offset).serve(5)
    assert reader.offsets() == expected
    assert reader.outcome().next_offset == 13


@pytest.mark.parametrize("offset", [9, 14, 2**62])
def test_out_of_range_carries_the_valid_range(offset: int) -> None:
    outcome = Reader(log_of(0, 0, 0, start=10), offset=offset).serve(5).outcome()
    assert (outcome.error, outcome.log_start_offset, outcome.high_watermark) == (OUT_OF_RANGE, 10, 13)
    assert (outcome.batches, outcome.next_offset) == ((), -1)


@pytest.mark.covers("E7")
def test_uncommitted_records_are_not_read() -> None:
    reader = Reader(log_of(0, 0, 0, 0, committed=2)).serve(5)
    assert (reader.offsets(), reader.outcome().high_watermark) == ([0, 1], 2)


def test_a_read_reports_the_highest_high_watermark_of_all_leaders() -> None:
    reader = Reader(log_of(0, 0)).serve()
    reader.log = log_of(0, 0, committed=0)
    reader.serve()
    assert (reader.offsets(), reader.outcome().high_watermark) == ([0], 2)


def test_a_read_ends_at_the_high_watermark_of_the_first_response() -> None:
    reader = Reader(log_of(0, 0)).serve()
    reader.log.append_as_leader(batch(), 0)
    reader.log.advance_high_watermark(3)
    assert reader.serve(5).offsets() == [0, 1]


def test_a_read_ends_at_max_bytes() -> None:
    reader = Reader(log_of(0, 0, 0, 0), max_bytes=2).serve(5)
    assert (reader.offsets(), reader.outcome().next_offset) == ([0, 1], 2)
    assert [fetch.max_bytes for fetch in reader.asked] == [2, 1]


def test_only_the_first_request_waits_for_records() -> None:
    reader = Reader(log_of(0, 0), max_wait_ms=700)
    assert reader.timers[f"{WATCH_PREFIX}1"] == WATCH_MS + 700
    assert reader.timers[f"{DEADLINE_PREFIX}1"] == DELIVERY_MS + 700
    assert [fetch.max_wait_ms for fetch in reader.serve(5).asked] == [700, 0]


def test_a_read_continues_at_the_next_leader_from_its_position() -> None:
    reader = Reader(log_of(0, 0, 0)).serve(2)
    reader.leader, reader.leader_epoch = 1, 1
    reader.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert reader.timers[f"{WATCH_PREFIX}1"] == BACKOFF_MS
    reader.fire(WATCH_PREFIX)
    [(to, fetch)] = [(to, sent) for to, sent in reader.sent if isinstance(sent, ConsumeRequest)]
    assert (to, fetch.fetch_offset, fetch.last_fetched_epoch) == (1, 2, 0)
    assert reader.serve(5).offsets() == [0, 1, 2]


def test_a_request_without_a_response_is_repeated() -> None:
    reader = Reader(log_of(0, 0)).serve()
    [lost] = reader.messages(ConsumeRequest)
    [again] = reader.fire(WATCH_PREFIX).messages(ConsumeRequest)
    assert again.fetch_offset == lost.fetch_offset == 1
    reader.serve(5)
    late = read(reader.log, lost, 100)
    assert reader.receive(0, late).sent == []
    assert reader.offsets() == [0, 1]


def test_batches_lost_in_an_unclean_election_are_replaced_by_the_new_ones() -> None:
    reader = Reader(log_of(0, 0, 0, 0)).serve(3)
    reader.log = log_of(0, 0, 2, 2, 2)
    outcome = reader.serve(6).outcome()
    assert [(item.base_offset, item.leader_epoch) for item in outcome.batches] == [(0, 0), (1, 0), (2, 2), (3, 2)]


def test_a_read_from_earliest_begins_again_when_the_log_is_shorter() -> None:
    reader = Reader(log_of(0, 0, 0, 0)).serve(3)
    reader.log = log_of(0)
    reader.serve(1).fire(WATCH_PREFIX)
    assert reader.serve(5).offsets() == [0]


def test_a_non_retriable_error_is_final() -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert Reader(log_of(0)).refuse(denied).outcome().error is denied


def test_a_read_of_a_partition_without_a_leader_waits_for_one() -> None:
    reader = Reader(log_of(0, 0), leader=NO_LEADER)
    assert not reader.messages(ConsumeRequest)
    reader.leader, reader.leader_epoch = 0, 1
    assert reader.fire(WATCH_PREFIX).serve(5).offsets() == [0, 1]


def test_a_partition_that_gets_no_leader_fails_the_read_with_leader_not_available() -> None:
    reader = Reader(log_of(0), leader=NO_LEADER)
    reader.run_until(DELIVERY_MS)
    assert reader.outcome().error is ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("error", [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_final_error_ends_the_read_at_once(error: ErrorCode) -> None:
    if error is ErrorCode.LEADER_NOT_AVAILABLE:
        reader = Reader(log_of(0), leader=NO_LEADER, final_errors=(error,))
    else:
        reader = Reader(log_of(0), final_errors=(error,)).refuse(error)
    assert (reader.outcome().error, reader.now_ms) == (error, 0)


def test_a_silent_leader_fails_the_read_at_the_deadline() -> None:
    reader = Reader(log_of(0))
    reader.run_until(DELIVERY_MS)
    assert reader.outcome().error is ErrorCode.REQUEST_TIMED_OUT


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["serve", "serve", "lose", "move", "append", "delete"]), max_size=30),
    st.sampled_from([EARLIEST, LATEST, 0, 2, 3]),
)
def test_each_offset_is_read_once_and_in_order(events: list[str], offset: int) -> None:
    reader = Reader(log_of(0, 0, 0), offset=offset)
    for event in events:
        if reader.outcomes:
            break
        if event == "serve":
            reader.serve()
        elif event == "lose":
            reader.fire(WATCH_PREFIX)
        elif event == "move":
            reader.leader_epoch += 1
            for fetch in reader.messages(ConsumeRequest):
                refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
                reader.receive(0, ConsumeResponse(correlation_id=fetch.correlation_id, error=refused))
        elif event == "append":
            reader.log.append_as_leader(batch(), reader.leader_epoch)
            reader.log.advance_high_watermark(reader.log.end_offset)
        else:
            reader.log.storage.roll()
            reader.log.delete_segments_before(reader.log.end_offset - 1)
    for _ in range(20):
        reader.serve(10, 100)
        if reader.outcomes:
            break
        reader.fire(WATCH_PREFIX)
    outcome = reader.outcome()
    seen = reader.offsets()
    assert seen == list(range(seen[0], seen[0] + len(seen))) if seen else True
    assert outcome.error in (NONE, OUT_OF_RANGE)
    if outcome.error is NONE and seen:
        assert outcome.next_offset == seen[-1] + 1 <= reader.log.high_watermark
        assert offset in (EARLIEST, LATEST, seen[0])
