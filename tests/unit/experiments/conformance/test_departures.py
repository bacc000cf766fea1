"""Departures: recorded rows that only Kafka's rules explain, and no row that differs in anything else."""

from __future__ import annotations

import gzip
import json
from collections import Counter
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
from protocol.kafka_release import KafkaRelease
from tests.unit.experiments.conformance.test_conformance import run

DATA = Path(__file__).parents[3] / "data"
SHOWN = {
    "cluster_traces_kafka_4.1.2": (15, {0: 1, 5: 15, 6: 3, 7: 9, 8: 7}),
    "cluster_traces_kafka_4.4.0": (21, {0: 1, 4: 3, 5: 23, 6: 7, 7: 15, 8: 8, 9: 1}),
    "controller_traces": (353, {}),
    "controller_traces_kafka_4.0.0": (0, {0: 10, 1: 9, 2: 11, 10: 1}),
    "controller_traces_kafka_4.1.0": (0, {0: 8, 1: 8}),
    "controller_traces_kafka_4.1.2": (398, {0: 1, 1: 1}),
    "controller_traces_kafka_4.4.0": (393, {0: 1, 1: 1, 4: 5}),
    "partition_change": (3982, {}),
    "partition_change_kafka_4.0.0": (0, {1: 8, 2: 20, 3: 20}),
    "partition_change_kafka_4.1.0": (0, {1: 8, 3: 10}),
    "partition_change_kafka_4.1.2": (3000, {}),
    "partition_change_kafka_4.4.0": (3000, {}),
}
"""Rows of each file that are answered as recorded, and how many others show each of `DEPARTURES`."""
RELEASES = (KafkaRelease.V4_0, KafkaRelease.V4_1_0)
DEPARTED = [name for name, (passed, _) in SHOWN.items() if not passed]
LINES = {name: gzip.decompress((DATA / f"{name}.jsonl.gz").read_bytes()).splitlines()[1:] for name in DEPARTED}


def _explained(vector: dict[str, Any]) -> tuple[str, ...]:
    """The departures that explain a row, in the release of which that takes the fewest; it must differ."""
    text = json.dumps(vector)
    row = (ControllerTraceRow if "steps" in vector else PartitionChangeRow).model_validate_json(text)
    compare = traces.differences if isinstance(row, ControllerTraceRow) else decisions.differences
    assert all(compare(row, release) for release in RELEASES)
    found = [explanation(partial(compare, row, release)) for release in RELEASES]
    return min((tuple(departure.name for departure in each) for each in found if each), key=len, default=())


def _rows(kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name, lines in LINES.items() if name.startswith(kind) for line in lines]


@pytest.mark.slow
@pytest.mark.covers("E12", "E13", "E14", "E15", "E20", "E23", "E24", "E29", "E30", "E32", "E34", "K4", "N29", "N33")
@pytest.mark.covers("B4", "B18", "B19", "B23", "G33", "M52", "N8")
@pytest.mark.parametrize("name", SHOWN)
def test_recorded_rows_of_kafka_releases_depart_by_declared_rules_only(name: str) -> None:
    result = replay_file(DATA / f"{name}.jsonl.gz")
    passed, shown = SHOWN[name]
    assert (result.passed, result.failed, result.is_stated) == (passed, 0, True)
    assert result.kind == " ".join(name.removesuffix("s").split("_")[:2]).replace("traces", "trace")
    found = Counter(DEPARTURES.index(departure) for row in result.departed for departure in row.departures)
    assert found == shown
    assert all(row.differences for row in result.departed)


def test_every_declared_departure_is_shown_by_a_recorded_row() -> None:
    """All but five: recorded events have no unclean elections enabled, no answer of a controller that fails, and no
    brokers, whose rules the others are.
    """
    assert {index for _, shown in SHOWN.values() for index in shown} == set(range(len(DEPARTURES) - 5))
    names = ["dead-original-in-isr", "recovered-with-next-change", "complete-follower-kept"]
    names += ["new-directory-elects-nobody", "new-directory-empties-elr"]
    assert [it.name for it in DEPARTURES[-5:]] == names


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
        assert decisions.differences(change, KafkaRelease.V4_0, frozenset({name}))


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
