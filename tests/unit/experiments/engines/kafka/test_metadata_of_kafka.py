"""Records of Kafka's metadata log, batches on a disk, and what of them is committed: bytes and logs written by hand.

The bytes follow Kafka's documentation: an array of n items begins with n + 1, a text of n bytes too, null is 0; a
tagged field has its tag, its size, and its content; unsigned varints have seven bits to a byte, the lowest first.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google_crc32c import extend

from experiments.engines.kafka import segments
from experiments.engines.kafka.metadata_log import MetadataLog, committed_end, quorum_state
from experiments.engines.kafka.metadata_records import Reader, Translator, leader_of, voters_of
from experiments.engines.kafka.segments import DiskBatch, DiskLog, batches_of, checkpoint, recovery_points, truncate
from protocol.config import ClusterConfig
from protocol.errors import ProtocolInvariantError
from protocol.events.base import Trace
from protocol.features import Generation
from protocol.ids import NodeId, TopicPartition
from protocol.kafka.batches import build_batch, to_kafka
from protocol.messages.base import changed
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.quorum.voters import ReplicaKey

TOPIC_ID = bytes(range(16))
ID_TEXT = base64.urlsafe_b64encode(TOPIC_ID).decode().rstrip("=")
CONFIG = ClusterConfig.of(Generation.KIP_966_ELR, {})


def ints(*numbers: int) -> bytes:
    return bytes([len(numbers) + 1]) + b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)


def text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def i32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def i64(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


TOPIC = b"\1\2\0" + text("t") + TOPIC_ID + b"\0"
BROKER_1 = (
    b"\1\0\3" + i32(1) + b"\0" + TOPIC_ID + i64(40)  # no migration; epoch 40
    + b"\2" + text("PLAINTEXT") + text("node-1") + (9092).to_bytes(2, "big") + b"\0\0\0"  # one endpoint
    + b"\2" + text("f") + b"\0\1\0\2\0" + text("rack-a") + b"\1\0"  # one feature, fenced, not shutting down
    + b"\1\0" + bytes([17]) + b"\2" + TOPIC_ID  # one tagged field: tag 0, one directory
)  # fmt: skip
PARTITION = b"\1\3\2" + i32(0) + TOPIC_ID + ints(1, 2) + ints(1, 2) + ints() + ints() + i32(1) + i32(0) + i32(0)
PARTITION += b"\3" + bytes(32) + b"\1\1" + bytes([5]) + ints(2)  # two directories; tag 1, the ELR, has 5 bytes
CLEARED = b"\1\x1c\0" + text("t") + b"\0"


def translated(*values: bytes) -> tuple[list[MetadataRecord], MetadataImage]:
    """The records of a log with these values, and their image."""
    image, found = MetadataImage(CONFIG), list[MetadataRecord]()
    translator = Translator(image, {"log.retention.ms": "retention.ms"})
    for value in values:
        for record in translator.records(value):
            image.replay(record)
            found.append(record)
    return found, image


def test_a_log_of_kafka_gives_the_image_that_kafka_has() -> None:
    """Broker epochs are places in the shorter log here: the registration at Kafka's offset 40 is the first record."""
    change = b"\1\5\2" + i32(0) + TOPIC_ID + b"\3" + b"\0\5" + ints(2) + b"\1\4" + i32(2) + b"\5\1\1"
    unfenced = b"\1\x11\0" + i32(1) + i64(40) + b"\1\0\1\xff"
    level = b"\1\x0c\0" + text("eligible.leader.replicas.version") + b"\0\1\0"
    no_op = b"\1\x14\0\0"
    found, image = translated(BROKER_1, no_op, level, unfenced, TOPIC, PARTITION, change)
    assert [type(it).__name__ for it in found] == [
        "RegisterBrokerRecord",
        "FeatureLevelRecord",
        "BrokerRegistrationChangeRecord",
        "TopicRecord",
        "PartitionRecord",
        "PartitionChangeRecord",
    ]
    broker = image.brokers[1]
    assert (broker.broker_epoch, broker.fenced, broker.rack, image.feature_levels["metadata.version"]) == (
        0,
        False,
        "rack-a",
        2,
    )
    [(key, state)] = image.partitions()
    assert (key.topic_id, image.name_of(key)) == (ID_TEXT, TopicPartition("t", 0))
    assert (state.replicas, state.isr, state.elr, state.leader) == ((1, 2), (2,), (2,), 2)
    assert (state.leader_epoch, state.partition_epoch, state.leader_recovery_state) == (1, 1, 1)


