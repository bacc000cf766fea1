"""What a broker answers, and does, when its disk fails it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments.sim.disk import SimLog, SimStorage
from protocol.broker.context import log_name
from protocol.broker.flushing import CHECKPOINT_FILE, CHECKPOINT_TIMER, FLUSH_PREFIX
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE
from protocol.contract import Exit
from protocol.errors import CorruptLogError, ErrorCode, StorageError, StorageFullError
from protocol.ids import DRIVER
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ShutdownCommand
from protocol.messages.data import (
    ConsumeRequest,
    ConsumeResponse,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ProduceResponse,
)
from protocol.messages.records import ConfigRecord, MetadataRecord, RemovePartitionRecord
from tests.unit.nodes_under_test import CLIENT, T0, BrokerBench, batch, topic_records


class WeakLog(SimLog):
    """Raises what its disk is told to raise."""

    __slots__ = ("disk",)

    def __init__(self, disk: WeakStorage) -> None:
        super().__init__()
        self.disk = disk

    def append(self, batch: RecordBatch) -> None:
        self.disk.maybe_fail("append")
        super().append(batch)

    def read(self, from_offset: int, max_bytes: int) -> Sequence[RecordBatch]:
        self.disk.maybe_fail("read")
        return super().read(from_offset, max_bytes)

    def flush(self) -> None:
        self.disk.maybe_fail("flush")
        super().flush()


class WeakStorage(SimStorage):
    """A disk whose calls named in `failing` raise."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, StorageError] = {}
        self.weak_logs: dict[str, WeakLog] = {}

    def maybe_fail(self, call: str) -> None:
        if call in self.failing:
            raise self.failing[call]

    def open_log(self, name: str) -> WeakLog:
        self.maybe_fail("open")
        return self.weak_logs.setdefault(name, WeakLog(self))

    def log_names(self) -> Sequence[str]:
        return sorted(self.weak_logs)

    def delete_log(self, name: str) -> None:
        self.maybe_fail("delete")
        self.weak_logs.pop(name, None)

    def write_file(self, name: str, data: bytes) -> None:
        self.maybe_fail("write_file")
        super().write_file(name, data)


FULL, BROKEN = StorageFullError("full"), StorageError("broken")


def bench_of(*records: MetadataRecord) -> tuple[BrokerBench, WeakStorage]:
    storage = WeakStorage()
    return BrokerBench(storage=storage).run(*(records or topic_records(1, replicas=(0,), isr=(0,)))), storage


def follower() -> tuple[BrokerBench, WeakStorage]:
    return bench_of(*topic_records(1, leader=1))


def fetched(bench: BrokerBench, *batches: RecordBatch) -> BrokerBench:
    """The leader's answer to the open wish."""
    answer = FetchPartitionResult(
        topic_id="T",
        partition_id=0,
        leader_epoch=0,
        fetch_offset=bench.replica.log.end_offset,
        high_watermark=0,
        batches=batches,
    )
    return bench.receive(1, FetchResponse(partitions=(answer,)))


def consume(bench: BrokerBench) -> ConsumeResponse:
    request = ConsumeRequest(correlation_id=1, topic="t", partition=0, fetch_offset=0, max_bytes=100)
    return bench.receive(CLIENT, request).sent(ConsumeResponse)


def offline(bench: BrokerBench) -> list[object]:
    return [trace.detail["offline"] for trace in bench.traces("storage_error")]


