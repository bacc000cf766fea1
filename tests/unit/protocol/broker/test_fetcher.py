"""A broker as follower: sessions of incarnations, and errors of one partition. Examples: `testdata/follower.txt`."""

from __future__ import annotations

from protocol.broker.fetcher import SESSIONS_PER_EPOCH
from protocol.errors import ErrorCode
from protocol.messages.data import FetchPartition, FetchPartitionResult, FetchRequest, FetchResponse
from protocol.messages.records import PartitionRecord
from tests.unit.protocol.node_helpers import BrokerBench, batch, topic_records

FIRST_SESSION = SESSIONS_PER_EPOCH + 1
"""The number of the first session of a broker of epoch 1."""


def fetch_state(bench: BrokerBench) -> FetchPartition:
    [found] = bench.sent(FetchRequest).partitions
    return found


def log_end(bench: BrokerBench) -> int:
    return bench.replica.log.end_offset


def test_each_incarnation_numbers_its_sessions_in_another_way() -> None:
    """An answer to a former incarnation may still be under way."""
    numbers = []
    for epoch in (1, 2):
        bench = BrokerBench(me=1).run()
        bench.node.context.broker_epoch = epoch
        numbers.append(bench.publish(*topic_records(1, leader_epoch=3)).sent(FetchRequest).session)
    assert len(set(numbers)) == 2


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


def test_a_refused_fetch_is_repeated_though_other_partitions_of_the_leader_get_records_all_the_time() -> None:
    """The leader did not know its epoch yet when the first fetch of partition 0 arrived. Partition 1 has records every
    100 ms, so a request leaves before each renewal would: `replica.fetch.wait.max.ms` is 500 ms. Requests postpone the
    renewal until 4 x 500 ms have passed; the last one that did, at 1900 ms, has it come at 2400 ms."""
    bench = BrokerBench(me=1).run(*topic_records(1, leader_epoch=3))
    bench.publish(PartitionRecord(topic_id="T", partition_id=1, replicas=(0, 1), isr=(0, 1), leader=0, leader_epoch=3))
    other = fetch_state(bench)
    refused = FetchPartitionResult(
        topic_id="T", partition_id=0, fetch_offset=0, leader_epoch=3, error=ErrorCode.UNKNOWN_LEADER_EPOCH
    )
    bench.receive(0, FetchResponse(session=FIRST_SESSION, partitions=(refused,)))
    due_ms, refused_ms = renewal_ms(bench, 0), bench.now_ms
    for number in range(1, 30):
        bench.now_ms += 100
        if due_ms <= bench.now_ms:
            break
        records = FetchPartitionResult.to(other, batches=(batch(1, number - 1, 3),), high_watermark=number - 1)
        bench.receive(0, FetchResponse(session=FIRST_SESSION, number=number, partitions=(records,)))
        other, due_ms = fetch_state(bench), renewal_ms(bench, due_ms)
        assert other.partition_id == 1
    assert due_ms - refused_ms == 1_900 + 500
    assert fetch_state(bench.fire("fetch/0", due_ms)).partition_id == 0


def renewal_ms(bench: BrokerBench, before_ms: int) -> int:
    """When the sessions with leader 0 are renewed: as the last input has set it, else as it was `before_ms`."""
    found = bench.timer("fetch/0")
    return before_ms if found is None else found.at_ms
