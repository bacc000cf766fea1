"""Shares, order and completeness of fetch responses, and several fetchers. Examples: `testdata/limits`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.broker.fetch_sessions import bytes_of, share_of
from protocol.broker.fetcher import fetcher_of
from protocol.ids import TopicIdPartition
from protocol.messages.data import FetchRenewal, FetchRequest
from tests.unit.protocol.broker.leader_helpers import FOLLOWER, UNIT, WAIT_MS, Leader, brought, sized, topic
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


def test_responses_are_numbered_per_session() -> None:
    leader = Leader()
    for session in (1, 2, 3):
        sent = leader.fetch(new_session=True) + leader.produce(UNIT)
        assert [(message.session, message.number) for message in sent] == [(session, n) for n in range(len(sent))]
        assert brought(*sent) != []
