"""A removed partition that is created again with the same index: nothing of the old one remains."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments.check.regressions import RegressionCounter
from experiments.engines.sim.disk import SimStorage
from protocol.broker.context import log_name
from protocol.broker.flushing import CHECKPOINT_FILE, CHECKPOINT_TIMER
from protocol.ids import METADATA_LOG, TopicPartition
from protocol.messages.data import FetchPartitionResult, FetchRequest, FetchResponse
from protocol.messages.records import MetadataRecord, PartitionRecord, RemovePartitionRecord
from protocol.metadata.image import MetadataImage
from tests.unit.protocol.node_helpers import T0, BrokerBench, batch, config_of, registrations, topic_records

OLD, NEW = b"old", b"new"


def removed() -> RemovePartitionRecord:
    return RemovePartitionRecord(topic_id="T", partition_id=0)


def again(leader: int, epoch: int = 1) -> PartitionRecord:
    """`t-0` again, led by the same or another broker, in leader epochs after the former ones."""
    return PartitionRecord(
        topic_id="T",
        partition_id=0,
        replicas=(0, 1, 2),
        isr=(0, 1, 2),
        leader=leader,
        leader_epoch=epoch,
        first_leader_epoch=epoch,
    )


def stored(*payloads: bytes, epoch: int = 0, high_watermark: int | None = None) -> SimStorage:
    """A disk with a log of `t-0` and a checkpointed high watermark."""
    storage = SimStorage()
    for offset, payload in enumerate(payloads):
        storage.open_log(log_name(T0)).append(batch(1, offset, epoch, payload))
    if high_watermark is not None:
        storage.write_file(CHECKPOINT_FILE, json.dumps({log_name(T0): high_watermark}).encode())
    return storage


def payloads(storage: SimStorage) -> list[bytes]:
    return [found.payload for found in storage.open_log(log_name(T0)).read(0, 2**40)]


def fetched(bench: BrokerBench, leader: int, epoch: int, payload: bytes, offset: int = 0) -> BrokerBench:
    """The leader's response to a fetch from `offset` in `epoch`, with one record of that epoch."""
    answer = FetchPartitionResult(
        topic_id="T",
        partition_id=0,
        leader_epoch=epoch,
        fetch_offset=offset,
        high_watermark=0,
        batches=(batch(1, offset, epoch, payload),),
    )
    return bench.receive(leader, FetchResponse(partitions=(answer,)))


@pytest.mark.covers("M45", "M36")
@pytest.mark.parametrize("leader", [0, 1], ids=["leads", "follows"])
def test_a_running_broker_replaces_the_log(leader: int) -> None:
    bench = BrokerBench(storage=SimStorage()).run(*topic_records())
    bench.produce(acks=1)
    assert bench.replica.log.end_offset == 1
    bench.publish(removed())
    assert T0 not in bench.node.context.replicas
    assert bench.storage.log_names() == [METADATA_LOG]
    bench.publish(again(leader))
    assert (bench.replica.log.end_offset, bench.replica.leader_epoch, bench.replica.leader_id) == (0, 1, leader)
    assert (bench.replica.leadership is not None) == (leader == 0)


@pytest.mark.covers("M45", "M36")
@pytest.mark.parametrize("leader", [0, 1], ids=["leads", "follows"])
def test_a_broker_that_replays_removal_and_creation_at_once_replaces_the_log(leader: int) -> None:
    bench = BrokerBench().run(*topic_records())
    bench.produce(acks=1)
    bench.publish(removed(), again(leader))
    assert (bench.replica.log.end_offset, bench.replica.leader_epoch) == (0, 1)
    assert (bench.replica.leadership is not None) == (leader == 0)


@pytest.mark.covers("M36")
@pytest.mark.parametrize("leader", [0, 1], ids=["leads", "follows"])
@pytest.mark.parametrize("removals", [1, 3], ids=["removed once", "removed thrice"])
def test_a_broker_that_was_down_meanwhile_replaces_the_log(leader: int, removals: int) -> None:
    storage = stored(OLD, OLD, high_watermark=2)
    log = [record for epoch in range(1, removals + 1) for record in (removed(), again(leader, epoch))]
    bench = BrokerBench(storage=storage).run(*topic_records(), *log)
    assert payloads(storage) == []
    assert (bench.replica.log.end_offset, bench.high_watermark, bench.replica.leader_epoch) == (0, 0, removals)


@pytest.mark.covers("M36")
@pytest.mark.parametrize("leader", [0, 1], ids=["leads", "follows"])
def test_a_broker_that_loads_a_snapshot_replaces_the_log(leader: int) -> None:
    image = MetadataImage(config_of())
    for record in (*registrations(), *topic_records(), removed(), again(leader)):
        image.replay(record)
    down = BrokerBench(storage=stored(OLD)).start().registered().publish()
    down.fetched_snapshot(image, image.next_offset)
    assert payloads(down.storage) == []
    alive = BrokerBench().run(*topic_records())
    alive.produce(acks=1)
    assert payloads(alive.storage) != []
    alive.fetched_snapshot(image, 99)
    assert payloads(alive.storage) == []
    for bench in (down, alive):
        assert (bench.replica.log.end_offset, bench.replica.leader_epoch) == (0, 1)


