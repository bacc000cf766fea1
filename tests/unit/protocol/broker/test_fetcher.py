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
