"""Limits of fetch responses: window of a stream, share of a partition, order, minimum size, and several fetchers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.broker.fetch_streams import FETCH_WAIT_PREFIX, bytes_of, share_of
from protocol.broker.fetcher import fetcher_of
from protocol.broker.isr_shrink import LAG_PREFIX, SILENT_PREFIX
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import TopicIdPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.control import AlterPartitionRequest
from protocol.messages.data import FetchRenewal, FetchRequest, FetchResponse
from protocol.messages.records import PartitionChangeRecord
from tests.unit.protocol.broker.leader_helpers import FOLLOWER, UNIT, WAIT_MS, Leader, brought, results, sized, topic
from tests.unit.protocol.node_helpers import BrokerBench, config_of

# -- shares ------------------------------------------------------------------------------------------------------------

SHARES = {
    "all fit": ((10, 10, 10), 30, 30, False, 3),
    "up to the share": ((10, 10, 10), 29, 99, False, 2),
    "up to the room": ((10, 10, 10), 99, 20, False, 2),
    "a first batch larger than the share": ((40, 10), 30, 99, False, 1),
    "a first batch larger than the room": ((40, 10), 99, 30, False, 0),
    "larger than the room, but nothing is in flight": ((40, 10), 99, 30, True, 1),
    "larger than both, but nothing is in flight": ((40, 10), 20, 30, True, 1),
    "no room": ((10,), 30, 0, False, 0),
    "nothing there": ((), 30, 30, True, 0),
}


@pytest.mark.parametrize(("sizes", "share", "room", "is_first", "taken"), SHARES.values(), ids=SHARES)
def test_the_share_of_a_partition_in_a_response(
    sizes: tuple[int, ...], share: int, room: int, is_first: bool, taken: int
) -> None:
    batches = [sized(size * 10) for size in sizes]
    found, size_bytes = share_of(batches, share * 10, room * 10, is_first)
    assert found == tuple(batches[:taken])
    assert size_bytes == sum(map(bytes_of, found))


# -- the window --------------------------------------------------------------------------------------------------------


def test_a_response_keeps_its_limit_and_the_rest_follows_without_waiting() -> None:
    leader = Leader(4, replica_fetch_response_max_bytes=3 * UNIT)
    leader.fill({0: 2, 1: 2, 2: 2, 3: 2})
    [first] = leader.fetch()
    assert brought(first) == [(0, 2), (1, 1)]
    leader.take()
    [second] = leader.under_way
    assert brought(second) == [(2, 2), (3, 1)], "who had to wait comes first"
    leader.take()
    [third] = leader.under_way
    assert brought(third) == [(1, 1), (3, 1)]


def test_a_partition_gets_at_most_replica_fetch_max_bytes_per_response() -> None:
    leader = Leader(2, replica_fetch_max_bytes=2 * UNIT)
    leader.fill({0: 5, 1: 1})
    [first] = leader.fetch()
    assert brought(first) == [(0, 2), (1, 1)]


def test_a_batch_larger_than_every_limit_gets_through_alone() -> None:
    leader = Leader(2, replica_fetch_response_max_bytes=2 * UNIT, replica_fetch_max_bytes=UNIT)
    leader.produce(UNIT)
    leader.produce(9 * UNIT, partition=1)
    [first] = leader.fetch()
    assert brought(first) == [(0, 1)]
    leader.take()
    [second] = leader.under_way
    assert brought(second) == [(1, 1)]


def test_records_in_flight_count_and_small_responses_do_not_wait_for_each_other() -> None:
    leader = Leader(3, replica_fetch_response_max_bytes=2 * UNIT)
    assert leader.fetch() == []
    assert brought(*leader.produce(UNIT, partition=0)) == [(0, 1)]
    assert brought(*leader.produce(UNIT, partition=1)) == [(1, 1)]
    assert leader.produce(UNIT, partition=2) == [], "two units are in flight"
    leader.take()
    assert brought(*leader.under_way) == [(1, 1), (2, 1)]


def test_high_watermarks_and_errors_are_sent_while_the_window_is_full() -> None:
    leader = Leader(3, replica_fetch_response_max_bytes=UNIT)
    leader.fill({0: 1, 1: 1})
    assert brought(*leader.fetch(0)) == [(0, 1)]
    leader.position[1] = 1
    [response] = leader.fetch(1)
    assert [(r.partition_id, r.high_watermark, r.batches) for r in response.partitions] == [(1, 1, ())]
    [refused] = leader.fetch(2, current_leader_epoch=7)
    assert [r.error for r in refused.partitions] == [ErrorCode.UNKNOWN_LEADER_EPOCH]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 12), max_size=6), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_every_record_arrives_once_and_in_order_within_the_limits(
    sizes: list[list[int]], share: int, window: int, random: object
) -> None:
    limits = {"replica_fetch_max_bytes": share * 100, "replica_fetch_response_max_bytes": window * 100}
    leader = Leader(len(sizes), **limits)
    leader.fetch()
    left = [(partition, size * 100) for partition, row in enumerate(sizes) for size in row]
    random.shuffle(left)  # type: ignore[attr-defined]
    while left or leader.under_way:
        if left and (not leader.under_way or random.random() < 0.6):  # type: ignore[attr-defined]
            partition, size_bytes = left.pop()
            leader.produce(size_bytes, partition=partition)
        else:
            leader.take()
        flying = [found for message in leader.under_way for r in message.partitions for found in r.batches]
        assert sum(map(bytes_of, flying)) <= window * 100 or len(flying) == 1
        for message in leader.under_way:
            for result in message.partitions:
                assert sum(map(bytes_of, result.batches)) <= share * 100 or len(result.batches) == 1
    for partition, row in leader.arrived.items():
        assert [found.base_offset for found in row] == list(range(leader.log_end(partition)))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 4))
def test_no_partition_is_served_twice_while_another_one_waits(counts: list[int], window: int) -> None:
    leader = Leader(len(counts), replica_fetch_response_max_bytes=window * UNIT, replica_fetch_max_bytes=UNIT)
    leader.fill(dict(enumerate(counts)))
    leader.fetch()
    waited: dict[int, set[int]] = {index: set() for index in range(len(counts))}
    while leader.under_way:
        for partition, _ in brought(leader.under_way[0]):
            waited[partition].clear()
            for other, since in waited.items():
                if other != partition and leader.position[other] < counts[other]:
                    assert partition not in since, f"{partition} came twice before {other}"
                    since.add(partition)
        leader.take()
    assert list(leader.position.values()) == counts


# -- what makes room again ---------------------------------------------------------------------------------------------


def full_window() -> Leader:
    """One unit, of partition 0, is in flight and fills the window; partition 1 waits."""
    leader = Leader(2, replica_fetch_response_max_bytes=UNIT)
    leader.fill({0: 1, 1: 1})
    assert brought(*leader.fetch()) == [(0, 1)]
    return leader


def test_a_new_session_empties_the_window() -> None:
    leader = full_window()
    assert brought(*leader.fetch(1, anew=True)) == [(1, 1)]


def test_after_a_lost_response_a_new_session_fetches_the_records_again() -> None:
    leader = full_window()
    leader.under_way.clear()
    [again] = leader.fetch(anew=True)
    assert brought(again) == [(0, 1)]
    leader.take()
    assert brought(*leader.under_way) == [(1, 1)]


def test_a_new_incarnation_of_the_follower_resets_its_streams_and_the_former_one_is_ignored() -> None:
    leader = full_window()
    assert brought(*leader.fetch(1, replica_epoch=FOLLOWER + 100)) == [(1, 1)]
    assert leader.fetch(0, replica_epoch=FOLLOWER) == []
    assert leader.fetch(0, replica_epoch=FOLLOWER, current_leader_epoch=9) == [], "not even refused"


def test_a_resigned_partition_leaves_the_window_and_is_refused() -> None:
    leader = full_window()
    leader.bench.publish(PartitionChangeRecord(topic_id="T", partition_id=0, leader=1))
    [message] = leader.sent()
    assert brought(message) == [(1, 1)], "what was in flight for partition 0 makes room"
    leader = full_window()
    leader.bench.publish(PartitionChangeRecord(topic_id="T", partition_id=1, leader=1))
    [message] = leader.sent()
    assert [(r.partition_id, r.error) for r in message.partitions] == [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    leader.take()
    leader.under_way.pop(0)
    assert brought(*leader.under_way) == []


def test_a_removed_replica_gets_no_records() -> None:
    leader = full_window()
    leader.bench.publish(PartitionChangeRecord(topic_id="T", partition_id=1, replicas=(0,), isr=(0,)))
    assert leader.sent() == []
    leader.take()
    assert brought(*leader.under_way) == []


def test_a_silent_follower_gets_no_records_until_it_fetches_again() -> None:
    leader = full_window()
    leader.bench.fire(f"{SILENT_PREFIX}{FOLLOWER}", at_ms=30_000)
    assert leader.sent() == []
    assert [message.error for message in leader.fetch(1)] == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND]
    assert brought(*leader.fetch(1, anew=True)) == [(1, 1)]


def test_a_follower_whose_fetch_waits_for_the_window_is_not_caught_up() -> None:
    """A follower whose fetch is delayed for too long leaves the ISR like any other lagging follower."""
    leader = full_window()
    leader.bench.fire(f"{LAG_PREFIX}{FOLLOWER}", at_ms=30_000)
    proposed = leader.bench.sent(AlterPartitionRequest).partitions
    assert [(p.partition_id, len(p.new_isr)) for p in proposed] == [(0, 1), (1, 1)]


# -- fetches that come late --------------------------------------------------------------------------------------------


def test_a_fetch_that_comes_late_or_twice_changes_nothing() -> None:
    leader = Leader()
    leader.fill({0: 1})
    leader.fetch()
    leader.take()
    assert [r.high_watermark for r in results(*leader.under_way)] == [1]
    leader.take()
    leader.position[0] = 0
    assert leader.fetch() == [], "an old fetch"
    leader.position[0] = 1
    assert brought(*leader.produce(UNIT)) == [(0, 1)], "the newest fetch is still parked"


def test_only_a_new_session_may_fetch_from_a_lower_offset() -> None:
    leader = Leader()
    leader.fill({0: 2})
    leader.fetch()
    leader.take()
    leader.position[0] = 0
    assert leader.fetch() == []
    assert brought(*leader.fetch(anew=True)) == [(0, 2)]


@pytest.mark.parametrize("retry", [False, True])
def test_each_fetch_gets_one_response(retry: bool) -> None:
    leader = Leader()
    leader.fetch()
    if retry:
        leader.fetch(anew=True)
    assert brought(*leader.produce(UNIT)) == [(0, 1)]
    assert leader.produce(UNIT, UNIT) == [], "the next fetch has not come"
    leader.take()
    assert brought(*leader.under_way) == [(0, 2)]


# -- what goes wrong at the leader -------------------------------------------------------------------------------------


class DamagedLog(SimLog):
    """A log whose records cannot be read."""

    def read(self, from_offset: int, max_bytes: int) -> Sequence[RecordBatch]:
        raise CorruptLogError("damaged")


def test_an_unreadable_log_does_not_delay_other_partitions() -> None:
    leader = Leader(2, replica_fetch_min_bytes=UNIT)
    leader.fill({0: 1, 1: 1})
    log = leader.bench.node.context.replicas[TopicIdPartition("T", 0)].log
    log.storage = DamagedLog()
    log.storage.append(sized(UNIT))
    found = results(*leader.fetch())
    assert [(r.partition_id, r.error, len(r.batches)) for r in found] == [
        (0, ErrorCode.CORRUPT_MESSAGE, 0),
        (1, ErrorCode.NONE, 1),
    ]


# -- patience ----------------------------------------------------------------------------------------------------------

TIMER = f"{FETCH_WAIT_PREFIX}{FOLLOWER}/0"


def test_less_than_fetch_min_bytes_waits() -> None:
    leader = Leader(2, replica_fetch_min_bytes=3 * UNIT)
    leader.fetch()
    assert leader.produce(UNIT) == []
    setting = leader.bench.timer(TIMER)
    assert setting is not None
    assert (setting.at_ms, setting.idle_with) == (WAIT_MS, None)
    leader.bench.now_ms = 100
    assert leader.produce(UNIT) == []
    assert leader.bench.timer(TIMER) is None, "the wait began with the first byte"
    assert brought(*leader.produce(UNIT, partition=1)) == [(0, 2), (1, 1)]


def test_less_than_fetch_min_bytes_is_sent_after_fetch_wait_max_ms() -> None:
    leader = Leader(replica_fetch_min_bytes=3 * UNIT)
    leader.fetch()
    leader.produce(UNIT)
    leader.bench.fire(TIMER, at_ms=WAIT_MS)
    assert brought(*leader.sent()) == [(0, 1)]
    while leader.under_way:
        leader.take()
    leader.produce(UNIT)
    setting = leader.bench.timer(TIMER)
    assert setting is not None
    assert setting.at_ms == 2 * WAIT_MS, "what comes later waits anew"


def test_records_delayed_by_a_full_window_do_not_wait_for_fetch_min_bytes() -> None:
    leader = Leader(2, replica_fetch_min_bytes=2 * UNIT, replica_fetch_response_max_bytes=3 * UNIT)
    leader.fill({0: 3, 1: 1})
    assert brought(*leader.fetch()) == [(0, 3)]
    leader.take()
    assert brought(*leader.under_way) == [(1, 1)]


def test_a_response_that_fills_the_window_does_not_wait() -> None:
    leader = Leader(2, replica_fetch_min_bytes=9 * UNIT, replica_fetch_response_max_bytes=2 * UNIT)
    leader.fill({0: 2, 1: 1})
    assert brought(*leader.fetch()) == [(0, 2)]


def test_high_watermarks_and_errors_do_not_wait_for_fetch_min_bytes() -> None:
    leader = Leader(2, replica_fetch_min_bytes=9 * UNIT)
    leader.fill({0: 1})
    leader.position[0] = 1
    assert [r.high_watermark for r in results(*leader.fetch(0))] == [1]
    assert [r.error for r in results(*leader.fetch(1, current_leader_epoch=7))] == [ErrorCode.UNKNOWN_LEADER_EPOCH]


def test_withdrawing_the_last_queued_fetch_ends_the_wait() -> None:
    leader = Leader(replica_fetch_min_bytes=9 * UNIT)
    leader.fetch()
    leader.produce(UNIT)
    leader.bench.publish(PartitionChangeRecord(topic_id="T", partition_id=0, leader=1))
    assert [r.error for r in results(*leader.sent())] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert leader.bench.fire(TIMER, at_ms=WAIT_MS).sends(FetchResponse) == []


# -- several fetchers --------------------------------------------------------------------------------------------------


@given(st.text(max_size=20), st.integers(1, 64))
def test_neighbouring_partitions_have_different_fetchers_and_all_are_used(topic_id: str, fetchers: int) -> None:
    numbers = [fetcher_of(TopicIdPartition(topic_id, index), fetchers) for index in range(2 * fetchers)]
    assert sorted(numbers) == sorted([*range(fetchers)] * 2)
    assert numbers[:fetchers] == numbers[fetchers:]


@pytest.mark.covers("A54")
def test_each_fetcher_of_a_follower_fetches_and_renews_its_own_session() -> None:
    config = config_of(num_replica_fetchers=2, replica_fetch_wait_max_ms=WAIT_MS)
    bench = BrokerBench(me=FOLLOWER, config=config).run().publish(*topic(4))
    asked = {m.fetcher: [p.partition_id for p in m.partitions] for _, m in bench.sends(FetchRequest)}
    first = fetcher_of(TopicIdPartition("T", 0), 2)
    assert asked == {first: [0, 2], 1 - first: [1, 3]}
    bench.fire("fetch/0", at_ms=WAIT_MS)
    assert {m.fetcher: (m.requests, m.answers) for _, m in bench.sends(FetchRenewal)} == dict.fromkeys(asked, (1, 0))


@pytest.mark.covers("A54")
def test_a_large_partition_does_not_delay_those_of_another_fetcher() -> None:
    leader = Leader(3, replica_fetch_response_max_bytes=UNIT)
    leader.fill({0: 9, 1: 1, 2: 1})
    assert brought(*leader.fetch(0, 1, fetcher=0)) == [(0, 1)], "1 waits behind 0"
    [other] = leader.fetch(2, fetcher=1)
    assert (other.fetcher, brought(other)) == (1, [(2, 1)])


def test_a_follower_is_silent_only_if_none_of_its_fetchers_sends() -> None:
    leader = Leader(2)
    leader.fetch(0, fetcher=0)
    leader.bench.now_ms = 20_000
    leader.fetch(1, fetcher=1)
    setting = leader.bench.timer(f"{SILENT_PREFIX}{FOLLOWER}")
    assert setting is not None
    assert setting.at_ms == 50_000