@pytest.mark.covers("A34", "M36")
def test_a_broker_that_was_down_deletes_the_log_of_a_partition_that_it_lost() -> None:
    storage = stored(OLD, high_watermark=1)
    elsewhere = replace(again(1), replicas=(1, 2), isr=(1, 2))
    BrokerBench(storage=storage).run(*topic_records(), removed(), elsewhere)
    assert storage.log_names() == [METADATA_LOG]


@pytest.mark.parametrize("epoch", [1, 4])
def test_records_of_the_same_partition_are_kept(epoch: int) -> None:
    storage = stored(NEW, NEW, epoch=epoch, high_watermark=1)
    bench = BrokerBench(storage=storage).run(*topic_records(), removed(), again(1))
    assert payloads(storage) == [NEW, NEW]
    assert bench.high_watermark == 1


@pytest.mark.covers("M36", "A29")
@pytest.mark.parametrize("was_down", [True, False])
def test_the_checkpointed_high_watermark_of_the_removed_partition_is_dropped(was_down: bool) -> None:
    """A follower appends an uncommitted record, and crashes before it writes its next checkpoint."""
    storage = stored(OLD, OLD, OLD, high_watermark=3)
    if was_down:
        bench = BrokerBench(storage=storage).run(*topic_records(), removed(), again(1))
    else:
        bench = BrokerBench(storage=storage).run(*topic_records())
        assert bench.high_watermark == 3
        bench.fire(CHECKPOINT_TIMER)
        bench.publish(removed(), again(1))
    fetched(bench, 1, 1, NEW)
    assert payloads(storage) == [NEW]
    restarted = BrokerBench(storage=storage).run(*topic_records(), removed(), again(1))
    assert (restarted.replica.log.end_offset, restarted.high_watermark) == (1, 0)


@pytest.mark.covers("A26", "M45")
def test_a_result_for_the_removed_partition_is_ignored() -> None:
    """Leader and offset are the same; only the leader epoch differs."""
    bench = BrokerBench().run(*topic_records(leader=1))
    assert bench.replica.leader_id == 1
    bench.publish(removed(), again(1))
    fetch = bench.sent(FetchRequest).partitions[0]
    assert (fetch.fetch_offset, fetch.current_leader_epoch) == (0, 1)
    fetched(bench, 1, 0, OLD)
    assert payloads(bench.storage) == []
    fetched(bench, 1, 1, NEW)
    assert payloads(bench.storage) == [NEW]


def test_an_image_and_its_snapshot_keep_the_first_leader_epoch() -> None:
    image = MetadataImage(config_of())
    second = replace(again(0), partition_id=1, leader_epoch=6, first_leader_epoch=0)
    records: list[MetadataRecord] = [*registrations(), *topic_records(), second]
    for record in (*records, RemovePartitionRecord(topic_id="T", partition_id=1)):
        image.replay(record)
    copy = MetadataImage(config_of())
    copy.load(image.to_records(), image.next_offset)
    for found in (image, copy):
        assert found.topics["T"].first_leader_epoch == 7
        assert found.partition_count == len(found.topics["T"].partitions) == 1
    delta = image.take_delta()
    assert (list(delta.partitions), list(delta.removed_partitions)) == ([T0], [(T0.topic_id, 1)])


def test_partitions_missing_in_a_snapshot_are_removed() -> None:
    image, other = MetadataImage(config_of()), MetadataImage(config_of())
    second = replace(again(0), partition_id=1, first_leader_epoch=0, leader_epoch=0)
    for record in (*registrations(), *topic_records(), second):
        image.replay(record)
        other.replay(record)
    gone, came_again = RemovePartitionRecord(topic_id="T", partition_id=1), again(0)
    for record in (gone, removed(), came_again):
        other.replay(record)
    image.take_delta()
    image.load(other.to_records(), other.next_offset)
    delta = image.take_delta()
    assert sorted(delta.removed_partitions) == [T0, (T0.topic_id, 1)]
    assert list(delta.partitions) == [T0]


NAME = TopicPartition("t", 1)


@pytest.mark.parametrize("deleted", [True, False], ids=["with its topic", "alone"])
def test_reads_of_the_removed_partition_are_no_regression_of_the_new_one(deleted: bool) -> None:
    counter = RegressionCounter()
    counter.observe_leader(NAME, 3, 0)
    counter.observe_high_watermark(NAME, 3, 10)
    counter.observe_leader(NAME, 4, 8)
    assert counter.counts == {NAME: 1}
    if deleted:
        counter.observe_topic_deletion("t")
    else:
        counter.observe_removal(NAME)
    counter.observe_high_watermark(NAME, 5, 12)
    first_epoch = 0 if deleted else 6
    counter.observe_partition(NAME, first_epoch)
    counter.observe_partition(NAME, first_epoch + 1)
    assert not counter.observe_leader(NAME, first_epoch, 0)
    counter.observe_high_watermark(NAME, first_epoch, 2)
    assert counter.observe_leader(NAME, first_epoch + 1, 1)
    assert counter.counts == {NAME: 1}
