"""Each invalid request or directory gets an error of its type, and changes nothing in logs, files or state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from actors.log.format import crc32c
from actors.storage import LOCK_FILE, META_FILE, DiskStorage, Owner
from experiments.engines.sim.disk import SimStorage
from protocol.errors import ErrorCode, ForeignDirectoryError, StorageError
from protocol.log.checksum import checksum_of
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.data import (
    ConsumeRequest,
    ConsumeResponse,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from protocol.messages.records import ConfigRecord
from protocol.nodes.broker import BrokerNode
from tests.unit.actors.disk_helpers import content, written
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, BrokerBench, config_of, topic_records

OWNER = Owner("cluster-1", 0)
E = ErrorCode
HOUR_MS = 3_600_000
FAR = 2**63 - 1
NOW_MS = 1_000


def sealed(**fields: object) -> RecordBatch:
    stands: dict[str, object] = {"record_count": 1, "payload": b"x", "timestamp_ms": NOW_MS}
    stands |= {"producer_id": 5, "producer_epoch": 0, "base_sequence": 3}
    made = RecordBatch(**(stands | fields))
    return replace(made, crc=checksum_of(made, crc32c))


class DiskBench(BrokerBench):
    """A broker on a real directory with three flushed and committed records of `t-0`; `leader` leads it."""

    def __init__(self, directory: Path, leader: int = 0) -> None:
        super().__init__(config=config_of())
        self.disk = DiskStorage(directory, OWNER)
        self.storage = cast(SimStorage, self.disk)
        self.node = BrokerNode(0, [CONTROLLER], self.config, self.disk, Random(1), checksum=crc32c)
        self.run(*topic_records(), ConfigRecord(topic_id="T", name="max.message.bytes", value="100"))
        self.now_ms = NOW_MS
        for sequence in range(3):
            self.produce(batch=sealed(base_sequence=sequence)).fetch(1, sequence + 1).fetch(2, sequence + 1)
        assert self.high_watermark == 3
        if leader:
            self.publish(*topic_records(leader=leader, leader_epoch=1)[2:])
        self.node.flush_all()

    @property
    def config(self) -> Any:
        return config_of()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "broker-0"


def produce(acks: int = -1, partition: int = 0, topic: str = "t", **batch: object) -> ProduceRequest:
    made = sealed(**batch)
    return ProduceRequest(correlation_id=7, topic=topic, partition=partition, acks=acks, batch=made)


def wrong_crc() -> ProduceRequest:
    request = produce()
    return replace(request, batch=replace(request.batch, payload=b"y"))


PRODUCES: dict[str, tuple[ProduceRequest, ErrorCode]] = {
    "too large": (produce(payload=b"x" * 101), E.MESSAGE_TOO_LARGE),
    "a wrong checksum": (wrong_crc(), E.CORRUPT_MESSAGE),
    "no records": (produce(record_count=0), E.INVALID_RECORD),
    "a negative number of records": (produce(record_count=-1), E.INVALID_RECORD),
    "a negative sequence": (produce(base_sequence=-1), E.INVALID_RECORD),
    "a sequence far below": (produce(base_sequence=-(2**31)), E.INVALID_RECORD),
    "a negative producer epoch": (produce(producer_epoch=-1), E.INVALID_RECORD),
    "a negative producer id": (produce(producer_id=-2), E.INVALID_RECORD),
    "a sequence without a producer": (produce(producer_id=-1, producer_epoch=-1), E.INVALID_RECORD),
    "a gap in the sequence": (produce(base_sequence=4), E.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "a sequence from long ago": (produce(base_sequence=0, record_count=2), E.DUPLICATE_SEQUENCE_NUMBER),
    "an unknown producer in the middle": (produce(producer_id=6), E.UNKNOWN_PRODUCER_ID),
    "the middle of a newer epoch": (produce(producer_epoch=1), E.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "acks 2": (produce(acks=2), E.INVALID_REQUIRED_ACKS),
    "acks -2": (produce(acks=-2), E.INVALID_REQUIRED_ACKS),
    "an unknown topic": (produce(topic="no"), E.UNKNOWN_TOPIC_OR_PARTITION),
    "a topic that is a path": (produce(topic="../t"), E.UNKNOWN_TOPIC_OR_PARTITION),
    "an unknown partition": (produce(partition=1), E.UNKNOWN_TOPIC_OR_PARTITION),
    "a negative partition": (produce(partition=-1), E.UNKNOWN_TOPIC_OR_PARTITION),
    "a time far ahead": (produce(timestamp_ms=NOW_MS + HOUR_MS + 1), E.INVALID_TIMESTAMP),
    "the end of time": (produce(timestamp_ms=FAR), E.INVALID_TIMESTAMP),
    "a time before all": (produce(timestamp_ms=-2), E.INVALID_TIMESTAMP),
}


@pytest.mark.covers("G32")
@pytest.mark.parametrize(("request_", "error"), PRODUCES.values(), ids=PRODUCES)
def test_invalid_produce_requests_are_refused(directory: Path, request_: ProduceRequest, error: ErrorCode) -> None:
    bench = DiskBench(directory)
    before = content(directory)
    answer = bench.receive(CLIENT, request_).sent(ProduceResponse)
    assert (answer.error, answer.base_offset, answer.correlation_id) == (error, -1, 7)
    if error is not E.INVALID_REQUIRED_ACKS:
        assert bench.receive(CLIENT, replace(request_, acks=0)).sends(ProduceResponse) == []
    assert content(directory) == before
    check_still_serves(bench, directory)


@pytest.mark.parametrize("timestamp_ms", [-1, 0, NOW_MS + HOUR_MS])
def test_unusual_but_valid_timestamps_are_accepted(directory: Path, timestamp_ms: int) -> None:
    answer = DiskBench(directory).receive(CLIENT, produce(acks=1, timestamp_ms=timestamp_ms)).sent(ProduceResponse)
    assert (answer.error, answer.base_offset) == (E.NONE, 3)


def test_the_lowest_producer_id_is_0(directory: Path) -> None:
    request = produce(acks=1, producer_id=0, producer_epoch=0, base_sequence=0)
    answer = DiskBench(directory).receive(CLIENT, request).sent(ProduceResponse)
    assert (answer.error, answer.base_offset) == (E.NONE, 3)


def check_still_serves(bench: DiskBench, directory: Path) -> None:
    """Asserts that the next record is appended, and that no record is lost, in memory and after a restart."""
    answer = bench.receive(CLIENT, produce(acks=1)).sent(ProduceResponse)
    assert (answer.error, answer.base_offset) == (E.NONE, 3)
    bench.disk.close()
    again = DiskStorage(directory, OWNER)
    assert [batch.base_offset for batch in again.open_log("T/0").read(0, 2**20)] == [0, 1, 2, 3]
    assert again.dropped == []
    again.close()


def consume(**fields: object) -> ConsumeRequest:
    stands: dict[str, object] = {"correlation_id": 7, "topic": "t", "partition": 0, "fetch_offset": 0}
    return ConsumeRequest(**(stands | fields))


def list_offsets(**fields: object) -> ListOffsetsRequest:
    stands: dict[str, object] = {"correlation_id": 7, "topic": "t", "partition": 0, "timestamp": -1}
    return ListOffsetsRequest(**(stands | fields))


READS: dict[str, tuple[Message, ErrorCode]] = {
    "a negative offset": (consume(fetch_offset=-1), E.OFFSET_OUT_OF_RANGE),
    "an offset far below": (consume(fetch_offset=-FAR), E.OFFSET_OUT_OF_RANGE),
    "an offset behind the end": (consume(fetch_offset=4), E.OFFSET_OUT_OF_RANGE),
    "an offset far behind the end": (consume(fetch_offset=FAR, max_wait_ms=100), E.OFFSET_OUT_OF_RANGE),
    "negative bytes": (consume(max_bytes=-1), E.INVALID_FETCH_SIZE),
    "an unknown partition": (consume(partition=9), E.UNKNOWN_TOPIC_OR_PARTITION),
    "an unknown topic": (consume(topic="no"), E.UNKNOWN_TOPIC_OR_PARTITION),
    "the offset of an unknown partition": (list_offsets(partition=-3), E.UNKNOWN_TOPIC_OR_PARTITION),
    "the offset of an unknown topic": (list_offsets(topic=""), E.UNKNOWN_TOPIC_OR_PARTITION),
    "the offset of a time before all": (list_offsets(timestamp=-FAR), E.INVALID_REQUEST),
}


@pytest.mark.parametrize(("request_", "error"), READS.values(), ids=READS)
def test_invalid_consumer_requests_are_refused(directory: Path, request_: Message, error: ErrorCode) -> None:
    bench = DiskBench(directory)
    before = content(directory)
    bench.receive(CLIENT, request_)
    [(_, answer)] = [*bench.sends(ConsumeResponse), *bench.sends(ListOffsetsResponse)]
    assert (answer.error, answer.correlation_id) == (error, 7)
    assert getattr(answer, "batches", ()) == ()
    assert content(directory) == before
    check_still_serves(bench, directory)


def fetch_partition(**fields: object) -> FetchPartition:
    stands: dict[str, object] = {"topic_id": "T", "partition_id": 0, "current_leader_epoch": 0, "fetch_offset": 3}
    return FetchPartition(**(stands | {"last_fetched_epoch": 0} | fields))


FETCHES: dict[str, tuple[FetchPartition, ErrorCode]] = {
    "an unknown topic": (fetch_partition(topic_id="no"), E.UNKNOWN_TOPIC_OR_PARTITION),
    "an unknown partition": (fetch_partition(partition_id=-1), E.UNKNOWN_TOPIC_OR_PARTITION),
    "a negative offset": (fetch_partition(fetch_offset=-1, last_fetched_epoch=-1), E.OFFSET_OUT_OF_RANGE),
    "an offset far behind the end": (fetch_partition(fetch_offset=FAR, last_fetched_epoch=-1), E.OFFSET_OUT_OF_RANGE),
    "an older leader epoch": (fetch_partition(current_leader_epoch=-1), E.FENCED_LEADER_EPOCH),
    "a newer leader epoch": (fetch_partition(current_leader_epoch=9), E.UNKNOWN_LEADER_EPOCH),
    "a log that is too long": (fetch_partition(fetch_offset=FAR), E.NONE),
    "a log from the future": (fetch_partition(fetch_offset=5, last_fetched_epoch=7), E.NONE),
}


@pytest.mark.parametrize(("wrong", "error"), FETCHES.values(), ids=FETCHES)
def test_follower_fetches_with_one_changed_field(directory: Path, wrong: FetchPartition, error: ErrorCode) -> None:
    bench = DiskBench(directory)
    before = content(directory)
    bench.receive(1, FetchRequest(replica_id=1, replica_epoch=1, partitions=(wrong,), session=2))
    [result] = bench.sent(FetchResponse).partitions
    assert (result.error, result.batches) == (error, ())
    assert (result.diverging_epoch is not None) == (error is E.NONE)
    assert content(directory) == before
    check_still_serves(bench, directory)


def fetched(**fields: object) -> FetchPartitionResult:
    stands: dict[str, object] = {"topic_id": "T", "partition_id": 0, "fetch_offset": 3, "leader_epoch": 1}
    return FetchPartitionResult(**(stands | {"last_fetched_epoch": 0, "high_watermark": 3} | fields))


DAMAGED = replace(wrong_crc().batch, base_offset=3, leader_epoch=1)
ANSWERS: dict[str, FetchPartitionResult] = {
    "of another offset": fetched(fetch_offset=FAR, batches=(sealed(base_offset=3),)),
    "of another leader epoch": fetched(leader_epoch=0, batches=(sealed(base_offset=3),)),
    "of another record before it": fetched(last_fetched_epoch=1, batches=(sealed(base_offset=3),)),
    "of an unknown partition": fetched(partition_id=8, batches=(sealed(base_offset=3),)),
    "with a damaged batch": fetched(batches=(DAMAGED,)),
    "an error": fetched(error=E.UNKNOWN_SERVER_ERROR, batches=(sealed(base_offset=3),)),
    "a high watermark beyond all": fetched(high_watermark=FAR),
    "a high watermark below all": fetched(high_watermark=-FAR),
    "a point to truncate to beyond all": fetched(diverging_epoch=EpochEndOffset(leader_epoch=0, end_offset=FAR)),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_follower_ignores_invalid_fetch_results(directory: Path, answer: FetchPartitionResult) -> None:
    bench = DiskBench(directory, leader=1)
    before = content(directory)
    bench.receive(1, FetchResponse(partitions=(answer,)))
    assert (bench.replica.log.end_offset, bench.high_watermark) == (3, 3)
    assert content(directory) == before
    good = replace(sealed(base_sequence=3), base_offset=3, leader_epoch=1)
    bench.receive(1, FetchResponse(partitions=(fetched(batches=(good,)),)))
    assert bench.replica.log.end_offset == 4


# -- directories -------------------------------------------------------------------------------------------------------


def change_meta(**fields: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / META_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def a_file_for(*names: str) -> Callable[[Path], None]:
    """Puts a file where a directory is expected, or a directory where a file is expected."""

    def change(directory: Path) -> None:
        path = directory.joinpath(*names)
        if path.is_dir():
            path.rename(directory.parent / "moved")
            path.write_bytes(b"a file")
        else:
            path.unlink()
            path.mkdir()

    return change


DIRECTORIES: dict[str, tuple[Callable[[Path], None], type[StorageError], str]] = {
    "another cluster": (change_meta(cluster_id="cluster-2"), ForeignDirectoryError, "cluster 'cluster-2', node 0"),
    "another node": (change_meta(node_id=8), ForeignDirectoryError, "cluster 'cluster-1', node 8"),
    "a newer format": (change_meta(format_version=2), ForeignDirectoryError, "found 2; allowed: 1"),
    "a meta.json that is cut": (
        lambda directory: (directory / META_FILE).write_bytes((directory / META_FILE).read_bytes()[:-5]) and None,
        ForeignDirectoryError,
        "does not name the directory's owner",
    ),
    "an empty meta.json": (
        lambda directory: (directory / META_FILE).write_bytes(b"") and None,
        ForeignDirectoryError,
        "does not name the directory's owner",
    ),
    "a meta.json of noise": (
        lambda directory: (directory / META_FILE).write_bytes(b"\xff\xfe\x00") and None,
        ForeignDirectoryError,
        "does not name the directory's owner",
    ),
    "a meta.json that is a directory": (a_file_for(META_FILE), StorageError, "Is a directory"),
    "a file for the node": (a_file_for(), ForeignDirectoryError, "is no directory"),
    "a file for the logs": (a_file_for("logs"), StorageError, "Not a directory"),
    "a file for a topic": (a_file_for("logs", "t"), StorageError, "Not a directory"),
    "a file for a log": (a_file_for("logs", "t", "0"), StorageError, "Not a directory"),
    "a directory for a segment": (a_file_for("logs", "t", "0", f"{0:020d}.log"), StorageError, "Is a directory"),
    "a directory for the mark": (a_file_for("logs", "t", "0", "mark"), StorageError, "Is a directory"),
    "a directory for the epochs": (
        a_file_for("logs", "t", "0", "leader-epoch-checkpoint"),
        StorageError,
        "Is a directory",
    ),
}


@pytest.mark.parametrize(("change", "kind", "what"), DIRECTORIES.values(), ids=DIRECTORIES)
def test_an_invalid_directory_is_refused(
    directory: Path, change: Callable[[Path], None], kind: type[StorageError], what: str
) -> None:
    written(DiskStorage(directory, OWNER), flushed=2, unflushed=1).close()
    change(directory)
    before = content(directory.parent)
    with pytest.raises(kind) as caught:
        DiskStorage(directory, OWNER).open_log("t/0")
    assert what in str(caught.value)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    after = content(directory.parent)
    lock = f"{directory.name}/{LOCK_FILE}"
    assert {name: data for name, data in after.items() if name != lock} == {
        name: data for name, data in before.items() if name != lock
    }


def test_foreign_files_are_kept(directory: Path) -> None:
    written(DiskStorage(directory, OWNER), flushed=2, unflushed=1).close()
    for name in ("notes.log", "notes.snapshot", "README"):
        (directory / "logs" / "t" / "0" / name).write_bytes(b"mine")
    storage = DiskStorage(directory, OWNER)
    log = storage.open_log("t/0")
    assert (log.end_offset, storage.dropped) == (3, [])
    log.reset(7)
    assert (directory / "logs" / "t" / "0" / "notes.log").read_bytes() == b"mine"
