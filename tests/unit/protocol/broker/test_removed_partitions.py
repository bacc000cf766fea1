"""A removed partition that is created again with the same index: metadata, and checks. Brokers: `testdata`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.check.regressions import RegressionCounter
from protocol.ids import TopicPartition
from protocol.messages.records import MetadataRecord, PartitionRecord, RemovePartitionRecord
from protocol.metadata.image import MetadataImage
from tests.unit.protocol.node_helpers import T0, config_of, registrations, topic_records

REMOVED = RemovePartitionRecord(topic_id="T", partition_id=0)
AGAIN = PartitionRecord(
    topic_id="T",
    partition_id=0,
    replicas=(0, 1, 2),
    isr=(0, 1, 2),
    leader=0,
    leader_epoch=1,
    first_leader_epoch=1,
)


def test_an_image_and_its_snapshot_keep_the_first_leader_epoch() -> None:
    image = MetadataImage(config_of())
    second = replace(AGAIN, partition_id=1, leader_epoch=6, first_leader_epoch=0)
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
    second = replace(AGAIN, partition_id=1, first_leader_epoch=0, leader_epoch=0)
    for record in (*registrations(), *topic_records(), second):
        image.replay(record)
        other.replay(record)
    gone, came_again = RemovePartitionRecord(topic_id="T", partition_id=1), AGAIN
    for record in (gone, REMOVED, came_again):
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
