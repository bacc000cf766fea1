"""`isray console-producer` and `isray console-consumer` on a cluster of processes: when lines are sent, the times of
records, and a partition without a leader.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

from tests.ray.cluster_helpers import FAST_OPTIONS
from tests.ray.command_helpers import Shell

READ = ("console-consumer", "--topic", "t", "--from-beginning")
HOUR_MS = 3_600_000


@contextmanager
def producing(shell: Shell, *more: str) -> Iterator[Popen[str]]:
    """A producer whose standard input stays open for the block."""
    process = shell.begin("console-producer", "--topic", "t", *more)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        assert process.wait(240) == 0


def test_lines_are_sent_while_the_input_is_open_with_the_time_of_the_wall_clock(shell: Shell) -> None:
    up = shell.json("up", "--detach", "--brokers", "2", *FAST_OPTIONS)
    shell.ok("topics", "--create", "--topic", "t", "--replica-assignment", "0,1")
    before_ms = time.time_ns() // 1_000_000
    with producing(shell, "--partition", "1") as producer:
        assert producer.stdin is not None
        producer.stdin.write("typed\n")
        producer.stdin.flush()
        [record] = shell.json(*READ, "--max-messages", "1")
    assert record["value"] == "typed"
    assert before_ms - HOUR_MS < record["createtime"] < before_ms + HOUR_MS, "Unix time, not time since the start"
    check_times_on_disks(shell, record["createtime"])
    check_reads_without_a_leader(shell, up["pids"]["broker-0"])


def check_times_on_disks(shell: Shell, now_ms: int) -> None:
    """Every batch of the partition and of the metadata log has the time at which it was written."""
    directories = {row["node"]: row["directory"] for row in shell.json("node", "list")}
    for node, log in (("broker-1", ("--partition", "t-1")), ("controller-1000", ("--cluster-metadata",))):
        [found] = shell.json("dump-log", "--directory", directories[node], *log)["logs"]
        times = [batch["timestamp_ms"] for batch in found["entries"]]
        assert times
        assert all(now_ms - HOUR_MS < time_ms < now_ms + HOUR_MS for time_ms in times), (node, times)


def check_reads_without_a_leader(shell: Shell, leader: int) -> None:
    """The consumer warns of partition 0, reads partition 1, and ends with exit code 1 at its timeout."""
    os.kill(leader, signal.SIGKILL)
    for _ in range(40):
        if shell.json("topics", "--describe", "--topic", "t")[0]["partitions"][0]["leader_id"] == -1:
            break
    code, out, err = shell.run(*READ, "--timeout-ms", "2000", "--json")
    assert (code, [record["value"] for record in json.loads(out)]) == (1, ["typed"])
    assert err.splitlines() == [
        "t-0: LEADER_NOT_AVAILABLE; waiting for a leader",
        "Processed a total of 1 messages",
    ]
