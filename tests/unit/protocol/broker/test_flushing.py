"""Flush policy and the high watermark checkpoint."""

from __future__ import annotations

import json

import pytest

from protocol.broker.flushing import CHECKPOINT_FILE, CHECKPOINT_TIMER, FLUSH_PREFIX
from protocol.config import Generation
from protocol.messages.records import ConfigRecord
from tests.unit.protocol.node_helpers import BrokerBench, config_of, topic_records

INTERVAL_MS = 50
FLUSH_TIMER = f"{FLUSH_PREFIX}T/0"


def leader(**configs: str) -> BrokerBench:
    """Broker 0 leads `t-0` alone, with topic configs such as `flush_ms`."""
    config = config_of(Generation.KIP_966, replica_high_watermark_checkpoint_interval_ms=INTERVAL_MS)
    records = topic_records(1, replicas=(0,), isr=(0,))
    overrides = [ConfigRecord(topic_id="T", name=n.replace("_", "."), value=v) for n, v in configs.items()]
    return BrokerBench(config=config).run(*records[:2], *overrides, *records[2:])


def flushed(bench: BrokerBench) -> int:
    return bench.replica.log.storage.flushed_offset


def test_by_default_nothing_is_flushed_by_policy() -> None:
    bench = leader()
    for _ in range(20):
        bench.produce()
        assert bench.timer(FLUSH_TIMER) is None
    assert flushed(bench) == 0


@pytest.mark.parametrize(
    ("flush_messages", "expected"), [("1", [1, 2, 3, 4]), ("2", [0, 2, 2, 4]), ("5", [0, 0, 0, 0])]
)
def test_flush_messages_counts_records_since_the_last_flush(flush_messages: str, expected: list[int]) -> None:
    bench = leader(flush_messages=flush_messages)
    assert [flushed(bench.produce()) for _ in range(4)] == expected


def test_flush_ms_counts_from_the_first_unflushed_record() -> None:
    bench = leader(flush_ms="200")
    timer = bench.produce().timer(FLUSH_TIMER)
    assert timer is not None
    assert timer.at_ms == 200
    bench.now_ms = 150
    assert bench.produce().timer(FLUSH_TIMER) is None
    bench.fire(FLUSH_TIMER, at_ms=200)
    assert flushed(bench) == 2
    timer = bench.produce().timer(FLUSH_TIMER)
    assert timer is not None
    assert timer.at_ms == 400


def test_a_flush_timer_of_a_removed_partition_does_nothing() -> None:
    bench = leader(flush_ms="200").produce()
    del bench.node.context.replicas[bench.replica.key]
    assert bench.fire(FLUSH_TIMER, at_ms=200).effects == []


def test_an_operator_can_flush_everything() -> None:
    bench = leader().produce(count=3)
    bench.node.flush_all()
    assert flushed(bench) == 3


def test_the_checkpoint_is_written_within_the_interval() -> None:
    bench = leader()
    timer = bench.produce(count=3).timer(CHECKPOINT_TIMER)
    assert timer is not None
    assert timer.at_ms == INTERVAL_MS
    assert bench.produce().timer(CHECKPOINT_TIMER) is None, "one write covers both moves"
    bench.fire(CHECKPOINT_TIMER, at_ms=INTERVAL_MS)
    data = bench.storage.read_file(CHECKPOINT_FILE)
    assert data is not None
    assert json.loads(data) == {"T/0": 4}
    timer = bench.produce().timer(CHECKPOINT_TIMER)
    assert timer is not None
    assert timer.at_ms == 2 * INTERVAL_MS


@pytest.mark.covers("A29")
def test_a_follower_starts_from_the_checkpoint_which_may_lag() -> None:
    storage = leader().produce(count=3).storage
    storage.write_file(CHECKPOINT_FILE, b'{"T/0": 2}')
    bench = BrokerBench(storage=storage).run(*topic_records(1, leader=1))
    assert (bench.high_watermark, bench.replica.log.end_offset) == (2, 3)
    storage.delete_file(CHECKPOINT_FILE)
    assert BrokerBench(storage=storage).run(*topic_records(1, leader=1)).high_watermark == 0


@pytest.mark.covers("A29")
def test_a_shutdown_before_the_replicas_are_open_keeps_the_checkpoint() -> None:
    storage = leader().produce(count=3).storage
    storage.write_file(CHECKPOINT_FILE, b'{"T/0": 2}')
    bench = BrokerBench(storage=storage).start().registered()
    bench.node.flush_all()
    assert BrokerBench(storage=storage).run(*topic_records(1, leader=1)).high_watermark == 2
