"""A broker whose disk fails stops uncleanly; a damaged batch only fails its read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments.engines.sim.disk import SimLog, SimStorage
from protocol.broker.context import log_name
from protocol.broker.flushing import CHECKPOINT_FILE, CHECKPOINT_TIMER, FLUSH_PREFIX, RETENTION_TIMER
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE, LifecycleState
from protocol.contract import Exit, SegmentInfo
from protocol.errors import CorruptLogError, ErrorCode, StorageError, StorageFullError
from protocol.ids import DRIVER
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import BrokerRegistrationRequest
from protocol.messages.data import (
    ConsumeRequest,
    ConsumeResponse,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ProduceResponse,
)
from protocol.messages.quorum import QuorumFetchRequest
from protocol.messages.records import ConfigRecord, MetadataRecord, RemovePartitionRecord
from tests.unit.protocol.node_helpers import CLIENT, T0, BrokerBench, batch, registrations, topic_records


class WeakLog(SimLog):
    """Raises the error that the test has set."""

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

    def segments(self) -> Sequence[SegmentInfo]:
        self.disk.maybe_fail("segments")
        return super().segments()

    def write_snapshot(self, data: bytes) -> None:
        self.disk.maybe_fail("snapshot")
        super().write_snapshot(data)


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

    def delete_file(self, name: str) -> None:
        self.maybe_fail("delete_file")
        super().delete_file(name)


FULL, BROKEN = StorageFullError("full"), StorageError("broken")


def bench_of(*records: MetadataRecord) -> tuple[BrokerBench, WeakStorage]:
    storage = WeakStorage()
    return BrokerBench(storage=storage).run(*(records or topic_records(1, replicas=(0,), isr=(0,)))), storage


def follower() -> tuple[BrokerBench, WeakStorage]:
    return bench_of(*topic_records(1, leader=1))


def fetched(bench: BrokerBench, *batches: RecordBatch) -> BrokerBench:
    """The leader's result for the broker's fetch."""
    answer = FetchPartitionResult(
        topic_id="T",
        partition_id=0,
        leader_epoch=0,
        fetch_offset=bench.replica.log.end_offset,
        last_fetched_epoch=bench.replica.log.latest_epoch,
        high_watermark=0,
        batches=batches,
    )
    return bench.receive(1, FetchResponse(partitions=(answer,)))


def consume(bench: BrokerBench) -> ConsumeResponse:
    request = ConsumeRequest(correlation_id=1, topic="t", partition=0, fetch_offset=0, max_bytes=100)
    return bench.receive(CLIENT, request).sent(ConsumeResponse)


def halted(bench: BrokerBench) -> list[object]:
    return [trace.halted for trace in bench.traces("storage_error")]


def has_ended(bench: BrokerBench) -> bool:
    """Whether the last input has stopped the broker, with a `storage_error` event."""
    is_over = isinstance(bench.effects[-1], Exit) and bench.node.state is LifecycleState.STOPPED
    assert is_over == (halted(bench) == [True])
    return is_over


def leader(*configs: tuple[str, str]) -> tuple[BrokerBench, WeakStorage]:
    topic, min_isr, partition = topic_records(1, replicas=(0,), isr=(0,))
    return bench_of(topic, min_isr, *(ConfigRecord(topic_id="T", name=n, value=v) for n, v in configs), partition)


@pytest.mark.parametrize("error", [FULL, BROKEN])
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize(("call", "stored_at"), [("append", -1), ("flush", 0)])
def test_a_leader_with_a_failed_disk_acknowledges_nothing_more(
    call: str, stored_at: int, acks: int, error: StorageError
) -> None:
    bench, storage = leader(("flush.messages", "1"))
    storage.failing[call] = error
    bench.produce(acks=acks)
    assert has_ended(bench)
    answers = [(answer.error, answer.base_offset) for _, answer in bench.sends(ProduceResponse)]
    assert answers == [(ErrorCode.KAFKA_STORAGE_ERROR, stored_at)][: abs(acks)]
    assert bench.traces("high_watermark") == []
    storage.failing.clear()
    assert bench.produce(acks=acks).effects == []
    assert storage.read_file(CLEAN_SHUTDOWN_FILE) is None
    again = BrokerBench(storage=storage).run(*topic_records(1, replicas=(0,), isr=(0,)))
    assert again.produce().sent(ProduceResponse).error is ErrorCode.NONE


def test_effects_before_the_disk_failure_are_carried_out() -> None:
    bench, storage = bench_of(*topic_records(1, replicas=(0, 1), isr=(0, 1)))
    bench.produce(acks=-1)
    storage.failing["write_file"] = BROKEN
    bench.fetch(1, 1)
    assert bench.sent(ProduceResponse).error is ErrorCode.NONE
    bench.fire(CHECKPOINT_TIMER, at_ms=5_000)
    assert has_ended(bench)


@pytest.mark.parametrize("reader", ["consumer", "follower"])
def test_a_damaged_batch_is_not_served_but_other_batches_are(reader: str) -> None:
    bench, storage = bench_of(*topic_records(1, replicas=(0, 2), isr=(0,)))
    bench.produce(acks=1)
    assert bench.high_watermark == 1
    storage.failing["read"] = CorruptLogError("damaged")
    if reader == "consumer":
        assert consume(bench).error is ErrorCode.CORRUPT_MESSAGE
    else:
        [(_, response), *_] = bench.fetch(2, 0).sends(FetchResponse)
        assert [(result.error, result.batches) for result in response.partitions] == [(ErrorCode.CORRUPT_MESSAGE, ())]
    assert halted(bench) == [False]
    assert bench.produce(acks=1).sent(ProduceResponse).error is ErrorCode.NONE
    storage.failing.clear()
    assert [batch.base_offset for batch in consume(bench).batches] == [0, 1]


@pytest.mark.parametrize("reader", ["consumer", "follower"])
def test_a_failed_read_stops_the_broker(reader: str) -> None:
    bench, storage = bench_of(*topic_records(1, replicas=(0, 2), isr=(0,)))
    bench.produce(acks=1)
    storage.failing["read"] = BROKEN
    if reader == "consumer":
        request = ConsumeRequest(correlation_id=1, topic="t", partition=0, fetch_offset=0, max_bytes=100)
        bench.receive(CLIENT, request)
    else:
        bench.fetch(2, 0)
    assert has_ended(bench)
    assert bench.sends(ConsumeResponse) == bench.sends(FetchResponse) == []


@pytest.mark.parametrize("error", [FULL, BROKEN])
def test_a_follower_with_a_failed_disk_stops(error: StorageError) -> None:
    bench, storage = follower()
    storage.failing["append"] = error
    fetched(bench, batch(1))
    assert has_ended(bench)
    assert bench.sends(FetchRequest) == []


def test_a_batch_received_damaged_is_fetched_again() -> None:
    bench, storage = follower()
    storage.failing["append"] = CorruptLogError("damaged on its way")
    fetched(bench, batch(1), batch(1, base_offset=1))
    assert bench.sends(FetchRequest) == []
    assert halted(bench) == [False]
    storage.failing.clear()
    bench.fire("fetch/1", at_ms=500)
    assert bench.sent(FetchRequest).partitions[0].fetch_offset == 0
    fetched(bench, batch(1))
    assert bench.replica.log.end_offset == 1
    assert bench.sent(FetchRequest).partitions[0].fetch_offset == 1


@pytest.mark.parametrize("error", [BROKEN, CorruptLogError("damaged")])
def test_a_broker_that_cannot_open_a_log_stops(error: StorageError) -> None:
    storage = WeakStorage()
    bench = BrokerBench(storage=storage).start().registered()
    storage.failing["open"] = error
    bench.publish(*registrations(), *topic_records(1, replicas=(0,), isr=(0,)))
    assert has_ended(bench)


@pytest.mark.parametrize("error", [BROKEN, CorruptLogError("damaged")])
@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_broker_that_cannot_read_the_metadata_log_stops_at_its_start(operation: str, error: StorageError) -> None:
    storage = WeakStorage()
    BrokerBench(storage=storage).run()
    storage.failing[operation] = error
    bench = BrokerBench(storage=storage).start()
    assert has_ended(bench)
    assert bench.sends(BrokerRegistrationRequest) == []


@pytest.mark.parametrize("error", [FULL, BROKEN])
@pytest.mark.parametrize("operation", ["append", "flush"])
def test_a_broker_that_cannot_store_the_metadata_log_stops(operation: str, error: StorageError) -> None:
    storage = WeakStorage()
    bench = BrokerBench(storage=storage).run()
    storage.failing[operation] = error
    bench.publish(*topic_records(1))
    assert has_ended(bench)
    assert bench.sends(QuorumFetchRequest) == [], "it does not ask for what comes next"


def test_a_broker_that_cannot_read_its_directory_stops_at_its_start() -> None:
    storage = WeakStorage()
    storage.write_file(CLEAN_SHUTDOWN_FILE, b"{}")
    bench = BrokerBench(storage=storage)
    storage.failing["delete_file"] = BROKEN
    assert has_ended(bench.start())
    assert bench.sends(BrokerRegistrationRequest) == []


@pytest.mark.covers("A29")
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"T/0": "1"}', b'{"T/0": -1}', b'{"T/0": null}'])
def test_an_unreadable_checkpoint_is_reported_and_ignored(data: bytes) -> None:
    bench, storage = bench_of()
    bench.produce()
    bench.fire(CHECKPOINT_TIMER, at_ms=5_000)
    assert storage.read_file(CHECKPOINT_FILE) == b'{"T/0":1}'
    storage.write_file(CHECKPOINT_FILE, data)
    again = BrokerBench(storage=storage).start()
    assert halted(again) == [False]
    again.registered().publish(*registrations(), *topic_records(1, leader=1))
    assert (again.high_watermark, again.replica.log.end_offset) == (0, 1)


@pytest.mark.covers("E22")
@pytest.mark.parametrize(
    ("call", "error"), [("flush", BROKEN), ("flush", FULL), ("write_file", FULL), ("snapshot", FULL)]
)
def test_a_failed_write_during_shutdown_leaves_no_clean_shutdown_file(call: str, error: StorageError) -> None:
    bench, storage = bench_of()
    bench.produce()
    bench.receive(DRIVER, ShutdownCommand())
    storage.failing[call] = error
    bench.heartbeat_answered(should_shut_down=True)
    assert has_ended(bench)
    assert storage.read_file(CLEAN_SHUTDOWN_FILE) is None


@pytest.mark.covers("E22")
def test_a_clean_shutdown_saves_the_producer_states() -> None:
    bench, storage = bench_of()
    bench.produce()
    bench.receive(DRIVER, ShutdownCommand())
    bench.heartbeat_answered(should_shut_down=True)
    snapshot = storage.open_log(log_name(T0)).snapshot()
    assert snapshot is not None
    assert snapshot[0] == 1
    assert storage.read_file(CLEAN_SHUTDOWN_FILE) is not None


@pytest.mark.parametrize(
    ("name", "call"), [(f"{FLUSH_PREFIX}T/0", "flush"), (CHECKPOINT_TIMER, "write_file"), (RETENTION_TIMER, "segments")]
)
def test_a_disk_failure_in_a_timer_stops_the_broker(name: str, call: str) -> None:
    bench, storage = leader(("flush.ms", "10"), ("segment.bytes", "14"))
    bench.produce().produce()
    storage.failing[call] = BROKEN
    assert has_ended(bench.fire(name, at_ms=10))


def test_a_damaged_segment_does_not_stop_retention_of_other_logs() -> None:
    bench, storage = leader(("segment.bytes", "14"))
    bench.produce().produce()
    storage.failing["segments"] = CorruptLogError("damaged")
    bench.fire(RETENTION_TIMER, at_ms=10)
    assert halted(bench) == [False]
    assert bench.timer(RETENTION_TIMER) is not None


def test_a_log_that_cannot_be_deleted_stops_the_broker() -> None:
    bench, storage = bench_of()
    storage.failing["delete"] = BROKEN
    assert has_ended(bench.publish(RemovePartitionRecord(topic_id="T", partition_id=0)))
