"""`isray up --detach`, every tool, a killed broker and controller, `isray down`: each command in its own process."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.ray.cluster_helpers import FAST_OPTIONS
from tests.ray.command_helpers import Shell
from tests.strays import leaves_within, marked


@pytest.mark.covers("J8", "J10", "J12", "J16", "J17")
def test_cluster_is_started_administered_damaged_and_stopped(shell: Shell) -> None:
    up = shell.json("up", "--detach", "--controllers", "3", *FAST_OPTIONS, "--racks", "a,b,c")
    address = up["bootstrap_server"]
    assert address.startswith("127.0.0.1:")
    controllers = ["controller-1000", "controller-1001", "controller-1002"]
    assert up["nodes"] == [*controllers, "urm", "broker-0", "broker-1", "broker-2", "client-3000"]
    code, _, err = shell.run("up", "--detach")
    assert (code, f"which process {up['pid']} runs" in err) == (2, True)

    administer(shell, address)
    change_the_voters(shell)
    kill_the_active_controller(shell)
    kill_a_broker(shell)
    bring_nodes_back(shell)
    pause_stop_and_replace(shell)
    find_the_metrics(shell, up["metrics"])

    assert shell.ok("down") == "default stopped\n"
    assert all(leaves_within(pid, 20) for pid in marked(str(shell.folder), "TMPDIR"))
    assert [path for path in shell.folder.rglob("*") if not path.is_dir()] == []
    assert [path.name for path in shell.folder.iterdir()] == ["isray"]
    code, out, err = shell.run("topics", "--list")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err == "isray: no cluster runs here; start one with isray up\n"


def test_a_cluster_with_a_store_is_started_administered_damaged_and_stopped(shell: Shell) -> None:
    up = shell.json("up", "--detach", "--generation", "v3")
    assert up["nodes"] == ["store", "broker-0", "broker-1", "broker-2", "client-3000"]
    assert shell.ok("topics", "--create", "--topic", "t", "--replica-assignment", "0:1:2") == "Created topic t.\n"
    assert shell.ok("produce", "--topic", "t", "--num-records", "10") == "records: 10 acknowledged\n"
    os.kill(up["pids"]["broker-0"], signal.SIGKILL)
    assert shell.ok("produce", "--topic", "t", "--num-records", "10") == "records: 10 acknowledged\n"
    status = shell.json("status", code=1)
    states = {row["node"]: (row["running"], row["state"], row["leads"]) for row in status["brokers"]}
    assert states["broker-0"] == (False, "not registered", 0)
    assert sorted(states[f"broker-{broker}"] for broker in (1, 2)) == [(True, "unfenced", 0), (True, "unfenced", 1)]
    assert status["controller"] in (1, 2)
    code, _, err = shell.run("metadata-quorum", "describe", "--status")
    assert (code, err.count("\n"), "UNSUPPORTED_VERSION" in err) == (1, 1, True)
    assert shell.ok("down") == "default stopped\n"


def administer(shell: Shell, address: str) -> None:
    """Runs each tool once, with and without `--bootstrap-server`, and with wrong input."""
    create = ("topics", "--create", "--topic", "t", "--replica-assignment", "0:1:2")
    assert shell.ok(*create, "--config", "min.insync.replicas=3", "--bootstrap-server", address) == "Created topic t.\n"
    assert shell.ok("produce", "--topic", "t", "--num-records", "10") == "records: 10 acknowledged\n"
    assert any(in_sync(shell) == [0, 1, 2] for _ in range(20))
    one = ("leader-election", "--election-type", "preferred", "--topic", "t", "--partition")
    assert "already elected for partitions t-0" in shell.ok(*one, "0")
    code, _, err = shell.run(*one, "1")
    assert (code, "UNKNOWN_TOPIC_OR_PARTITION" in err) == (1, True)
    moves = shell.folder / "moves.json"
    moves.write_text(json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": [0, 2, 1]}]}))
    shell.ok("reassign-partitions", "--execute", "--reassignment-json-file", str(moves))
    moves.unlink()
    assert shell.ok("configs", "--alter", "--topic", "t", "--add-config", "flush.messages=7").startswith("Completed")
    assert [item["name"] for item in shell.json("features", "describe")] == [
        "metadata.version",
        "unclean.recovery.enabled",
    ]
    code, _, err = shell.run("acls", "--list")
    assert (code, "SECURITY_DISABLED" in err) == (1, True)
    code, _, err = shell.run("topics", "--list", "--bootstrap-server", "127.0.0.1:1")
    assert (code, len(err.splitlines())) == (2, 1)


def roles(status: Any) -> dict[str, tuple[bool, str]]:
    return {row["node"]: (row["running"], row["role"]) for row in status["controllers"]}


def change_the_voters(shell: Shell) -> None:
    """Removes a follower from the voters and adds it again."""
    status = shell.json("status")
    assert status["voters"] == [1000, 1001, 1002]
    follower = next(node for node in status["voters"] if node != status["controller"])
    expected = dict.fromkeys(roles(status), (True, "follower")) | {
        f"controller-{status['controller']}": (True, "leader")
    }
    assert roles(status) == expected
    shell.ok("metadata-quorum", "remove-controller", "--controller-id", str(follower))
    quorum = shell.json("metadata-quorum", "describe", "--status")
    assert follower not in [voter["id"] for voter in quorum["current_voters"]]
    assert follower in [observer["id"] for observer in quorum["current_observers"]]
    shell.ok("metadata-quorum", "add-controller", "--controller-id", str(follower))
    replicas = shell.json("metadata-quorum", "describe", "--replication")["replicas"]
    assert sorted(item["status"] for item in replicas) == ["Follower"] * 2 + ["Leader"] + ["Observer"] * 3
    assert all(0 <= time.time() * 1000 - item["last_fetch_ms"] < 60_000 for item in replicas)


def kill_the_active_controller(shell: Shell) -> None:
    """Sends SIGKILL to the active controller; a topic can be created at once, by its successor."""
    before = shell.json("status")
    first = before["controller"]
    os.kill(before["pids"][f"controller-{first}"], signal.SIGKILL)
    shell.ok("topics", "--create", "--topic", "u", "--partitions", "2", "--replication-factor", "3")
    status = shell.json("status")
    assert status["controller"] != first
    assert roles(status)[f"controller-{status['controller']}"] == (True, "leader")
    assert roles(status)[f"controller-{first}"] == (False, "follower")
    assert shell.json("metadata-quorum", "describe", "--status")["leader_id"] == status["controller"]
    assert len(shell.json("topics", "--describe")) == 2


def kill_a_broker(shell: Shell) -> None:
    """Sends SIGKILL to a broker: `status` reports it, and `topics` shows it in the ELR, since min ISR is 3."""
    status = shell.json("status")
    assert [(broker["node"], broker["rack"], broker["running"]) for broker in status["brokers"]] == [
        ("broker-0", "a", True),
        ("broker-1", "b", True),
        ("broker-2", "c", True),
    ]
    pid = status["pids"]["broker-0"]
    os.kill(pid, signal.SIGKILL)
    assert leaves_within(pid, 20)
    assert status_after_death(shell, 0)["brokers"][0]["running"] is False
    assert "\tElr: 0\tLastKnownElr: \t" in shell.ok("topics", "--describe", "--under-min-isr-partitions")


def bring_nodes_back(shell: Shell) -> None:
    """Starts the killed nodes again; the broker joins the ISR."""
    states = {row["node"]: row["state"] for row in shell.json("node", "list")}
    ended = sorted(node for node, state in states.items() if state == "ended")
    assert ended == ["broker-0", next(node for node in ended if node.startswith("controller-"))]
    for node in ended:
        pid = shell.json("node", "start", node)["pid"]
        assert os.path.exists(f"/proc/{pid}")
    assert shell.is_healthy()
    assert any(in_sync(shell) == [0, 1, 2] for _ in range(20))


def pause_stop_and_replace(shell: Shell) -> None:
    """Pauses, resumes, kills and restarts a broker; stops another one and gives it an empty disk."""
    pid = shell.json("node", "pause", "1")["pid"]
    assert process_state(pid) == "T"
    refused = "isray: NODE: found broker-1, which is paused; allowed: a node that is running\n"
    assert shell.run("node", "pause", "broker-1") == (2, "", refused)
    assert shell.json("node", "kill", "broker-1", "--lose", "unflushed")["state"] == "ended"
    assert leaves_within(pid, 20)
    assert shell.ok("node", "start", "broker-1").startswith("broker-1 started, process ")
    pid = shell.json("node", "pause", "broker-1")["pid"]
    assert (shell.json("node", "resume", "broker-1")["state"], process_state(pid) != "T") == ("running", True)

    directory = Path(shell.json("node", "stop", "broker-2")["directory"])
    left = directory / "left"
    left.touch()
    assert shell.ok("node", "replace-disk", "broker-2") == "broker-2 will start with an empty disk\n"
    shell.ok("node", "start", "broker-2")
    assert shell.is_healthy()
    assert directory.exists()
    assert not left.exists()
    code, out, err = shell.run("node", "kill", "broker-7")
    assert (code, out, len(err.splitlines()), "broker-7; allowed: controller-1000, " in err) == (2, "", 1, True)


def find_the_metrics(shell: Shell, ports: list[str]) -> None:
    """The port that `up` has printed serves the nodes under the name of the cluster."""
    [port] = ports
    assert port.startswith("127.0.0.1:")

    def nodes_served() -> set[str]:
        with urllib.request.urlopen(f"http://{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith("ray_isray_node_running{") and 'cluster="default"' in line]
        return {line.partition('node="')[2].partition('"')[0] for line in found}

    nodes = {row["node"] for row in shell.json("node", "list")}
    assert any(nodes_served() == nodes for _ in range(20) if shell.ok("node", "list"))


def in_sync(shell: Shell) -> list[int]:
    """The ISR of the topic's partition, sorted."""
    [topic] = shell.json("topics", "--describe", "--topic", "t")
    return sorted(topic["partitions"][0]["isr_nodes"])


def process_state(pid: int) -> str:
    """The kernel's letter for the state of a process; T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def status_after_death(shell: Shell, broker: int) -> Any:
    """Repeats `status` until the controller has fenced the broker and the supervisor has recorded its end, in either
    order. Returns the last document.
    """
    for _ in range(20):
        found = shell.json("status", code=1)
        recorded = any(f"broker-{broker}" in event for event in found["events"])
        if recorded and found["brokers"][broker]["state"] == "fenced":
            return found
    raise AssertionError(f"broker {broker} is not fenced, or its end is not recorded: {found}")
