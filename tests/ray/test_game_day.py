"""A game day on one cluster of `isray up`: links, disks, a measured producer, a scenario and a soak, each by its
command; the cluster goes on meanwhile and is afterwards as it was.
"""

from __future__ import annotations

import json

from tests.ray.cluster_helpers import FAST_OPTIONS
from tests.ray.command_helpers import Shell

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


def test_a_game_day_breaks_a_running_cluster_and_leaves_it_as_it_was(shell: Shell) -> None:
    shell.ok("up", "--detach", *FAST_OPTIONS)
    links_and_disks(shell)
    measured_producer(shell)
    scenario(shell)
    soak(shell)
    assert shell.is_healthy()
    assert shell.ok("net", "list") == "all links are whole\n"
    assert shell.ok("topics", "--list").split() == ["measured", "practised"]
    shell.ok("down")


def refused(shell: Shell, *arguments: str) -> str:
    """The line that refuses a command."""
    code, out, err = shell.run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def links_and_disks(shell: Shell) -> None:
    assert shell.ok("net", "cut", "0", "1") == "broker-0 to broker-1 is cut\nbroker-1 to broker-0 is cut\n"
    assert "which is cut" in refused(shell, "net", "cut", "0", "1")
    assert "broker-9" in refused(shell, "net", "cut", "0", "9")
    assert "running Ray head" in refused(shell, "run", "min-isr-change", "--address", "127.0.0.1:1")
    assert "disturbed link" in refused(shell, "run", write(shell))
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


def write(shell: Shell) -> str:
    path = shell.folder / "practice.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


def scenario(shell: Shell) -> None:
    result = shell.json("run", write(shell))
    assert [(step["kind"], step["ok"], step["detail"]) for step in result["steps"] if not step["ok"]] == []
    assert (result["passed"], result["lost_acked"]) == (True, 0)
    assert "which exists" in refused(shell, "run", write(shell))


def soak(shell: Shell) -> None:
    """One kill under load: nothing is lost, and the page shows the fault."""
    folder, page = shell.folder / "soak", shell.folder / "day.html"
    assert "a fault of nodes" in refused(shell, "soak", "--name", "default", "--faults", "kill-raylet")
    options = ("--minutes", "0", "--faults", "kill-leader", "--partitions", "1", "--rate", "100")
    result = shell.json("soak", "--name", "default", *options, "--out", str(folder), "--html", str(page))
    assert (result["findings"], result["lost_acked"], result["cluster"]) == ([], 0, "default")
    assert result["faults"]["kill-leader"]["done"] == 1
    assert result["records"]["acknowledged"] > 0
    assert "kill-leader: broker " in page.read_text(encoding="utf-8")
    assert json.loads((folder / "report.json").read_text(encoding="utf-8")) == result
