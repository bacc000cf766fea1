"""`isray dump-log` on directories of the machine: what it shows of sound, torn and damaged logs, and that it changes
nothing, also while a process has the directory open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.log.dump import FoundBatch, read_segment, segment_files
from actors.log.format import HEADER_BYTES
from actors.storage import DiskStorage, Owner
from protocol.client.records import join
from protocol.contract import Outbox
from protocol.ids import METADATA_LOG
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import AddVoterRecord, Endpoint, RemoveVoterRecord
from protocol.messages.records import PartitionRecord, TopicRecord
from protocol.quorum.context import QuorumConfig
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.state_file import format_voters
from protocol.quorum.voters import ReplicaKey, VoterSet
from tests.unit.actors.disk_helpers import batch, segment_file, written
from tests.unit.experiments.cli.cli_helpers import Commands

ME = ReplicaKey(1000, "uuid-0")
FORMATTED_MS = 1_700_000_000_000
ELECTED_MS, APPENDED_MS = FORMATTED_MS + 1_000, FORMATTED_MS + 2_000
TOPIC = (
    TopicRecord(name="t", topic_id="T"),
    PartitionRecord(topic_id="T", partition_id=0, replicas=(0, 1), isr=(0, 1), leader=0),
)


class Controller:
    """The one voter of a quorum, on a directory that is open."""

    def __init__(self, directory: Path) -> None:
        self.storage = DiskStorage(directory, Owner("c1", ME.id))
        here = (Endpoint(name="CONTROLLER", host="localhost", port=9093),)
        format_voters(self.storage, "c1", ME, VoterSet({ME: here}), FORMATTED_MS)
        self.replica = QuorumReplica(ME.id, QuorumConfig("c1"), self.storage, Random(1), Outbox())
        self.replica.start(ELECTED_MS)
        self.replica.append(APPENDED_MS, TOPIC)
        self.replica.settle(0)


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of the last change of every file, and the time of that of every folder."""
    paths = [directory, *directory.rglob("*")]
    return {str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in paths}


def dump(directory: Path, *more: str) -> tuple[str, ...]:
    return ("dump-log", "--directory", str(directory), *more)


