"""A cluster of one's own that is recorded: its verdict while it runs and at its end, the logs of its nodes, and the
same disks under a second cluster.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.ray.cluster_helpers import FAST_OPTIONS
from tests.ray.command_helpers import Shell

UNCLEAN = ("--generation", "kip-497", "--config", "unclean.leader.election.enable=true")
READ = ("console-consumer", "--topic", "t", "--from-beginning", "--max-messages", "6")


def test_a_recorded_cluster_says_which_election_has_lost_which_records_and_its_disks_start_again(
    shell: Shell, tmp_path: Path
) -> None:
    """Broker 1 is down while two records are acknowledged by broker 0 alone, whose disk is then lost."""
    trace = tmp_path / "trace"
    shell.json("up", "--detach", "--brokers", "2", *UNCLEAN, *FAST_OPTIONS, "--trace", str(trace))
    shell.ok("topics", "--create", "--topic", "t", "--replica-assignment", "0:1")
    shell.ok("produce", "--topic", "t", "--num-records", "5")
    shell.ok("node", "kill", "broker-1")
    await_partition(shell, leader=0, isr=[0])
    assert shell.run("console-producer", "--topic", "t", text="a\nb\n")[0] == 0
    shell.ok("node", "kill", "broker-0", "--lose", "all")
    shell.ok("node", "start", "broker-1")
    await_partition(shell, leader=1, isr=[1])
    shell.ok("node", "start", "broker-0")
    await_partition(shell, leader=1, isr=[1, 0])
    assert shell.run("console-producer", "--topic", "t", text="c\n")[0] == 0

    checked = json.loads(shell.run("check", str(trace), "--json")[1])
    assert (checked["is_complete"], checked["is_being_written"]) == (False, True)
    check_nodes_log(shell)

    down = shell.json("down", "--keep")
    checked = shell.json("check", str(trace))
    [lost] = checked["lost"]
    assert (checked["is_complete"], checked["violations"]) == (True, [])
    assert (lost["partition"], lost["offsets"], lost["records"]) == ("t-0", [[5, 6]], 2)
    assert (lost["election"]["leader"], lost["election"]["kind"], lost["election"]["log_end"]) == (1, "unclean", 5)

    check_kept_disks(shell, down["disks"])


def check_nodes_log(shell: Shell) -> None:
    """Ray's log of an actor, which its dashboard shows, has what the node has done."""
    files = shell.folder.glob("isray-*/session_latest/logs/worker-*.err")
    lines = "".join(path.read_text(encoding="utf-8") for path in files)
    assert "INFO broker-1: leads t-0 in epoch" in lines
    assert "WARNING controller-1000: ALERT: t-0 may have lost acknowledged records" in lines


def check_kept_disks(shell: Shell, disks: str) -> None:
    """A second cluster on the disks has the records; another number of brokers is refused."""
    code, _, err = shell.run("up", "--detach", "--from", disks, "--brokers", "3")
    assert (code, err) == (2, f"isray: --brokers: found 3; allowed: 2, as the disks in {disks} have\n")
    shell.json("up", "--detach", "--from", "default", "--name", "again")
    values = [record["value"] for record in shell.json(*READ)]
    assert values[-1] == "c"
    shell.ok("down", "--name", "again")
    assert not Path(disks).exists()


def await_partition(shell: Shell, leader: int, isr: list[int]) -> None:
    for _ in range(60):
        [found] = shell.json("topics", "--describe", "--topic", "t")[0]["partitions"]
        if (found["leader_id"], found["isr_nodes"]) == (leader, isr):
            return
    raise AssertionError(found)
