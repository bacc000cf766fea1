"""`isray compare` with a real Kafka: what explains each difference from the simulator, and between two releases."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from experiments.cli.main import application
from experiments.support.releases.installed import install

STEPS = """
name: moved-while-one-is-down
cluster: {brokers: 4, generation: kip-966-elr}
topics:
  - {name: t, assignments: [[0, 3, 2]], config: {min.insync.replicas: 2}}
steps:
  - crash: {broker: 3}
  - reassign: {topic: t, replicas: [1, 3, 2]}
"""


def compared(scenario: str, engines: str, *releases: str) -> dict[str, Any]:
    """The document of the one scenario; nothing in it is unexplained."""
    for release in releases:
        install(release, os.environ, "release")
    line = ["compare", scenario, "--engines", engines, "--kafka", ",".join(releases), "--json"]
    done = CliRunner().invoke(application(), line)
    assert done.exit_code == 0, done.output
    [found] = json.loads(done.stdout)["scenarios"]
    return dict(found)


def test_an_unclean_election_departs_by_the_rule_of_leaders_only() -> None:
    found = compared("unclean-election", "sim,kafka", "4.4.0")
    assert [it["departures"] for it in found["departed"]] == [["recovered-with-next-change"]]
    assert found["first_difference"]["field"] == "steps[9].verdict"


def test_two_releases_differ_on_real_brokers_as_in_the_simulator(tmp_path: Path) -> None:
    """The smallest scenario of `added-replicas-complete`: both releases have the course of their simulator."""
    path = tmp_path / "moved.yaml"
    path.write_text(STEPS, encoding="utf-8")
    found = compared(str(path), "kafka", "4.1.2", "4.4.0")
    assert found["worlds"] == ["sim 4.1.2", "sim 4.4.0", "kafka 4.1.2", "kafka 4.4.0"]
    assert found["departed"] == []
    assert [it["changes"] for it in found["between_releases"]] == [["added-replicas-complete"]]
