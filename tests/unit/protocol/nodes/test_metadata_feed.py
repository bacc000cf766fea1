"""The metadata feed: log entries and snapshots that an image is built from, and the snapshots made of it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from experiments.engines.sim.disk import formatted_disk
from protocol.contract import Outbox
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import CLUSTER_ID, Offset
from protocol.messages.metadata_batch import pack_batch, unpack_records
from protocol.messages.records import FeatureLevelRecord, MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.nodes.metadata_feed import LogEntries, SnapshotGenerator, log_entries
from protocol.quorum.context import QuorumConfig
from protocol.quorum.replica import QuorumReplica
from tests.unit.protocol.node_helpers import CONTROLLER, config_of, fencing, registrations, topic_records
from tests.unit.protocol.quorum.quorum_helpers import Bench

CONTROL = 2
"""The log of a voter that is alone begins with so many control records: its vote, and that it leads."""


class Feed:
    """The replica of the one voter, and an image that follows it."""

    def __init__(self, generation: Generation = Generation.KIP_966) -> None:
        self.config = config_of(generation)
        self.replica = QuorumReplica(
            CONTROLLER, QuorumConfig(CLUSTER_ID), formatted_disk(), Random(1), Outbox(), can_vote=True
        )
        self.replica.start(0)
        self.replica.settle(0)
        self.image = MetadataImage(self.config)
        levels = [FeatureLevelRecord(name=name, feature_level=at) for name, at in generation.feature_levels.items()]
        self.append(*levels).follow()

    def append(self, *records: MetadataRecord) -> Feed:
        """Records in one batch, committed."""
        self.replica.append(0, records, pack_batch(records, self.image.feature_levels))
        self.replica.settle(0)
        return self

    def entries(self, next_offset: Offset = 0, end_offset: Offset | None = None) -> list[LogEntries]:
        return list(
            log_entries(self.replica, next_offset, self.replica.high_watermark if end_offset is None else end_offset)
        )

    def follow(self) -> Feed:
        taken_up(self.image, self.entries(self.image.next_offset))
        return self

    def snapshot(self, every_bytes: int = 1) -> bool:
        return generator(self.replica, every_bytes).take_if_due(0, self.image)


def generator(replica: QuorumReplica, every_bytes: int = 2**40, every_ms: int = 0) -> SnapshotGenerator:
    """A node's generator, started at 0 ms; by default neither rule applies."""
    found = SnapshotGenerator(
        replica,
        config_of(
            metadata_log_max_record_bytes_between_snapshots=every_bytes, metadata_log_max_snapshot_interval_ms=every_ms
        ),
    )
    found.start(0)
    return found


def taken_up(image: MetadataImage, items: Sequence[LogEntries]) -> MetadataImage:
    """The image that has replayed what there is."""
    for item in items:
        if item.is_snapshot:
            image.load(item.records, item.next_offset)
        else:
            for record in item.records:
                image.replay(record)
        assert image.next_offset == item.next_offset
    return image


def shape(items: Sequence[LogEntries]) -> list[tuple[int, bool]]:
    return [(item.next_offset, item.is_snapshot) for item in items]


# -- news --------------------------------------------------------------------------------------------------------------


def test_entries_are_batches_in_their_order() -> None:
    feed = Feed().append(*registrations()).append(*topic_records())
    begin = CONTROL + 2
    assert shape(feed.entries()) == [(1, False), (2, False), (begin, False), (begin + 6, False), (begin + 9, False)]
    assert list(feed.entries()[-1].records) == topic_records()
    assert shape(feed.entries(begin)) == [(begin + 6, False), (begin + 9, False)]
    assert feed.entries(begin + 9) == []


def test_entries_end_with_the_last_complete_batch() -> None:
    feed = Feed().append(*registrations()).append(*topic_records())
    begin = CONTROL + 2
    for end in range(begin + 6, begin + 9):
        assert shape(feed.entries(begin, end)) == [(begin + 6, False)]
    assert feed.entries(begin + 6, begin + 8) == []


def test_a_long_log_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed().append(*registrations()).append(*topic_records())
    whole = feed.entries()
    monkeypatch.setattr("protocol.nodes.metadata_feed._READ_BYTES", 1)
    assert feed.entries() == whole


