"""`isray what-if` on the shipped cluster of 12 brokers in three zones."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.experiments.cli.cli_helpers import Commands

DATA = Path(__file__).parents[3] / "data"
DESCRIBE, RACKS = DATA / "cluster_of_12_brokers.txt", DATA / "racks_of_12_brokers.csv"


def test_the_command_answers_for_the_shipped_cluster(command: Commands, tmp_path: Path) -> None:
    """`audit` was placed by hand with two replicas of each partition in rack b; all else is rack-aware."""
    page = tmp_path / "page.html"
    line = ["what-if", "--describe", str(DESCRIBE), "--racks", str(RACKS)]
    code, out, _ = command.run(*line, "--html", str(page))
    assert code == 0
    assert "No single broker stops a topic." in out
    assert "Rack b stops 1 of 4 topics (audit)." in out
    assert "Rack b stops 1 of 4 topics (audit)." in page.read_text(encoding="utf-8")
    assert command.run(*line, "--fail", "any 1", "--require-writable")[0] == 0
    code, out, _ = command.run(*line, "--fail", "rack:b", "--require-writable", "--json")
    [answer] = json.loads(out)
    assert (code, answer["failed"], answer["order"]) == (1, [2, 5, 8, 11], None)
    stopped = [each for each in answer["topics"] if each["writable"] < each["partitions"]]
    assert stopped == [
        {"topic": "audit", "partitions": 2, "writable": 0, "leaderless": 0, "may_lose": 0, "page_caches_lost": None}
    ]


def test_a_generation_without_a_metadata_log_is_refused(command: Commands) -> None:
    code, _, err = command.run("what-if", "--describe", str(DESCRIBE), "--generation", "v3")
    assert code == 2
    assert "--generation: found v3; allowed: one of kip-497, kip-966-elr, kip-966" in err
