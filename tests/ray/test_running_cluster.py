"""What users do on one cluster of `isray up`, which goes on meanwhile and is afterwards as it was.

- `isray console`: the cluster is steered from a page in a browser, while another operator acts on it as well.
- `isray console-producer` and `isray console-consumer`: when lines are sent, the times of records, and a partition
  without a leader.
- A game day: links, disks, a measured producer, a scenario and a soak, each by its command.

The tests share the cluster, since to start one takes longer than most of them; each has topics of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.browser.conftest import browser, chromium, errors
from tests.browser.pages import choose_node, notice, press, wait_for
from tests.ray.cluster_helpers import FAST_OPTIONS
from tests.ray.command_helpers import Shell, begun_shell

WITHIN_S = 60
READ = ("console-consumer", "--topic", "lines", "--from-beginning")
HOUR_MS = 3_600_000
__all__ = ["browser", "chromium"]


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """A shell with a cluster of three brokers."""
    with begun_shell() as made:
        made.ok("up", "--detach", *FAST_OPTIONS)
        yield made


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_running_cluster_is_steered_and_followed(shell: Shell, browser: Chrome) -> None:
    created = ("topics", "--create", "--topic", "t", "--replica-assignment", "0:1:2")
    shell.ok(*created, "--config", "min.insync.replicas=2")
    console = shell.begin("console", output=PIPE)
    try:
        assert console.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", console.stdout.readline())
        assert found is not None
        browser.get(found[0])
        check_steering(shell, browser)
    finally:
        console.send_signal(signal.SIGINT)
        code = console.wait(WITHIN_S)
    assert code == 0
    wait_for(browser, "document.getElementById('connection').classList.contains('lost')", WITHIN_S)
    browser.get("about:blank")
    assert all("ERR_" in message for message in errors(browser))
    assert all(row["state"] == "running" for row in shell.json("node", "list")), "the cluster goes on"


def check_steering(shell: Shell, browser: Chrome) -> None:
    """Writes, a kill that is explained, a refusal, another operator's start, and a client in the background."""
    wait_for(browser, "state.partitions[0]?.isr.length === 3 && state.partitions[0].min_isr === 2", WITHIN_S)
    check_what_it_cannot_do(browser)
    press(browser, "w")
    wait_for(browser, "state.partitions[0].acknowledged === 5 && state.partitions[0].lost_acked === 0", WITHIN_S)
    choose_node(browser, "broker-2")
    press(browser, "k")
    wait_for(browser, "state.partitions[0].isr.join() === '0,1'", WITHIN_S)
    why = "/^Broker 2 leaves the ISR of t-0, since .*; ISR is \\{0 1\\}$/"  # its session and its lag end after 2 s both
    wait_for(browser, f"state.sentences.some(({{ text }}) => {why}.test(text))", WITHIN_S)
    press(browser, "k")
    wait_for(browser, "state.notice !== ''", WITHIN_S)
    assert notice(browser) == "Refused: broker-2 does not run"
    shell.ok("node", "start", "broker-2")
    wait_for(browser, "state.partitions[0].isr.length === 3", WITHIN_S)
    press(browser, "l")
    wait_for(browser, "state.partitions[0].acknowledged > 5", WITHIN_S)


def check_what_it_cannot_do(browser: Chrome) -> None:
    """Buttons of virtual time are disabled and say why, and so do their keys."""
    step = browser.find_element(By.CSS_SELECTOR, "[data-do=step]")
    assert step.get_attribute("aria-disabled") == "true"
    assert (step.get_attribute("title") or "").startswith("A running cluster has its own time")
    press(browser, ".")
    assert notice(browser).startswith("Refused: A running cluster has its own time")


# -- lines in and out --------------------------------------------------------------------------------------------------


@contextmanager
def producing(shell: Shell, *more: str) -> Iterator[Popen[str]]:
    """A producer whose standard input stays open for the block."""
    process = shell.begin("console-producer", "--topic", "lines", *more)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        assert process.wait(240) == 0


def test_lines_are_sent_while_the_input_is_open_with_the_time_of_the_wall_clock(shell: Shell) -> None:
    shell.ok("topics", "--create", "--topic", "lines", "--replica-assignment", "0,1")
    before_ms = time.time_ns() // 1_000_000
    with producing(shell, "--partition", "1") as producer:
        assert producer.stdin is not None
        producer.stdin.write("typed\n")
        producer.stdin.flush()
        [record] = shell.json(*READ, "--max-messages", "1")
    assert record["value"] == "typed"
    assert before_ms - HOUR_MS < record["createtime"] < before_ms + HOUR_MS, "Unix time, not time since the start"
    check_times_on_disks(shell, record["createtime"])
    check_reads_without_a_leader(shell)
    shell.ok("node", "start", "broker-0")


def check_times_on_disks(shell: Shell, now_ms: int) -> None:
    """Every batch of the partition and of the metadata log has the time at which it was written."""
    directories = {row["node"]: row["directory"] for row in shell.json("node", "list")}
    for node, log in (("broker-1", ("--partition", "lines-1")), ("controller-1000", ("--cluster-metadata",))):
        [found] = shell.json("dump-log", "--directory", directories[node], *log)["logs"]
        times = [batch["timestamp_ms"] for batch in found["entries"]]
        assert times
        assert all(now_ms - HOUR_MS < time_ms < now_ms + HOUR_MS for time_ms in times), (node, times)


