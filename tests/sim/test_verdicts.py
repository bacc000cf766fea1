"""`isray check` names the election that has lost records; and it checks the recording of a cluster that still runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.check.check_recording import check
from experiments.check.cluster_recorder import RunningRecording, without
from experiments.check.engine import CheckedEngine
from experiments.check.history import RecordRange
from experiments.check.recording import HISTORY, METADATA, OPEN_MANIFEST, TRACE, Recording, RecordingWriter, expect_new
from experiments.cli.recordings import lost_lines
from experiments.engines.ray.tap import FinalLogs, RecordsRead, SendBegan, SendEnded
from experiments.scenarios.runner import Runner, run_recorded
from experiments.support.errors import InputError
from protocol.client.records import BY_DIGEST
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CLIENT, TopicPartition
from protocol.messages.commands import SentRange
from tests.sim.scenario_helpers import shipped, spec_of

T0 = TopicPartition("t", 0)
BEGAN_MS = 1_000_000


def test_an_unclean_election_that_has_lost_records_is_named(whole: Path) -> None:
    checked = check(Recording(whole))

    [lost] = checked.lost
    assert lost.election is not None
    assert (lost.partition, lost.acks, lost.offsets, lost.is_certain) == (T0, "all", ((3, 6),), True)
    assert (lost.election.kind, lost.election.leader, lost.election.lacked) == ("unclean", 0, 4)
    assert checked.losses.lost_acked == lost.records == 4
    [line] = lost_lines(checked)
    assert line.startswith(
        "4 acknowledged records of t-0 (acks=all, offsets 3 to 6) by the election at 25.021 s: broker 0"
    )
    [found] = checked.document()["lost"]  # type: ignore[misc]
    assert (found["partition"], found["records"], found["election"]["log_end"]) == ("t-0", 4, 3)


def test_an_unclean_recovery_that_has_lost_records_is_named_with_its_strategy_and_what_the_disk_had_lost(
    tmp_path: Path,
) -> None:
    scenario = shipped("recovery-longest-log")
    assert run_recorded(Runner(scenario, CheckedEngine(spec_of(scenario, 0))), tmp_path / "run").passed

    [lost] = check(Recording(tmp_path / "run")).lost

    assert lost.election is not None
    assert (lost.election.kind, lost.election.strategy, lost.election.disk) == ("recovery", "proactive", "records")
    assert (lost.offsets, lost.election.log_end, lost.election.committed) == (((4, 4),), 4, 5)


class Cluster:
    """A cluster whose events and metadata are those of a scenario that loses records, recorded as it runs: times are
    Unix times, and its ten records of acks=all are what one user has written, five as generated records.
    """

    def __init__(self, folder: Path, whole: Path) -> None:
        self.source = Recording(whole)
        self.folder = folder
        self.recorder = RunningRecording(folder, "mine", self.source.spec, BEGAN_MS)

    def run(self) -> None:
        """All of the scenario's events, metadata and records; marked at its end."""
        for event in self.source.events():
            self.recorder.event(replace(event, time_ms=event.time_ms + BEGAN_MS))
        self.recorder.metadata(self.source.records)
        for send, offset, at_ms in self.acknowledged:
            self.send(send, offset, at_ms)
        self.recorder.mark(BEGAN_MS + 60_000)

    @property
    def acknowledged(self) -> Sequence[tuple[int, int, int]]:
        ends = [it for it in self.source.operations() if hasattr(it, "result") and it.result == "acknowledged"]
        return [(it.send, it.offset, it.at_ms) for it in ends]

    def send(self, send: int, offset: int, at_ms: int) -> None:
        time_ms = BEGAN_MS + at_ms
        self.recorder.call(SendBegan(time_ms, send, 1, T0, 1, -1, 500 + send))
        part = SentRange(first=0, count=1, partition=0, error=ErrorCode.NONE, base_offset=offset)
        self.recorder.call(SendEnded(time_ms, send, -1, part))

    def finals(self) -> list[FinalLogs]:
        """The final logs of the scenario, whose records are known by their digests."""
        [final] = self.source.finals()
        logs = {
            broker: [RecordRange(it.offset, it.leader_epoch, BY_DIGEST - 500 - it.send, 0, 1) for it in runs]
            for broker, runs in final.replicas.items()
        }
        assert final.settled is not None
        return [FinalLogs(T0, final.leader, logs, final.start, final.settled)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a scenario that loses records."""
    folder = tmp_path_factory.mktemp("verdicts") / "whole"
    scenario = shipped("unclean-election")
    assert run_recorded(Runner(scenario, CheckedEngine(spec_of(scenario, 0))), folder).passed
    return folder


@pytest.fixture
def cluster(tmp_path: Path, whole: Path) -> Cluster:
    return Cluster(tmp_path / "mine", whole)


def test_a_recording_that_grows_is_checked_up_to_its_last_mark(cluster: Cluster) -> None:
    cluster.run()
    cluster.send(999, 0, 61_000)
    with (cluster.folder / TRACE).open("a", encoding="utf-8") as file:
        file.write('[61000,0,"became_lea')

    recording = Recording(cluster.folder)
    checked = check(recording)

    assert (recording.is_being_written, checked.is_complete, checked.until_ms) == (True, False, 60_000)
    assert checked.violations == []
    assert checked.operations == 2 * len(cluster.acknowledged), "send 999 came after the mark"
    [lost] = checked.lost
    assert lost.election is not None
    assert (lost.offsets, lost.election.leader, lost.election.time_ms) == (((3, 6),), 0, 25_021)
    assert "1970-01-01 00:17:05.021 UTC" in lost_lines(checked)[0], "1,000,000 ms and 25,021 ms after 1970 began"
    cluster.recorder.close()
    assert not Recording(cluster.folder).is_being_written


def test_a_finished_recording_has_the_verdict_of_the_run(cluster: Cluster) -> None:
    cluster.run()
    cluster.recorder.finish(cluster.finals())

    checked = check(Recording(cluster.folder))

    assert not (cluster.folder / OPEN_MANIFEST).exists()
    assert (checked.is_complete, checked.violations, checked.losses.lost_acked) == (True, [], 4)
    assert [lost.offsets for lost in checked.lost] == [((3, 6),)]


def test_what_a_client_leaves_open_has_an_unknown_outcome(cluster: Cluster) -> None:
    part = SentRange(first=1, count=1, partition=0, error=ErrorCode.NONE, base_offset=0)
    cluster.recorder.call(SendBegan(BEGAN_MS, 1, 1, T0, 3, -1, 0))
    cluster.recorder.call(SendEnded(BEGAN_MS, 1, -1, part))
    cluster.recorder.call(SendEnded(BEGAN_MS, 2, -1, part))
    cluster.recorder.call(RecordsRead(BEGAN_MS, FIRST_CLIENT, T0, ((0, 0, 1, 1, 1),), 1))
    cluster.recorder.forget_client()
    cluster.recorder.mark(BEGAN_MS + 2_000)

    shown = [(type(it).__name__, it[:4]) for it in Recording(cluster.folder).operations()]

    assert shown == [
        ("Invoked", (1, 1, ("t", 0), 3)),
        ("Ended", (1, 1, 1, "acknowledged")),
        ("Seen", (FIRST_CLIENT, ("t", 0), ((0, 0, 1, 1, 1),), 1)),
        ("Ended", (1, 0, 1, "unknown")),
        ("Ended", (1, 2, 1, "unknown")),
    ]


def test_parts_of_ranges() -> None:
    assert list(without([range(10)], 3, 2)) == [range(3), range(5, 10)]
    assert list(without([range(3), range(5, 10)], 0, 6)) == [range(6, 10)]


@pytest.mark.parametrize("name", [TRACE, METADATA, HISTORY])
def test_a_file_that_is_shorter_than_its_last_mark_is_damaged(cluster: Cluster, name: str) -> None:
    cluster.run()
    cluster.recorder.close()
    path = cluster.folder / name
    path.write_bytes(path.read_bytes()[:-5])

    with pytest.raises(InputError, match="fewer than"):
        Recording(cluster.folder)


def test_a_folder_that_cannot_take_a_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")

    for folder in (tmp_path, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="--trace"):
            expect_new(folder, "--trace")
    spec = spec_of(shipped("unclean-election"), 0)
    with pytest.raises(InputError, match="--trace"):
        RunningRecording(tmp_path / "file" / "below", "mine", spec, BEGAN_MS)


def test_a_recording_that_has_no_room_to_begin_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordingWriter, "mark", fail)
    with pytest.raises(InputError, match="No space left on device; allowed: a folder that is empty or can be created"):
        RunningRecording(tmp_path / "day", "mine", spec_of(shipped("unclean-election"), 0), BEGAN_MS)
    assert list((tmp_path / "day").iterdir()) == []


def test_an_unclean_election_of_v3_is_read_from_its_store(tmp_path: Path) -> None:
    scenario = shipped("v3-unclean-election")
    assert run_recorded(Runner(scenario, CheckedEngine(spec_of(scenario, 0))), tmp_path / "run").passed

    [lost] = check(Recording(tmp_path / "run")).lost

    assert lost.election is not None
    assert (lost.election.kind, lost.election.leader, lost.offsets) == ("unclean", 3, ((10, 14),))
