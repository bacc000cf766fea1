"""`isray kafka diff` with rows that were recorded before, in the place of a JDK and Maven Central."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.cli import kafka_diff
from experiments.conformance.recorder import record
from experiments.scenarios.loader import load_scenario
from tests.unit.experiments.cli.cli_helpers import Commands

DATA = Path(__file__).parents[3] / "data"
FILES = {
    "decisions": "partition_change",
    "partition": "controller_traces",
    "reassignments": "controller_traces",
    "cluster": "cluster_traces",
}
ROWS = 40


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors of `tests/data`, of which those of 4.1.2 and 4.4.0 answer the same questions."""

    def recorded(release: str, kind: str, seed: int, rows: int, jars: Sequence[Path], tools: Path) -> bytes:
        content = gzip.decompress((DATA / f"{FILES[kind]}_kafka_{release}.jsonl.gz").read_bytes())
        return b"\n".join(content.splitlines()[: ROWS + 1])

    monkeypatch.setattr(record, "recorded", recorded)
    monkeypatch.setattr(kafka_diff, "jdk", lambda *_: Path())
    monkeypatch.setattr(kafka_diff, "recorder_jars", lambda _: [])


def test_what_changed_between_4_1_2_and_4_4_0(command: Commands, tmp_path: Path) -> None:
    """The change of 4.3.0 and the rule that began with it; seed 21 shows the change."""
    line = ["kafka", "diff", "4.1.2", "4.4.0", "--seed", "21", "--draw", "1", "--trials", "2", "--out", str(tmp_path)]
    code, out, _ = command.run(*line, "--json")
    found = json.loads(out)
    assert (code, found["unexplained"]) == (0, 0)
    assert {row["kind"]: (row["rows"], row["differing"]) for row in found["rows"]}["decisions"] == (ROWS, 0)
    assert set(found["rules"]) == {"added-replicas-complete", "withdrawn-replica-awaited"}
    [scenario] = found["scenarios"]
    assert (scenario["rule"], scenario["seed"]) == ("added-replicas-complete", 21)
    assert [step.kind for step in load_scenario(Path(scenario["scenario"])).steps] == ["crash", "reassign"]
    assert [answer["metric"] for answer in found["study"]] == ["loss_rate", "offline_fraction", "reject_fraction"]
    code, out, _ = command.run(*line)
    assert code == 0
    assert "rule added-replicas-complete: since 4.3.0: " in out
    assert "    crash: {broker: 3}\n" in out
    assert out.endswith("0 unexplained\n")


@pytest.mark.parametrize(
    ("releases", "line"),
    [
        (["4.4.0", "4.1.2"], "NEW: found 4.1.2; allowed: a release after 4.4.0"),
        (["4.1", "4.4.0"], "OLD: found '4.1'; allowed: an exact release from 4.0.0 to 4.4.x"),
        (["4.1.2", "5.0.0"], "NEW: found '5.0.0'"),
    ],
)
def test_wrong_releases_are_one_line(command: Commands, releases: list[str], line: str) -> None:
    code, _, err = command.run("kafka", "diff", *releases)
    assert code == 2
    assert line in err