def entries(command: Commands, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """What is shown of the one log."""
    [log] = command.json(*arguments, code=code)["logs"]
    found: list[dict[str, Any]] = log["entries"]
    return found


def faults(found: Sequence[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(entry["fault"], entry["is_damage"]) for entry in found if "fault" in entry]


@pytest.mark.covers("D33", "J14")
def test_control_records_and_others_are_shown_while_the_controller_runs(command: Commands, tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    before = content(tmp_path)
    file = tmp_path / "logs" / METADATA_LOG / f"{0:020d}.log"
    lines = command.ok(*dump(tmp_path, "--cluster-metadata")).splitlines()
    assert lines[:2] == [f"Dumping {file}", "__cluster_metadata-0: log start offset 0, flushed to 4"]
    assert lines[2].startswith("baseOffset: 0 lastOffset: 0 count: 1 partitionLeaderEpoch: 0 ")
    assert lines[2].endswith(" isvalid: true")
    times = [entry["timestamp_ms"] for entry in entries(command, *dump(tmp_path))]
    assert times == [FORMATTED_MS, ELECTED_MS, APPENDED_MS]
    assert f" CreateTime: {FORMATTED_MS} " in lines[2]
    assert [line for line in lines if line.startswith("|")] == [
        "| offset: 0 AddVoter 1000:uuid-0: endpoints {CONTROLLER://localhost:9093}",
        "| offset: 1 LeaderChange 1000:uuid-0: voters {1000:uuid-0}",
        "| offset: 2 Topic t",
        "| offset: 3 Partition t-0: replicas {0 1}, isr {0 1}, leader 0",
    ]
    assert command.ok(*dump(tmp_path)).splitlines() == lines
    assert command.ok("dump-log", "--files", str(file)).splitlines()[2:4] == lines[2:4]
    assert content(tmp_path) == before
    controller.storage.close()
    assert command.ok(*dump(tmp_path)).splitlines() == lines


@pytest.mark.covers("D7", "D33", "J14")
def test_a_snapshot_is_shown_with_its_voters(command: Commands, tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.replica.take_snapshot(4, pack_records(TOPIC))
    change = [AddVoterRecord(voter_id=1001, voter_uuid="u"), RemoveVoterRecord(**_voter())]
    controller.replica.append(APPENDED_MS, change)
    controller.replica.settle(0)
    lines = command.ok(*dump(tmp_path, "--cluster-metadata")).splitlines()
    assert [line for line in lines if line.startswith("|")] == [
        "| offset: 4 AddVoter 1001:u",
        "| offset: 5 RemoveVoter 1001:u",
        "| AddVoter 1000:uuid-0: endpoints {CONTROLLER://localhost:9093}",
        "| Topic t",
        "| Partition t-0: replicas {0 1}, isr {0 1}, leader 0",
    ]
    size = (tmp_path / "checkpoint").stat().st_size
    assert f"snapshot of what is below offset 4: last epoch 1, {size} bytes" in lines
    document = command.json("dump-log", "--files", str(tmp_path / "checkpoint"))
    [snapshot] = document["snapshots"]
    assert (document["logs"], snapshot["end_offset"], snapshot["last_epoch"]) == ([], 4, 1)
    assert [record["fields"]["voter_id"] for record in snapshot["voters"]] == [1000]
    assert [record["type"] for record in snapshot["records"]] == ["TopicRecord", "PartitionRecord"]


def _voter() -> dict[str, Any]:
    return {"voter_id": 1001, "voter_uuid": "u"}


def test_records_in_json_have_their_fields(command: Commands, tmp_path: Path) -> None:
    Controller(tmp_path).storage.close()
    records = [record for entry in entries(command, *dump(tmp_path)) for record in entry["records"]]
    assert [(record["offset"], record["type"], record["is_control"]) for record in records] == [
        (0, "AddVoterRecord", True),
        (1, "LeaderChangeRecord", True),
        (2, "TopicRecord", False),
        (3, "PartitionRecord", False),
    ]
    assert records[1]["fields"]["voters"] == [{"voter_id": 1000, "voter_uuid": "uuid-0"}]
    assert records[3]["fields"]["replicas"] == [0, 1]


def test_a_damaged_snapshot_and_invalid_records_are_reported(command: Commands, tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.storage.open_log(METADATA_LOG).append(batch(4, payload=b"no records", epoch=1))
    assert "its records cannot be read" in command.ok(*dump(tmp_path)), "it is not flushed"
    controller.storage.open_log(METADATA_LOG).flush()
    (tmp_path / "checkpoint").write_bytes(b"no snapshot")
    code, out, _ = command.run(*dump(tmp_path))
    assert code == 1
    assert [line.rpartition(" (")[2] for line in out.splitlines() if line.startswith("!")] == ["damaged)"] * 2
    assert "checkpoint: found" in out
    controller.storage.close()


def test_a_partition_is_named_by_its_topic_or_the_topics_id(command: Commands, tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    for name in ("T/0", "T/1", "U/0"):
        written(controller.storage, flushed=2, unflushed=0, name=name)
    for name in ("t-0", "T-0"):
        [log] = command.json(*dump(tmp_path, "--partition", name))["logs"]
        assert (log["log"], log["partition"], len(log["entries"])) == ("T/0", "t-0", 2)
        assert "records" not in log["entries"][0], "what a topic's records mean is their producers' business"
    document = command.json(*dump(tmp_path))
    assert [log["partition"] for log in document["logs"]] == ["t-0", "t-1", "U-0", "__cluster_metadata-0"]
    refused = command.refused(*dump(tmp_path, "--partition", "t-7"))
    assert "found t-7; allowed: one of t-0, t-1, U-0, __cluster_metadata-0" in refused
    controller.storage.close()


def test_records_of_producers_are_shown_as_by_kafkas_tool(command: Commands, tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path, Owner("c1", 0))
    log, sequenced = storage.open_log("T/0"), {"producer_id": 7, "producer_epoch": 0, "timestamp_ms": 5}
    log.append(replace(batch(0, 2, join([b"one", b"\xff"])), base_sequence=2**31 - 1, **sequenced))
    log.append(batch(2, payload=b"no list of records"))
    log.flush()
    storage.close()
    of_log = ("dump-log", "--files", str(tmp_path / "logs" / "T" / "0" / f"{0:020}.log"))
    metadata = ["offset: 0 CreateTime: 5 keySize: -1 valueSize: 3 sequence: 2147483647 headerKeys: []"]
    metadata += ["offset: 1 CreateTime: 5 keySize: -1 valueSize: 1 sequence: 0 headerKeys: []"]
    metadata += ["offset: 2 CreateTime: -1 keySize: -1 valueSize: 18 sequence: -1 headerKeys: []"]
    values = ["payload: one", "payload: \\xff", "payload: no list of records"]

    def shown(*more: str) -> list[str]:
        return [line.removeprefix("| ") for line in command.ok(*of_log, *more).splitlines() if line.startswith("|")]

    assert shown() == []
    assert shown("--deep-iteration") == metadata
    assert shown("--print-data-log") == [
        f"{described} {value}" for described, value in zip(metadata, values, strict=True)
    ]
    assert shown("--print-data-log", "--skip-record-metadata") == values
    [first, second] = command.json(*of_log, "--print-data-log")["logs"][0]["entries"]
    assert [record["value"] for record in (*first["records"], *second["records"])] == [
        "one",
        "\\xff",
        "no list of records",
    ]
    assert "found " in command.refused(*of_log, "--cluster-metadata-decoder")


def test_the_id_selects_one_of_two_topics_with_the_same_name(command: Commands, tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.replica.append(APPENDED_MS, [TopicRecord(name="t", topic_id="T2")])
    controller.replica.settle(0)
    for name in ("T/0", "T2/0"):
        written(controller.storage, flushed=1, unflushed=0, name=name)
    assert "found t-0; allowed: one of T-0, T2-0" in command.refused(*dump(tmp_path, "--partition", "t-0"))
    assert command.json(*dump(tmp_path, "--partition", "T2-0"))["logs"][0]["log"] == "T2/0"
    controller.storage.close()


def test_all_segments_of_a_log_are_shown_and_one_alone(command: Commands, tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    log = written(storage, flushed=3, unflushed=0).open_log("t/0")
    log.roll()
    log.append(batch(3, records=4, epoch=2))
    log.flush()
    found = entries(command, *dump(tmp_path))
    shown = [(entry["base_offset"], entry["last_offset"], entry["leader_epoch"]) for entry in found]
    assert shown == [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 6, 2)]
    assert [entry["file"] for entry in found] == [str(segment_file(tmp_path))] * 3 + [str(segment_file(tmp_path, 3))]
    alone = entries(command, "dump-log", "--files", str(segment_file(tmp_path, 3)))
    assert [entry["base_offset"] for entry in alone] == [3]
    storage.close()


@pytest.mark.parametrize("torn", [1, HEADER_BYTES - 1, HEADER_BYTES + 1, HEADER_BYTES + 4])
def test_a_torn_end_is_reported_and_is_not_damage(command: Commands, tmp_path: Path, torn: int) -> None:
    written(DiskStorage(tmp_path), flushed=2, unflushed=2).close()
    file = segment_file(tmp_path)
    size = file.stat().st_size // 4
    file.write_bytes(file.read_bytes()[: 3 * size + torn])
    before = content(tmp_path)
    found = entries(command, *dump(tmp_path))
    assert [entry.get("base_offset") for entry in found] == [0, 1, 2, None]
    why = "the file ends within a " + ("header" if torn < HEADER_BYTES else "batch")
    assert (found[3]["position"], found[3]["size"], found[3]["end_offset"]) == (3 * size, torn, 3)
    assert faults(found) == [(why, False)]
    last_line = command.ok(*dump(tmp_path)).splitlines()[-1]
    position = f"{torn} bytes at position {3 * size}, offset 3"
    assert last_line == f"! {position}: {why} (not flushed, the next start drops it)"
    assert content(tmp_path) == before


@pytest.mark.parametrize(("place", "is_damage"), [(1, True), (3, False)])
def test_a_batch_with_a_wrong_checksum_is_reported_and_the_next_is_printed(
    command: Commands, tmp_path: Path, place: int, is_damage: bool
) -> None:
    written(DiskStorage(tmp_path), flushed=3, unflushed=2).close()
    file = segment_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[(place + 1) * len(data) // 5 - 1] ^= 1
    file.write_bytes(data)
    found = entries(command, *dump(tmp_path), code=int(is_damage))
    assert [(entry["base_offset"], entry["crc_ok"]) for entry in found] == [(n, n != place) for n in range(5)]
    assert faults(found) == [("the batch fails its checksum", is_damage)]


def test_missing_and_misplaced_records_are_reported(command: Commands, tmp_path: Path) -> None:
    written(DiskStorage(tmp_path), flushed=4, unflushed=0).close()
    file = segment_file(tmp_path)
    data = file.read_bytes()
    size = len(data) // 4
    file.write_bytes(data[: 2 * size])
    assert faults(entries(command, *dump(tmp_path), code=1)) == [("ends at offset 2, flushed were 4", True)]
    file.write_bytes(data[:size] + data[2 * size :])
    assert faults(entries(command, *dump(tmp_path), code=1)) == [("found offset 2, expected 1", True)]
    file.write_bytes(data[:size] + b"\0" * size + data[2 * size :])
    found = entries(command, *dump(tmp_path), code=1)
    assert faults(found) == [("the header fails its checksum", True), ("ends at offset 1, flushed were 4", True)]
    file.write_bytes(data)
    (file.parent / "mark").write_bytes(b"\1" * 1024)
    [(why, is_damage), *_] = faults(entries(command, *dump(tmp_path), code=1))
    assert ("the mark of what was flushed is damaged" in why, is_damage) == (True, True)


@given(sizes=st.lists(st.integers(0, 60), max_size=12), rolls=st.sets(st.integers(0, 11)))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_appended_records_are_printed(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], rolls: set[int]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    storage = DiskStorage(directory)
    log = storage.open_log("t/0")
    for number, size in enumerate(sizes):
        log.append(batch(log.end_offset, records=1 + size % 3, payload=b"x" * size, epoch=number // 4))
        if number in rolls:
            log.roll()
    found = [item for path in segment_files(directory / "logs/t/0") for item in read_segment(path)]
    assert [item.batch for item in found if isinstance(item, FoundBatch)] == list(log.read(0, 2**30))
    assert all(isinstance(item, FoundBatch) and item.is_intact and not item.fault for item in found)
    assert sum(item.size for item in found) == sum(segment.size_bytes for segment in log.segments())
    storage.close()


def test_wrong_options_are_exit_code_2(command: Commands, tmp_path: Path) -> None:
    written(DiskStorage(tmp_path / "node"), flushed=1, unflushed=0).close()
    (tmp_path / "empty").mkdir()
    node = str(tmp_path / "node")
    for arguments in (
        [],
        ["--directory", node, "--files", "x.log"],
        ["--directory", str(tmp_path / "no")],
        ["--directory", str(tmp_path / "empty")],
        ["--directory", node, "--cluster-metadata"],
        ["--directory", node, "--partition", "t-0", "--cluster-metadata"],
        ["--directory", node, "--partition", "t"],
        ["--files", str(segment_file(tmp_path / "node")), "--partition", "t-0"],
        ["--files", str(tmp_path / "no.log")],
        ["--files", str(tmp_path / "node" / "meta.json")],
    ):
        assert "; allowed: " in command.refused("dump-log", *arguments), arguments
