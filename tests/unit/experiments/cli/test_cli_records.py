"""`isray produce`, `isray console-producer` and `isray console-consumer` against a simulated cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from experiments.cli.game_day import running_partitions
from experiments.cli.records import BATCH_BYTES, BATCH_LINES, InputLines, places_of, summary
from experiments.engines.admin_client import AdminError
from experiments.support.errors import InputError
from protocol.errors import ErrorCode
from protocol.ids import TopicPartition
from protocol.messages.commands import ROUND_ROBIN, SendOutcome, SentRange
from tests.unit.experiments.cli.cli_helpers import CliBench, MakeBench

if TYPE_CHECKING:
    from experiments.engines.ray.attached import AttachedEngine

READ = ("console-consumer", "--topic", "t", "--from-beginning")


@pytest.fixture
def topic(make_bench: MakeBench) -> CliBench:
    bench = make_bench(brokers=3)
    bench.ok("topics", "--create", "--topic", "t", "--partitions", "2", "--replication-factor", "3")
    return bench


class Given:
    """Gives the command a standard input."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path, self._monkeypatch = folder / "input", monkeypatch

    def __call__(self, content: bytes) -> None:
        self._path.write_bytes(content)
        self._monkeypatch.setattr(sys, "stdin", self._path.open())


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(tmp_path, monkeypatch)


def test_lines_are_read_back_in_order(topic: CliBench, typed: Given) -> None:
    lines = [f"line {number}" for number in range(450)]
    typed("\n".join(lines).encode())
    assert topic.json("console-producer", "--topic", "t") == {"acknowledged": 450, "failed": 0, "unknown": 0}
    code, out, err = topic.run(*READ, "--max-messages", "450")
    assert (code, err) == (0, "Processed a total of 450 messages\n")
    assert sorted(out.splitlines()) == sorted(lines), "from both partitions"
    there = ("console-consumer", "--topic", "t", "--partition", "1", "--offset")
    assert topic.ok(*there, "198", "--max-messages", "2").splitlines() == lines[398:400]
    shown = topic.ok(*there, "199", "--max-messages", "1", "--property", "print.offset=true")
    assert shown == f"Offset:199\t{lines[399]}\n"
    [record] = topic.json(*there, "earliest", "--max-messages", "1")
    assert (record["partition"], record["offset"], record["value"]) == (1, 0, lines[200])
    wrong = topic.run("console-producer", "--topic", "t", "--partition", "2")
    assert wrong == (2, "", "isray: --partition: found 2; allowed: 0 to 1\n")


def test_a_consumer_begins_behind_the_last_record_and_ends_after_its_timeout(topic: CliBench, typed: Given) -> None:
    typed(b"\xff\n\n")
    topic.ok("console-producer", "--topic", "t", "--partition", "0", "--acks", "1")
    code, out, err = topic.run("console-consumer", "--topic", "t", "--timeout-ms", "20")
    assert (code, out, err) == (0, "", "Processed a total of 0 messages\n")
    assert topic.ok(*READ, "--max-messages", "2") == "\\xff\n\n"


def test_a_partition_without_a_leader_is_waited_for_while_others_are_read(make_bench: MakeBench, typed: Given) -> None:
    bench = make_bench(brokers=2)
    bench.create("t", "0,1")
    typed(b"a\nb\n")
    bench.ok("console-producer", "--topic", "t", "--partition", "1")
    bench.kill(0)
    warning = "t-0: LEADER_NOT_AVAILABLE; waiting for a leader\n"
    assert bench.run(*READ, "--timeout-ms", "20") == (1, "a\nb\n", f"{warning}Processed a total of 2 messages\n")
    code, out, _ = bench.run(*READ, "--timeout-ms", "20", "--json")
    assert (code, [record["value"] for record in json.loads(out)]) == (1, ["a", "b"])
    assert bench.run(*READ, "--max-messages", "2")[:2] == (0, "a\nb\n"), "it has what it was asked for"
    bench.start(0)
    assert bench.run(*READ, "--timeout-ms", "20")[:2] == (0, "a\nb\n")


def test_records_that_are_not_acknowledged_are_exit_code_1(make_bench: MakeBench, typed: Given) -> None:
    bench = make_bench(brokers=1, delivery_timeout_ms=2_000, request_timeout_ms=1_000)
    create = ("topics", "--create", "--topic", "t", "--replication-factor", "1", "--config", "max.message.bytes=20")
    bench.ok(*create)
    typed(b"much longer than twenty bytes\n")
    code, out, err = bench.run("console-producer", "--topic", "t")
    assert (code, out, err) == (1, "", "Error while producing: 1 records to t-0: MESSAGE_TOO_LARGE\n")


@contextmanager
def piped(while_idle: Callable[[], None] = lambda: None) -> Iterator[tuple[InputLines, int]]:
    """The lines of a pipe, and the end to write to, which stays open."""
    source, sink = os.pipe()
    try:
        yield InputLines(source, while_idle), sink
    finally:
        os.close(source)
        os.close(sink)