def test_a_record_that_clears_the_elr_changes_each_partition_that_has_one() -> None:
    """In Kafka one record of the topic; its partition 0 has an ELR, so it changes, and its partition epoch rises."""
    found, image = translated(TOPIC, PARTITION, CLEARED, CLEARED)
    [(_, state)] = image.partitions()
    assert (len(found), state.elr, state.partition_epoch) == (3, (), 1)


def test_configs_of_the_cluster_have_their_names_here_and_those_of_one_broker_are_left_out() -> None:
    def config(kind: int, name: str, key: str, value: str) -> bytes:
        return b"\1\4\0" + bytes([kind]) + text(name) + text(key) + text(value) + b"\0"

    own, one = config(4, "", "log.retention.ms", "5"), config(4, "1", "log.retention.ms", "6")
    unknown, of_topic = config(2, "t", "compression.type", "gzip"), config(2, "t", "min.insync.replicas", "2")
    found, image = translated(TOPIC, own, one, unknown, of_topic)
    assert len(found) == 3
    assert image.configs == {None: {"retention.ms": 5}, ID_TEXT: {"min.insync.replicas": 2}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\2\2\0", "found version 2 of a frame"),
        (TOPIC + b"\7", "version 0 of metadata record 2 has fields that are not known"),
        (TOPIC[:-5], "cannot be read"),
        (b"\1\x19\0\0\0", "a transaction of the metadata log was aborted"),
        (PARTITION, None),
    ],
)
def test_what_is_no_record_of_kafka_4_is_not_passed_over(value: bytes, message: str | None) -> None:
    if message is None:
        assert len(translated(TOPIC, value)[0]) == 2
        return
    with pytest.raises(ProtocolInvariantError, match=message):
        translated(value)


def test_control_records_name_the_leader_and_the_voters() -> None:
    assert leader_of(b"\0\1" + i32(1002) + b"\1\1\0") == 1002
    endpoint = b"\2" + text("CONTROLLER") + text("node-1000") + (19_000).to_bytes(2, "big") + b"\0"
    voter = i32(1000) + TOPIC_ID + endpoint + b"\0\0\0\1\0" + b"\0"
    assert voters_of(b"\0\0\2" + voter + b"\0") == (ReplicaKey(1000, ID_TEXT),)
    assert Reader(b"\xac\2").unsigned() == 300  # 0x2c + 2 * 128


def batch(base: int, epoch: int, *values: bytes) -> bytes:
    """A batch of Kafka's with records of these values."""
    made = build_batch([(None, value) for value in values], 1_000, lambda data, before: int(extend(before, data)))
    stamped = changed(made, base_offset=base, leader_epoch=epoch)
    return to_kafka(stamped, lambda data, before: int(extend(before, data)))


def ends(*pairs: tuple[int, int]) -> list[DiskBatch]:
    """Batches that end at these offsets, of these epochs."""
    return [DiskBatch(end - 1, end, epoch, 0, b"", Path(), 0) for end, epoch in pairs]


@pytest.mark.parametrize(
    ("logs", "count"),
    [
        ([ends((1, 1), (2, 1), (3, 1)), ends((1, 1), (2, 1)), ends((1, 1))], 2),
        ([ends((1, 1), (2, 1)), ends(), ends()], 0),
        # Raft's figure 8: the newest leader's own first batch, of epoch 3, is on one disk only, so 2 may still be lost.
        ([ends((1, 1), (2, 2), (3, 3)), ends((1, 1), (2, 2)), ends((1, 1))], 0),
        ([ends((1, 1), (2, 2), (3, 3)), ends((1, 1), (2, 2), (3, 3)), ends((1, 1))], 3),
        # The second log ends in a batch that the newest leader has replaced: they are equal up to 1.
        ([ends((1, 1), (2, 3)), ends((1, 1), (2, 2)), ends((1, 1), (2, 3))], 2),
    ],
)
def test_what_a_majority_holds_is_committed_with_the_newest_epoch(logs: Sequence[list[DiskBatch]], count: int) -> None:
    found = committed_end(dict(enumerate(logs, 1000)), [1000, 1001, 1002])
    assert found == (1000, count)


@dataclass
class Seen:
    events: list[tuple[NodeId, Trace]] = field(default_factory=list)

    def emit(self, node: NodeId, trace: Trace) -> None:
        self.events.append((node, trace))


def write(disk: Path, *batches: bytes) -> None:
    folder = disk / "__cluster_metadata-0"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{0:020}.log").open("ab") as file:
        file.write(b"".join(batches))


