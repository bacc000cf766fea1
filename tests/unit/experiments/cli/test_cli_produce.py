"""`isray produce` against a simulated cluster."""

from __future__ import annotations

from experiments.cli.records import summary
from protocol.errors import ErrorCode
from protocol.messages.commands import SendOutcome, SentRange
from tests.unit.experiments.cli.cli_helpers import MakeBench


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