def test_a_full_disk_refuses_a_produce_and_takes_the_next_one() -> None:
    bench, storage = bench_of()
    storage.failing["append"] = FULL
    assert bench.produce().sent(ProduceResponse).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert offline(bench) == [False]
    assert bench.replica.log.end_offset == 0
    storage.failing.clear()
    answered = bench.produce().sent(ProduceResponse)
    assert (answered.error, answered.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("call", ["append", "flush"])
def test_a_broken_disk_takes_the_leaders_replica_offline(call: str, acks: int) -> None:
    records = topic_records(1, replicas=(0,), isr=(0,))
    bench, storage = bench_of(*records[:2], ConfigRecord(topic_id="T", name="flush.messages", value="1"), *records[2:])
    storage.failing[call] = BROKEN
    assert bench.produce(acks=acks).sends(ProduceResponse)[0][1].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert offline(bench) == [True]
    assert T0 not in bench.node.context.replicas
    storage.failing.clear()
    assert bench.produce().sent(ProduceResponse).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert consume(bench).error is ErrorCode.KAFKA_STORAGE_ERROR
    bench.publish(ConfigRecord(topic_id="T", name="min.insync.replicas", value="1"))
    assert T0 not in bench.node.context.replicas, "until the broker starts anew"
    again = BrokerBench(storage=storage).run(*records)
    assert again.produce().sent(ProduceResponse).error is ErrorCode.NONE


def test_an_offline_leader_tells_its_followers() -> None:
    bench, storage = bench_of(*topic_records(1))
    storage.failing["append"] = BROKEN
    bench.produce(acks=1)
    wish = {"topic_id": "T", "partition_id": 0, "current_leader_epoch": 0, "fetch_offset": 0, "last_fetched_epoch": -1}
    request = FetchRequest.model_validate({"replica_id": 1, "replica_epoch": 1, "partitions": (wish,)})
    [result] = bench.receive(1, request).sent(FetchResponse).partitions
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("reader", ["consumer", "follower"])
def test_a_damaged_batch_is_not_served_and_takes_its_replica_offline(reader: str) -> None:
    bench, storage = bench_of(*topic_records(1, replicas=(0, 2), isr=(0,)))
    bench.produce(acks=1)
    assert bench.high_watermark == 1
    storage.failing["read"] = CorruptLogError("damaged")
    if reader == "consumer":
        assert consume(bench).error is ErrorCode.KAFKA_STORAGE_ERROR
    else:
        [(_, response), *_] = bench.fetch(2, 0).sends(FetchResponse)
        assert [(result.error, result.batches) for result in response.partitions] == [
            (ErrorCode.KAFKA_STORAGE_ERROR, ())
        ]
    assert offline(bench) == [True]
    assert T0 not in bench.node.context.replicas


def test_a_follower_on_a_full_disk_asks_again_for_what_it_lacks() -> None:
    bench, storage = follower()
    storage.failing["append"] = FULL
    fetched(bench, batch(1), batch(1, base_offset=1))
    assert bench.sends(FetchRequest) == []
    assert offline(bench) == [False]
    storage.failing.clear()
    bench.fire("fetch/1", at_ms=500)
    assert bench.sent(FetchRequest).partitions[0].fetch_offset == 0
    fetched(bench, batch(1))
    assert bench.replica.log.end_offset == 1
    assert bench.sent(FetchRequest).partitions[0].fetch_offset == 1


def test_a_follower_on_a_broken_disk_falls_silent() -> None:
    bench, storage = follower()
    storage.failing["append"] = BROKEN
    fetched(bench, batch(1))
    assert offline(bench) == [True]
    assert T0 not in bench.node.context.replicas
    assert bench.fire("fetch/1", at_ms=500).effects == []


def test_a_log_that_cannot_be_opened_leaves_the_others_alone_and_goes_with_its_partition() -> None:
    storage = WeakStorage()
    storage.failing["open"] = CorruptLogError("damaged")
    bench = BrokerBench(storage=storage).run(*topic_records(1, replicas=(0,), isr=(0,)))
    assert T0 in bench.node.context.offline
    assert bench.produce().sent(ProduceResponse).error is ErrorCode.KAFKA_STORAGE_ERROR
    storage.failing.clear()
    storage.open_log(log_name(T0)).append(batch(1))
    bench.publish(RemovePartitionRecord(topic_id="T", partition_id=0))
    assert list(storage.log_names()) == []
    assert not bench.node.context.offline


@pytest.mark.covers("A29")
def test_a_checkpoint_that_could_not_be_written_is_written_later() -> None:
    bench, storage = bench_of()
    bench.produce()
    storage.failing["write_file"] = FULL
    bench.fire(CHECKPOINT_TIMER, at_ms=5_000)
    assert offline(bench) == [False]
    storage.failing.clear()
    timer = bench.produce().timer(CHECKPOINT_TIMER)
    assert timer is not None
    bench.fire(CHECKPOINT_TIMER, at_ms=timer.at_ms)
    assert storage.read_file(CHECKPOINT_FILE) == b'{"T/0": 2}'


@pytest.mark.covers("E22")
@pytest.mark.parametrize(("call", "error"), [("flush", BROKEN), ("flush", FULL), ("write_file", FULL)])
def test_where_not_all_is_flushed_no_clean_shutdown_is_vouched_for(call: str, error: StorageError) -> None:
    bench, storage = bench_of()
    bench.produce()
    bench.receive(DRIVER, ShutdownCommand())
    storage.failing[call] = error
    bench.heartbeat_answered(should_shut_down=True)
    assert storage.read_file(CLEAN_SHUTDOWN_FILE) is None
    assert any(isinstance(effect, Exit) for effect in bench.effects)


def test_a_flush_by_time_that_fails_takes_the_replica_offline() -> None:
    records = topic_records(1, replicas=(0,), isr=(0,))
    bench, storage = bench_of(*records[:2], ConfigRecord(topic_id="T", name="flush.ms", value="10"), *records[2:])
    bench.produce()
    storage.failing["flush"] = BROKEN
    bench.fire(f"{FLUSH_PREFIX}T/0", at_ms=10)
    assert offline(bench) == [True]
    assert T0 in bench.node.context.offline


def test_a_log_that_the_disk_keeps_does_not_stop_the_broker() -> None:
    bench, storage = bench_of()
    storage.failing["delete"] = BROKEN
    bench.publish(RemovePartitionRecord(topic_id="T", partition_id=0))
    assert offline(bench) == [False]
    assert T0 not in bench.node.context.replicas
