"""A broker as follower: fetch states, sessions, appends, truncation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.broker.fetcher import FETCH_PREFIX, SESSIONS_PER_EPOCH
from protocol.errors import ErrorCode
from protocol.events.registry import detail_of
from protocol.ids import METADATA_LOG
from protocol.messages.batch import RecordBatch
from protocol.messages.data import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
)
from protocol.messages.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord
from tests.unit.protocol.node_helpers import BrokerBench, batch, config_of, topic_records

WAIT_MS = 500
TIMER = f"{FETCH_PREFIX}0"

FIRST_SESSION = SESSIONS_PER_EPOCH + 1
"""The number of the first session of a broker of epoch 1."""


def follower(records: int = 0) -> BrokerBench:
    """Broker 1 follows broker 0 in leader epoch 3 and has fetched `records` records of epoch 3, one by one."""
    config = config_of(replica_fetch_wait_max_ms=WAIT_MS)
    bench = BrokerBench(me=1, config=config).run(*topic_records(1, leader_epoch=3))
    for offset in range(records):
        answer(bench, offset, number=offset, batches=(batch(1, offset, 3),))
    return bench


def answer(bench: BrokerBench, fetch_offset: int, sender: int = 0, number: int = 0, **fields: object) -> BrokerBench:
    """A result of leader epoch 3 for a fetch from `fetch_offset`, after a record of that epoch."""
    stands = {"topic_id": "T", "partition_id": 0, "fetch_offset": fetch_offset, "leader_epoch": 3}
    stands |= {"last_fetched_epoch": 3 if fetch_offset else -1}
    result = FetchPartitionResult(**(stands | fields))
    return bench.receive(sender, FetchResponse(session=FIRST_SESSION, partitions=(result,), number=number))


def fetch_state(bench: BrokerBench) -> FetchPartition:
    [found] = bench.sent(FetchRequest).partitions
    return found


def log_end(bench: BrokerBench) -> int:
    return bench.replica.log.end_offset


@pytest.mark.covers("A27", "A42")
def test_a_new_follower_fetches_from_its_log_end_on() -> None:
    bench = BrokerBench(me=1).run().publish(*topic_records(1, leader_epoch=3))
    [(leader, request)] = bench.sends(FetchRequest)
    assert (leader, request.replica_id, request.replica_epoch) == (0, 1, 1)
    found = fetch_state(bench)
    assert (found.current_leader_epoch, found.fetch_offset, found.last_fetched_epoch) == (3, 0, -1)


@pytest.mark.covers("A43")
def test_fetched_batches_are_appended_unchanged_and_the_next_fetch_is_sent_at_once() -> None:
    bench = follower()
    stored = (batch(2, 0, 1, b"one"), batch(1, 2, 3, b"two"))
    answer(bench, 0, batches=stored, high_watermark=2)
    assert tuple(bench.replica.log.storage.read(0, 1 << 20)) == stored
    assert bench.high_watermark == 2
    found = fetch_state(bench)
    assert (found.fetch_offset, found.last_fetched_epoch, found.high_watermark) == (3, 3, 2)


@pytest.mark.covers("A43", "N6")
@pytest.mark.parametrize(("leaders", "expected"), [(0, 1), (1, 1), (2, 2), (9, 3), (-1, 1)])
def test_the_high_watermark_follows_the_leaders_up_to_the_log_end(leaders: int, expected: int) -> None:
    bench = follower(records=3)
    answer(bench, 3, high_watermark=1)
    answer(bench, 3, high_watermark=leaders)
    assert bench.high_watermark == expected


STALE = {
    "an older fetch": {"fetch_offset": 1},
    "a later offset": {"fetch_offset": 4},
    "an earlier leader epoch": {"fetch_offset": 3, "leader_epoch": 2},
    "a later leader epoch": {"fetch_offset": 3, "leader_epoch": 4},
    "another record before it": {"fetch_offset": 3, "last_fetched_epoch": 2},
    "another broker": {"fetch_offset": 3, "sender": 2},
    "another partition": {"fetch_offset": 3, "partition_id": 1},
}


@pytest.mark.covers("A26")
@pytest.mark.parametrize("fields", STALE.values(), ids=STALE)
def test_a_result_of_another_fetch_is_ignored(fields: dict[str, object]) -> None:
    bench = follower(records=3)
    batches = (batch(1, int(str(fields["fetch_offset"])), 3),)
    answer(bench, **{"batches": batches, "high_watermark": 3} | fields)  # type: ignore[arg-type]
    assert (log_end(bench), bench.high_watermark) == (3, 0)
    assert bench.sends(FetchRequest) == []


def test_a_duplicate_response_is_appended_once() -> None:
    bench = follower()
    for _ in range(2):
        answer(bench, 0, batches=(batch(2, 0, 3),))
    assert log_end(bench) == 2


@pytest.mark.covers("N1", "M43")
def test_a_diverging_epoch_truncates_the_log_and_fetches_again() -> None:
    bench = follower(records=3)
    answer(bench, 3, diverging_epoch=EpochEndOffset(leader_epoch=3, end_offset=1))
    assert log_end(bench) == 1
    found = fetch_state(bench)
    assert (found.fetch_offset, found.last_fetched_epoch) == (1, 3)
    answer(bench, 1, diverging_epoch=EpochEndOffset(leader_epoch=-1, end_offset=0))
    assert (log_end(bench), fetch_state(bench).last_fetched_epoch) == (0, -1)


STALE_CUTS = {
    "a point to truncate to": {"diverging_epoch": EpochEndOffset(leader_epoch=1, end_offset=1)},
    "a log start to begin at": {"error": ErrorCode.OFFSET_OUT_OF_RANGE, "log_start_offset": 1},
}


@pytest.mark.covers("A26", "N1", "M43")
@pytest.mark.parametrize("leaders", STALE_CUTS.values(), ids=STALE_CUTS)
def test_a_duplicate_diverging_epoch_does_not_truncate_twice(leaders: dict[str, object]) -> None:
    """Between the two copies of the response the follower has reached the same offset with the leader's records."""
    bench = follower()
    answer(bench, 0, batches=(batch(1, 0, 1), batch(2, 1, 2)))
    answer(bench, 3, last_fetched_epoch=2, **leaders)
    assert log_end(bench) == 1
    answer(
        bench, 1, last_fetched_epoch=fetch_state(bench).last_fetched_epoch, batches=(batch(2, 1, 3),), high_watermark=3
    )
    answer(bench, 3, last_fetched_epoch=2, **leaders)
    assert (log_end(bench), bench.high_watermark) == (3, 3)
    assert bench.sends(FetchRequest) == []


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_after_an_error_the_fetch_is_repeated_with_the_renewal(error: ErrorCode) -> None:
    bench = follower(records=1)
    answer(bench, 1, error=error)
    assert bench.sends(FetchRequest) == []
    timer = bench.timer(TIMER)
    assert timer is not None
    assert (timer.at_ms, timer.idle_with) == (WAIT_MS, None), "a repetition that must not be left out"
    bench.fire(TIMER, at_ms=WAIT_MS)
    assert bench.sends(FetchRenewal) == []
    assert fetch_state(bench).fetch_offset == 1
    timer = bench.timer(TIMER)
    assert timer is not None
    assert timer.idle_with == 0