def test_the_snapshot_comes_first_where_the_log_begins_behind_the_state() -> None:
    feed = Feed().append(*registrations()).append(*topic_records()).follow()
    assert feed.snapshot()
    taken = feed.image.next_offset
    feed.append(fencing(0, 0, fenced=True))
    assert shape(feed.entries()) == [(taken, True), (taken + 1, False)]
    assert shape(feed.entries(CONTROL + 2)) == [(taken, True), (taken + 1, False)], "all of it, for one that has a part"
    assert shape(feed.entries(taken)) == [(taken + 1, False)], "one that has all of it goes on"
    assert shape(feed.entries(0, taken)) == [(taken, True)]
    assert feed.entries(taken, taken) == []
    late = taken_up(MetadataImage(feed.config), feed.entries())
    assert late.to_records() == feed.follow().image.to_records()
    assert late.next_offset == feed.image.next_offset


def test_an_image_ahead_of_the_snapshot_does_not_load_it() -> None:
    feed = Feed().append(*registrations()).follow()
    assert feed.snapshot()
    end = feed.append(*topic_records()).append(fencing(0, 0, fenced=True)).replica.high_watermark
    assert shape(feed.entries(end - 1)) == [(end, False)]


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_due_when_enough_has_been_appended_since_the_last_one() -> None:
    feed = Feed().append(*registrations()).follow()
    size = feed.replica.log.bytes_since_snapshot
    assert not feed.snapshot(size + 1)
    assert feed.replica.snapshot is None
    assert feed.snapshot(size)
    assert feed.replica.log.start_offset == feed.image.next_offset
    assert not feed.snapshot(1), "nothing has been appended since"
    feed.append(*topic_records()).follow()
    assert not feed.snapshot(size), "the count starts again"
    assert feed.snapshot(feed.replica.log.bytes_since_snapshot)


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_a_snapshot_is_the_image_in_the_version_of_its_levels(generation: Generation) -> None:
    feed = Feed(generation).append(*registrations()).append(*topic_records(2)).follow()
    assert feed.snapshot()
    found = feed.replica.snapshot
    assert found is not None
    assert (found.epoch, found.end_offset) == (1, feed.image.next_offset)
    assert list(unpack_records(found.data)) == feed.image.to_records()
    assert found.data == pack_batch(feed.image.to_records(), generation.feature_levels)
    assert [key.id for key in found.voters.keys] == [CONTROLLER]


def test_an_image_behind_the_high_watermark_makes_no_snapshot() -> None:
    feed = Feed().append(*registrations())
    assert not feed.snapshot()
    assert feed.follow().snapshot()


def test_an_image_ahead_of_the_high_watermark_makes_no_snapshot() -> None:
    bench = Bench().serve().register(3)
    replica, image = bench.node.replica, bench.image
    assert image.next_offset == replica.high_watermark + 1
    assert not generator(replica, 1).take_if_due(0, image)
    bench.fetch()
    assert generator(replica, 1).take_if_due(0, image)
    assert replica.snapshot is not None
    assert replica.snapshot.end_offset == bench.end


def test_a_snapshot_is_due_with_the_first_record_after_the_interval() -> None:
    feed = Feed().append(*registrations()).follow()
    snapshots = generator(feed.replica, every_ms=1_000)
    assert not snapshots.take_if_due(999, feed.image)
    assert not snapshots.take_if_due(5_000, feed.image), "time alone is no reason"
    feed.append(fencing(0, 0, fenced=True)).follow()
    assert snapshots.take_if_due(6_000, feed.image)
    feed.append(fencing(0, 0, fenced=False)).follow()
    assert not snapshots.take_if_due(6_999, feed.image), "the interval starts again"
    feed.append(fencing(0, 0, fenced=True)).follow()
    assert snapshots.take_if_due(7_000, feed.image)
    assert feed.replica.snapshot is not None
    assert feed.replica.snapshot.end_offset == feed.image.next_offset


def test_a_loaded_snapshot_begins_the_interval_anew() -> None:
    feed = Feed().append(*registrations()).follow()
    snapshots = generator(feed.replica, every_ms=1_000)
    assert generator(feed.replica, 1).take_if_due(0, feed.image)
    assert not snapshots.take_if_due(1_500, feed.image)
    for now_ms, is_due in ((2_499, False), (2_500, True)):
        feed.append(fencing(0, 0, fenced=True)).follow()
        assert snapshots.take_if_due(now_ms, feed.image) is is_due


def test_without_an_interval_time_does_not_matter() -> None:
    feed = Feed().append(*registrations()).follow()
    assert not generator(feed.replica, every_ms=0).take_if_due(10**12, feed.image)
