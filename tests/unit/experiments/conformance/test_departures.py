"""Departures: recorded rows that only Kafka's rules explain, and no row that differs in anything else."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.conformance import decisions, traces
from experiments.conformance.decisions import PartitionChangeRow, replay_file
from experiments.conformance.departures import DEPARTURES, explanation
from experiments.conformance.traces import ControllerTraceRow
from experiments.support.errors import InputError
from tests.unit.experiments.conformance.test_conformance import run

DATA = Path(__file__).parents[3] / "data"
SHOWN = {
    "controller_traces_kafka_4.0.0": (26, {0: 10, 1: 9, 2: 10, 3: 0}),
    "controller_traces_kafka_4.1.0": (16, {0: 8, 1: 8, 2: 0, 3: 0}),
    "partition_change_kafka_4.0.0": (38, {0: 0, 1: 8, 2: 20, 3: 20}),
    "partition_change_kafka_4.1.0": (18, {0: 0, 1: 8, 2: 0, 3: 10}),
}
"""Rows of each file, and how many of them show each of `DEPARTURES`."""
LINES = {name: gzip.decompress((DATA / f"{name}.jsonl.gz").read_bytes()).splitlines() for name in SHOWN}


def _explained(vector: dict[str, Any]) -> tuple[str, ...]:
    """The departures that explain a row; it must differ."""
    text = json.dumps(vector)
    if "steps" in vector:
        trace = ControllerTraceRow.model_validate_json(text)
        assert traces.differences(trace)
        found = explanation(partial(traces.differences, trace))
    else:
        change = PartitionChangeRow.model_validate_json(text)
        assert decisions.differences(change)
        found = explanation(partial(decisions.differences, change))
    return tuple(departure.name for departure in found)


def _rows(kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name, lines in LINES.items() if name.startswith(kind) for line in lines]


@pytest.mark.covers("E24", "E34", "N33")
@pytest.mark.parametrize("name", SHOWN)
def test_recorded_rows_of_kafka_releases_depart_by_declared_rules_only(name: str) -> None:
    result = replay_file(DATA / f"{name}.jsonl.gz")
    rows, shown = SHOWN[name]
    assert (result.passed, result.failed, len(result.departed)) == (0, 0, rows)
    found = {
        index: sum(departure in row.departures for row in result.departed) for index, departure in enumerate(DEPARTURES)
    }
    assert found == shown
    assert all(row.differences for row in result.departed)


def test_every_declared_departure_is_shown_by_a_recorded_row() -> None:
    assert all(any(shown[index] for _, shown in SHOWN.values()) for index in range(len(DEPARTURES)))


@pytest.mark.parametrize("seed", range(12))
def test_a_departure_with_another_answer_anywhere_fails(seed: int) -> None:
    """Also in steps after the first difference: under Kafka's rule the comparison goes on."""
    random = Random(seed)
    row = random.choice(_rows("controller_traces"))
    assert _explained(row)
    step = random.choice([step for step in row["steps"] if step["partition"] is not None])
    step["partition"]["leader_epoch"] += 1
    assert _explained(row) == ()


@pytest.mark.parametrize("seed", range(12))
def test_a_departed_decision_with_another_answer_fails(seed: int) -> None:
    random = Random(seed)
    row = random.choice(_rows("partition_change"))
    assert _explained(row)
    field = random.choice(["leader_epoch", "partition_epoch", "leader"])
    row["after"][field] += 7
    assert _explained(row) == ()


def test_a_row_is_explained_by_the_smallest_set() -> None:
    row = next(row for row in _rows("partition_change") if len(_explained(row)) == 2)
    change = PartitionChangeRow.model_validate_json(json.dumps(row))
    for name in _explained(row):
        assert decisions.differences(change, frozenset({name}))


def test_departures_are_printed_apart_with_reason_and_story() -> None:
    path = DATA / "controller_traces_kafka_4.1.0.jsonl.gz"
    result = run(path, "--departures", "returning-replica-eligible")
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[-1]) == (0, "0 passed, 0 failed, 16 departures")
    assert lines[0] == "departure returning-replica-eligible: 8 rows"
    assert [line.split(":")[0].strip() for line in lines[1:5]] == ["Kafka", "reason", "story", "run"]
    assert sum(line.startswith(f"{path}: row ") for line in lines) == 5


def test_a_failing_row_beside_departures_fails_the_file(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in LINES["partition_change_kafka_4.1.0"][:3]]
    rows[1]["after"]["leader_epoch"] += 1
    path = tmp_path / "vectors"
    path.write_text("\n".join(map(json.dumps, rows)))
    result = run(path)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "0 passed, 1 failed, 2 departures")
    assert f"{path}: row 2" in result.stdout


def test_json_lists_departures_by_rule() -> None:
    path = DATA / "partition_change_kafka_4.1.0.jsonl.gz"
    result = run(path, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["passed"], document["failed"]) == (0, 0, 0)
    assert document["files"][0]["departures"] == 18
    counts = {item["rule"]: item["count"] for item in document["departures"]}
    assert counts == {DEPARTURES[1].name: 8, DEPARTURES[3].name: 10}
    first = document["departures"][0]
    assert (first["reason"], first["lost_acked"]) == (DEPARTURES[1].reason, 1)
    assert first["scenario"] == "removed-replica-in-elr"
    assert {item["file"] for item in first["rows"]} == {str(path)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("returning", "--departures: found 'returning'; allowed: one of returning-replica-eligible, "),
        (
            "returning-replica-eligible",
            "--departures: found returning-replica-eligible, which no row shows; allowed: one of "
            "removed-replica-blocks-last-known-leader, unassigned-last-known-leader-elected",
        ),
    ],
)
def test_a_departure_that_matches_nothing_is_one_line(name: str, message: str) -> None:
    result = run(DATA / "partition_change_kafka_4.1.0.jsonl.gz", "--departures", name)
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(message)
    assert result.stdout == ""