@pytest.mark.parametrize("is_fired", [True, False])
def test_fetches_postpone_the_first_renewal_of_a_leader_epoch_and_no_later_one(is_fired: bool) -> None:
    """Whether the host fires the first renewal, which repeats what the leader knows, or leaves it out."""
    bench = follower()
    for at_ms, offset in ((10, 0), (WAIT_MS + 5, 1)):
        bench.now_ms = at_ms
        timer = answer(bench, offset, number=offset, batches=(batch(1, offset, 3),)).timer(TIMER)
        assert timer is not None
        assert (timer.at_ms, timer.idle_with) == (at_ms + WAIT_MS, 0)
    if is_fired:
        bench.fire(TIMER, at_ms=2 * WAIT_MS + 5)
    bench.now_ms = 2 * WAIT_MS + 6
    assert answer(bench, 2, number=2, batches=(batch(1, 2, 3),)).timer(TIMER) is None


def test_a_renewal_carries_the_message_counts_of_its_session() -> None:
    bench = follower(records=2)
    for now_ms in (WAIT_MS, 2 * WAIT_MS):
        renewal = bench.fire(TIMER, at_ms=now_ms).sent(FetchRenewal)
        assert (renewal.replica_id, renewal.replica_epoch) == (1, 1)
        assert (renewal.session, renewal.requests, renewal.answers) == (FIRST_SESSION, 3, 2)
        assert bench.sends(FetchRequest) == []
        timer = bench.timer(TIMER)
        assert timer is not None
        assert timer.at_ms == now_ms + WAIT_MS