def check_reads_without_a_leader(shell: Shell) -> None:
    """The consumer warns of partition 0, reads partition 1, and ends with exit code 1 at its timeout."""
    os.kill(shell.json("status")["pids"]["broker-0"], signal.SIGKILL)
    for _ in range(40):
        if shell.json("topics", "--describe", "--topic", "lines")[0]["partitions"][0]["leader_id"] == -1:
            break
    code, out, err = shell.run(*READ, "--timeout-ms", "2000", "--json")
    assert (code, [record["value"] for record in json.loads(out)]) == (1, ["typed"])
    assert err.splitlines() == [
        "lines-0: LEADER_NOT_AVAILABLE; waiting for a leader",
        "Processed a total of 1 messages",
    ]


# -- a game day --------------------------------------------------------------------------------------------------------


SCENARIO = """
name: practice
cluster: {brokers: 3, config: {broker.session.timeout.ms: 2000, broker.heartbeat.interval.ms: 300}}
topics: [{name: practised, assignments: [[0, 1, 2]], config: {min.insync.replicas: 2}}]
steps:
  - produce: {topic: practised, records: 3}
  - crash: {broker: 0, lose: unflushed}
  - await: {topic: practised, leader: 1, isr: [1, 2]}
  - start: {broker: 0}
  - await: {topic: practised, isr: [0, 1, 2]}
  - expect: {topic: practised, visible: 3, lost_acked: 0}
"""


def test_a_game_day_breaks_a_running_cluster_and_leaves_it_as_it_was(shell: Shell, tmp_path: Path) -> None:
    assert shell.is_healthy()
    before = shell.ok("topics", "--list").split()
    practice = tmp_path / "practice.yaml"
    practice.write_text(SCENARIO, encoding="utf-8")
    links_and_disks(shell, str(practice))
    measured_producer(shell)
    scenario(shell, str(practice))
    soak(shell, tmp_path)
    assert shell.is_healthy()
    assert shell.ok("net", "list") == "all links are whole\n"
    assert sorted(shell.ok("topics", "--list").split()) == sorted([*before, "measured", "practised"])


def refused(shell: Shell, *arguments: str) -> str:
    """The line that refuses a command."""
    code, out, err = shell.run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def links_and_disks(shell: Shell, practice: str) -> None:
    assert shell.ok("net", "cut", "0", "1") == "broker-0 to broker-1 is cut\nbroker-1 to broker-0 is cut\n"
    assert "which is cut" in refused(shell, "net", "cut", "0", "1")
    assert "broker-9" in refused(shell, "net", "cut", "0", "9")
    assert "running Ray head" in refused(shell, "run", "min-isr-change", "--address", "127.0.0.1:1")
    assert "disturbed link" in refused(shell, "run", practice)
    assert shell.ok("net", "heal", "--all") == "all links are whole\n"
    assert shell.ok("node", "fill-disk", "2", "--room", "9000000") == "broker-2 has a full disk\n"
    assert shell.ok("node", "free-disk", "2") == "broker-2 has room on its disk\n"
    assert "a node that is ended" in refused(shell, "node", "start", "2")


def measured_producer(shell: Shell) -> None:
    shell.ok("topics", "--create", "--topic", "measured", "--replica-assignment", "0:1:2")
    unknown = ("produce", "--topic", "n", "--throughput", "9", "--duration", "1s")
    assert "a topic of the cluster" in refused(shell, *unknown)
    found = shell.json("produce", "--topic", "measured", "--throughput", "400", "--num-records", "200")
    assert (found["records"], found["acknowledged"], found["failed"], found["unknown"]) == (200, 200, 0, 0)
    assert 0 <= found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    assert found["seconds"] >= 199 / 400
    assert 0 < found["longest_gap_ms"] <= 1000 * found["seconds"]


def scenario(shell: Shell, practice: str) -> None:
    result = shell.json("run", practice)
    assert [(step["kind"], step["ok"], step["detail"]) for step in result["steps"] if not step["ok"]] == []
    assert (result["passed"], result["lost_acked"]) == (True, 0)
    assert "which exists" in refused(shell, "run", practice)


def soak(shell: Shell, place: Path) -> None:
    """One kill under load: nothing is lost, and the page shows the fault."""
    folder, page = place / "soak", place / "day.html"
    assert "a fault of nodes" in refused(shell, "soak", "--name", "default", "--faults", "kill-raylet")
    options = ("--minutes", "0", "--faults", "kill-leader", "--partitions", "1", "--rate", "100")
    result = shell.json("soak", "--name", "default", *options, "--out", str(folder), "--html", str(page))
    assert (result["findings"], result["lost_acked"], result["cluster"]) == ([], 0, "default")
    assert result["faults"]["kill-leader"]["done"] == 1
    assert result["records"]["acknowledged"] > 0
    assert "kill-leader: broker " in page.read_text(encoding="utf-8")
    assert json.loads((folder / "report.json").read_text(encoding="utf-8")) == result