def test_a_line_is_sent_while_the_pipe_stays_open() -> None:
    with piped() as (lines, sink):
        os.write(sink, b"first\r\nbeg")
        assert lines.take(BATCH_LINES, 1) == [b"first"], "a line that is not complete waits"
        os.write(sink, b"un\n\nlast")
        assert lines.take(BATCH_LINES, 1) == [b"begun", b""]


def test_a_batch_takes_what_has_come_up_to_its_limits() -> None:
    with piped() as (lines, sink):
        os.write(sink, b"x\n" * 5)
        assert [lines.take(3, 60_000), lines.take(3, 0)] == [[b"x"] * 3, [b"x"] * 2], "a full batch does not linger"
        long = b"y" * (BATCH_BYTES // 2 + 1)
        os.write(sink, b"\n".join([long, long, b"z" * (BATCH_BYTES + 1), b"end\n"]))
        taken = [lines.take(BATCH_LINES, 0) for _ in range(4)]
        assert [len(line) for [line] in taken] == [len(long), len(long), BATCH_BYTES + 1, 3]


def test_a_cluster_that_is_lost_while_no_line_comes_ends_the_wait() -> None:
    def lose() -> None:
        raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, "lost")

    with piped(lose) as (lines, sink):
        os.write(sink, b"first\n")
        assert lines.take(BATCH_LINES, 1) == [b"first"]
        with pytest.raises(AdminError, match="BROKER_NOT_AVAILABLE: lost"):
            lines.take(BATCH_LINES, 1)


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"a\nb")
    with (tmp_path / "input").open("rb") as stream:
        lines = InputLines(stream.fileno(), lambda: None)
        assert [lines.take(BATCH_LINES, 60_000), lines.take(BATCH_LINES, 60_000)] == [[b"a", b"b"], []]


@pytest.mark.parametrize("command", ["console-producer", "console-consumer"])
def test_a_topic_that_does_not_exist_is_exit_code_1(topic: CliBench, command: str) -> None:
    assert "UNKNOWN_TOPIC_OR_PARTITION" in topic.fails(command, "--topic", "absent")


def test_records_are_acknowledged(make_bench: MakeBench) -> None:
    bench = make_bench(brokers=3)
    bench.ok("topics", "--create", "--topic", "t", "--partitions", "2", "--replication-factor", "3")
    assert bench.ok("produce", "--topic", "t", "--num-records", "10") == "records: 10 acknowledged\n"
    found = bench.json("produce", "--topic", "t", "--partition", "1", "--num-records", "3", "--acks", "1")
    assert found["error"] == "NONE"
    assert [(item["partition"], item["count"]) for item in found["ranges"]] == [(1, 3)]


def test_refused_records_are_exit_code_1(make_bench: MakeBench) -> None:
    bench = make_bench(brokers=3, delivery_timeout_ms=2_000, request_timeout_ms=1_000)
    code, out, _ = bench.run("produce", "--topic", "absent")
    assert code == 1
    assert out.startswith("records: 0 acknowledged, 1 ")
    assert out.endswith("(REQUEST_TIMED_OUT)\n")


def test_summary_counts_every_kind() -> None:
    ranges = (
        SentRange(first=0, count=5, partition=0, error=ErrorCode.NONE, base_offset=0),
        SentRange(first=5, count=2, partition=0, error=ErrorCode.REQUEST_TIMED_OUT, unknown=True),
        SentRange(first=7, count=1, partition=0, error=ErrorCode.NOT_ENOUGH_REPLICAS),
    )
    outcome = SendOutcome(command_id=1, error=ErrorCode.REQUEST_TIMED_OUT, ranges=ranges)
    assert summary(outcome) == "records: 5 acknowledged, 1 failed, 2 unknown (REQUEST_TIMED_OUT)"


@pytest.mark.parametrize(
    ("topic", "partition", "found"),
    [
        ("t", ROUND_ROBIN, [0, 1]),
        ("t", 1, [1]),
        ("t", 2, "--partition: found 2; allowed: 0 to 1"),
        ("u", 0, "--topic: found u; allowed: a topic of the cluster: t"),
    ],
)
def test_a_measured_producer_writes_to_partitions_that_exist(
    topic: str, partition: int, found: list[int] | str
) -> None:
    known = [TopicPartition("t", 0), TopicPartition("t", 1)]
    if isinstance(found, str):
        with pytest.raises(InputError) as caught:
            places_of(known, topic, partition)
        assert str(caught.value) == found
    else:
        assert places_of(known, topic, partition) == [TopicPartition(topic, number) for number in found]


def test_topics_that_are_not_known_are_not_called_missing() -> None:
    """No controller is active within the time that is waited for one."""

    class Headless:
        def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
            return condition()

        def published(self) -> None:
            return None

    with pytest.raises(InputError) as caught:
        running_partitions(cast("AttachedEngine", Headless()))
    assert "a cluster without an active controller" in str(caught.value)