def test_each_incarnation_numbers_its_sessions_in_another_way() -> None:
    """An answer to a former incarnation may still be under way."""
    numbers = []
    for epoch in (1, 2):
        bench = BrokerBench(me=1).run()
        bench.node.context.broker_epoch = epoch
        numbers.append(bench.publish(*topic_records(1, leader_epoch=3)).sent(FetchRequest).session)
    assert len(set(numbers)) == 2


OVER = {
    "unknown to the leader": {"error": ErrorCode.FETCH_SESSION_ID_NOT_FOUND},
    "a request was lost": {"error": ErrorCode.INVALID_FETCH_SESSION_EPOCH},
    "an answer was lost": {"number": 3},
}


@pytest.mark.parametrize("fields", OVER.values(), ids=OVER)
def test_after_a_lost_message_a_new_session_begins_with_all_fetch_states(fields: dict[str, int]) -> None:
    bench = follower(records=2)
    last = fetch_state(bench)
    bench.receive(0, FetchResponse(session=FIRST_SESSION, partitions=(), **fields))
    request = bench.sent(FetchRequest)
    assert (request.session, request.number, request.partitions) == (FIRST_SESSION + 1, 0, (last,))
    bench.receive(0, FetchResponse(session=FIRST_SESSION, partitions=(), **fields))
    assert bench.sends(FetchRequest) == [], "a response of the former session is ignored"


def test_matching_counts_change_nothing() -> None:
    bench = follower(records=2)
    for number in (2, 1):
        bench.receive(0, FetchResponse(session=FIRST_SESSION, partitions=(), number=number))
        assert bench.sends(FetchRequest) == []


def test_a_gap_in_the_response_numbers_ends_the_session() -> None:
    bench = follower(records=2)
    answer(bench, 2, number=3, batches=(batch(1, 2, 3),))
    request = bench.sent(FetchRequest)
    assert (request.session, request.number, [p.fetch_offset for p in request.partitions]) == (
        FIRST_SESSION + 1,
        0,
        [3],
    )


def test_unfollowing_a_partition_replaces_its_session_with_the_renewal() -> None:
    other = PartitionRecord(topic_id="T", partition_id=1, replicas=(0, 1), isr=(0, 1), leader=0, leader_epoch=3)
    config = config_of(replica_fetch_wait_max_ms=WAIT_MS)
    bench = BrokerBench(me=1, config=config).run(*topic_records(1, leader_epoch=3), other)
    bench.publish(change(leader=-1, isr=()))
    assert bench.sends(FetchRequest) == []
    request = bench.fire(TIMER, at_ms=WAIT_MS).sent(FetchRequest)
    assert (request.session, request.number, [p.partition_id for p in request.partitions]) == (
        FIRST_SESSION + 1,
        0,
        [1],
    )
    assert bench.sends(FetchRenewal) == []


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(**({"topic_id": "T", "partition_id": 0} | fields))


@pytest.mark.covers("A26", "A25")
def test_a_new_leader_epoch_ends_the_old_fetch_before_anything_else_is_appended() -> None:
    bench = follower(records=1).publish(change(leader=2))
    [(leader, _)] = bench.sends(FetchRequest)
    assert (leader, fetch_state(bench).current_leader_epoch) == (2, 4)
    answer(bench, 1, batches=(batch(1, 1, 3),))
    assert log_end(bench) == 1
    assert bench.fire(TIMER, at_ms=WAIT_MS).sends(FetchRequest) == []


@pytest.mark.covers("A26")
def test_a_follower_that_becomes_leader_stops_fetching() -> None:
    bench = follower(records=1).publish(change(leader=1))
    assert bench.sends(FetchRequest) == []
    assert bench.replica.leadership is not None
    answer(bench, 1, batches=(batch(1, 1, 3),))
    assert log_end(bench) == 1
    assert bench.fire(TIMER, at_ms=WAIT_MS).sends(FetchRenewal) == []


def test_without_a_leader_a_replica_does_not_fetch_and_keeps_its_log() -> None:
    bench = follower(records=2).publish(change(leader=-1, isr=()))
    assert bench.sends(FetchRequest) == []
    assert (bench.replica.fetch_state, log_end(bench)) == (None, 2)