def test_metadata_are_known_from_the_disks_alone(tmp_path: Path) -> None:
    seen, disk = Seen(), tmp_path / "disk"
    log = MetadataLog({1000: disk}, CONFIG, (ReplicaKey(1000, "u"),), {}, seen.emit)
    assert (log.refresh(), log.view().partitions) == (False, {})
    first = batch(0, 1, TOPIC, PARTITION)
    write(disk, first[:30])
    assert not log.refresh()
    write(disk, first[30:])
    assert log.refresh()
    assert log.view().partitions[TopicPartition("t", 0)].isr == (1, 2)
    assert [trace.kind for _, trace in seen.events] == ["committed", "partition"]
    assert (log.is_held_without(1000), log.is_held_without(1001)) == (False, True)
    (disk / "__cluster_metadata-0" / f"{0:020}.log").write_bytes(batch(0, 2, TOPIC))
    with pytest.raises(ProtocolInvariantError, match="a majority of the disks was replaced"):
        log.refresh()


def test_a_controller_that_was_started_after_it_had_led_has_resigned(tmp_path: Path) -> None:
    state = tmp_path / "__cluster_metadata-0" / "quorum-state"
    state.parent.mkdir()
    log = MetadataLog({1000: tmp_path}, CONFIG, (ReplicaKey(1000, "u"),), {}, Seen().emit)
    assert quorum_state(tmp_path).epoch == 0
    state.write_text('{"leaderId": 1000, "leaderEpoch": 3, "votedId": -1, "data_version": 1}')
    (tmp_path / "meta.properties").write_text("node.id=1000\ndirectory.id=abc\n")
    views = [dict(log.quorum({1000: began}))[1000] for began in (2, 3)]
    assert [(view.role, view.uuid, view.epoch, view.is_active) for view in views] == [
        ("candidate", "abc", 3, False),
        ("resigned", "abc", 3, False),
    ]
    log.led = 3
    assert dict(log.quorum({1000: 2}))[1000].role == "leader"


def test_a_log_is_read_on_from_where_it_ended_and_from_its_start_when_it_was_cut(tmp_path: Path) -> None:
    first, second = batch(0, 1, b"a"), batch(1, 2, b"b", b"c")
    file = tmp_path / f"{0:020}.log"
    file.write_bytes(first + second[:-1])
    log = DiskLog(tmp_path)
    assert (log.refresh(), log.end_offset) == (True, 1)
    file.write_bytes(first + second)
    assert (log.refresh(), log.end_offset, log.refresh()) == (True, 3, False)
    assert [(it.base_offset, it.leader_epoch, it.payload) for it in map(DiskBatch.stored, log.batches)] == [
        (0, 1, b"a"),
        (1, 2, b"b"),
    ]
    file.write_bytes(first)
    assert (log.refresh(), log.end_offset) == (True, 1)
    file.write_bytes(batch(0, 2, b"z"))  # cut and grown to the same size since the last look
    os.utime(file, ns=(0, 1))
    assert (log.refresh(), [it.stored().payload for it in log.batches]) == (True, [b"z"])


def test_a_large_log_is_read_in_parts_and_kept_as_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one record takes 61 bytes and the record; of 70 bytes read at once the second batch is a part, and the
    third one longer than they are.
    """
    monkeypatch.setattr(segments, "_READ_BYTES", 70)
    values = (b"a", b"b", b"c" * 200, b"d")
    data = b"".join(batch(offset, 1, value) for offset, value in enumerate(values))
    (tmp_path / f"{0:020}.log").write_bytes(data)
    whole, digests = DiskLog(tmp_path), DiskLog(tmp_path, digests=True)
    assert (whole.refresh(), whole.refresh(), digests.refresh()) == (True, False, True)
    assert [it.stored().payload for it in whole.batches] == list(values)
    assert [it.end for it in whole.batches] == [it.end for it in digests.batches]
    assert digests.batches[-1].end == len(data)
    assert {len(it.payload) for it in digests.batches} == {16}
    assert len({it.payload for it in digests.batches}) == len(values)


@pytest.mark.parametrize(("offset", "lost", "left"), [(3, 0, [0, 1]), (2, 2, [0]), (1, 2, [0]), (0, 3, [])])
def test_a_loss_cuts_whole_batches_above_what_is_flushed(
    tmp_path: Path, offset: int, lost: int, left: list[int]
) -> None:
    """Batches 0 and 1 to 2: below offset 2 only the first one lies wholly."""
    file = tmp_path / f"{0:020}.log"
    file.write_bytes(batch(0, 1, b"a") + batch(1, 1, b"b", b"c"))
    file.with_suffix(".index").touch()
    assert truncate(tmp_path, offset) == lost
    assert [it.base_offset for it in batches_of(file.read_bytes(), file)] == left
    assert file.with_suffix(".index").exists() == (lost == 0)


def test_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\na-b 1 7\nt 0 3\n")
    assert recovery_points(tmp_path) == {TopicPartition("a-b", 1): 7, TopicPartition("t", 0): 3}
    assert checkpoint(tmp_path / "none") == []