@pytest.mark.parametrize("record", [RemoveTopicRecord(topic_id="T"), change(replicas=(0, 2), isr=(0, 2))])
def test_a_removed_replica_is_deleted_with_its_log(record: PartitionChangeRecord) -> None:
    bench = follower(records=2)
    bench.publish(record)
    assert bench.node.context.replicas == {}
    assert bench.storage.log_names() == [METADATA_LOG]
    answer(bench, 2, batches=(batch(1, 2, 3),))
    assert bench.storage.log_names() == [METADATA_LOG]


def test_fetches_of_several_partitions_share_a_request() -> None:
    records = topic_records(1)
    more = [replace(records[-1], partition_id=index) for index in (1, 2)]
    bench = BrokerBench(me=1).run().publish(*records, *more)
    assert [p.partition_id for p in bench.sent(FetchRequest).partitions] == [0, 1, 2]
    results = tuple(
        FetchPartitionResult(
            topic_id="T",
            partition_id=index,
            fetch_offset=0,
            leader_epoch=0,
            batches=(RecordBatch(record_count=1, payload=b"x"),),
        )
        for index in (0, 2)
    )
    bench.receive(0, FetchResponse(session=FIRST_SESSION, partitions=results))
    assert [(p.partition_id, p.fetch_offset) for p in bench.sent(FetchRequest).partitions] == [(0, 1), (2, 1)]


# -- log start offset --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [0, 3])
def test_out_of_range_resets_the_log_to_the_leaders_log_start(records: int) -> None:
    bench = follower(records)
    answer(bench, records, error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=10)
    log = bench.replica.log
    assert (log.start_offset, log.end_offset, log.high_watermark) == (10, 10, 10)
    found = fetch_state(bench)
    assert (found.fetch_offset, found.last_fetched_epoch) == (10, -1)
    [reset] = bench.traces("reset")
    assert detail_of(reset) == {"to_offset": 10, "log_end": records}
    answer(bench, 10, last_fetched_epoch=-1, batches=(batch(1, 10, 3),), high_watermark=11)
    assert (log.end_offset, log.high_watermark, log.latest_epoch) == (11, 11, 3)


def test_out_of_range_without_a_log_start_is_repeated_like_other_errors() -> None:
    bench = follower(records=2)
    answer(bench, 2, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert (log_end(bench), bench.sends(FetchRequest)) == (2, [])
    timer = bench.timer(TIMER)
    assert timer is not None
    assert timer.idle_with is None


@pytest.mark.parametrize(
    ("leaders", "high_watermark", "expected"), [(0, 3, 0), (1, 3, 1), (2, 3, 2), (3, 1, 1), (2, 0, 0)]
)
def test_a_follower_deletes_segments_below_the_leaders_log_start_and_its_high_watermark(
    leaders: int, high_watermark: int, expected: int
) -> None:
    """The follower's log has a segment per record; the last one is the active segment."""
    bench = follower()
    for offset in range(3):
        answer(bench, offset, number=offset, batches=(batch(1, offset, 3),))
        bench.replica.log.storage.roll()
    answer(bench, 3, batches=(batch(1, 3, 3),), high_watermark=high_watermark, log_start_offset=leaders)
    assert bench.replica.log.start_offset == expected
    assert log_end(bench) == 4


# -- messages ----------------------------------------------------------------------------------------------------------


def test_an_error_affects_its_partition_only() -> None:
    bench = BrokerBench(me=1).run(*topic_records(1, leader_epoch=3))
    second = PartitionRecord(topic_id="T", partition_id=1, replicas=(0, 1), isr=(0, 1), leader=0, leader_epoch=3)
    bench.publish(second)
    results = (
        FetchPartitionResult(topic_id="gone", partition_id=0, fetch_offset=0, leader_epoch=3),
        FetchPartitionResult(
            topic_id="T", partition_id=0, fetch_offset=0, leader_epoch=3, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ),
        FetchPartitionResult(
            topic_id="T", partition_id=1, fetch_offset=0, leader_epoch=3, batches=(batch(1, 0, 3),), high_watermark=0
        ),
    )
    bench.receive(0, FetchResponse(session=FIRST_SESSION, partitions=results))
    assert (log_end(bench), fetch_state(bench).partition_id) == (0, 1)
