"""Conformance: the recorded vectors pass whole, and no damage to them goes unseen."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from experiments.cli.conformance import conformance
from experiments.conformance.decisions import PartitionChangeRow, differences, replay_file
from experiments.support.errors import InputError
from protocol.kafka_release import KafkaRelease

VECTORS = Path(__file__).parents[3] / "data" / "partition_change.jsonl.gz"
RELEASE_LINE, *ROWS = gzip.decompress(VECTORS.read_bytes()).splitlines()
UNORDERED = ("elr", "last_known_elr")


def row(index: int = 0) -> dict[str, Any]:
    return json.loads(ROWS[index])


def differing(vector: dict[str, Any]) -> list[str]:
    parsed = PartitionChangeRow.model_validate_json(json.dumps(vector))
    return [difference.field for difference in differences(parsed, KafkaRelease.V4_0)]


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(conformance)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def altered(name: str, value: Any) -> st.SearchStrategy[Any]:
    """Another value of a field, of the kind that the field holds."""
    if value is None or isinstance(value, list):
        lists = st.lists(st.integers(0, 4), min_size=int(name == "replicas"), max_size=4)
        return (st.none() | lists).filter(lambda other: not _same(name, value, other))
    if isinstance(value, str):
        return st.just("RECOVERED" if value == "RECOVERING" else "RECOVERING")
    low, high = {"leader": (0, 4), "leader_recovery_state": (0, 1)}.get(name, (0, 50))
    return st.integers(low, high).filter(lambda other: other != value)


def _same(name: str, value: list[int] | None, other: list[int] | None) -> bool:
    if name in UNORDERED and value is not None and other is not None:
        return sorted(value) == sorted(other)
    return value == other


@given(st.data())
def test_any_other_answer_in_one_field_fails_that_row(data: st.DataObject) -> None:
    vector = row(data.draw(st.integers(0, len(ROWS) - 1)))
    part = data.draw(st.sampled_from([name for name in ("record", "after") if vector[name] is not None]))
    field = data.draw(st.sampled_from(sorted(vector[part])))
    other = altered(field, vector[part][field])
    if part == "after":
        other = other.filter(lambda value: value is not None)
    vector[part][field] = data.draw(other)
    assert differing(vector) == [f"{part}.{field}"]


@pytest.mark.parametrize(
    ("damage", "field"),
    [({"record": None}, "record"), ({"after": None}, "after"), ({"error": "INVALID_REQUEST"}, "error")],
)
def test_a_missing_answer_or_an_error_fails_the_row(damage: dict[str, Any], field: str) -> None:
    vector = next(vector for vector in map(json.loads, ROWS) if vector["record"] is not None)
    assert differing(vector | damage) == [field]


@pytest.mark.parametrize(
    ("field", "matters"), [("elr", False), ("last_known_elr", False), ("isr", True), ("replicas", True)]
)
def test_order_matters_where_it_carries_meaning(field: str, matters: bool) -> None:
    vector = next(vector for vector in map(json.loads, ROWS) if len(vector["after"][field]) > 1)
    vector["after"][field].reverse()
    assert differing(vector) == ([f"after.{field}"] if matters else [])


def _one_file(folder: Path, content: bytes) -> Path:
    path = folder / "vectors"
    path.write_bytes(content)
    return path


def _released(*rows: bytes) -> bytes:
    """The content of a file that says its release."""
    return b"\n".join((RELEASE_LINE, *rows))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_packing_is_told_by_content(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    result = run(_one_file(tmp_path, pack(_released(*ROWS[:7]))))
    assert (result.exit_code, result.stdout) == (0, "7 passed, 0 failed, 0 departures\n")


def test_first_five_mismatches_are_shown_field_by_field(tmp_path: Path) -> None:
    vectors = [row(index) for index in range(8)]
    for vector in vectors[1:]:
        vector["after"]["leader_epoch"] += 1
    path = _one_file(tmp_path, _released(*(json.dumps(vector).encode() for vector in vectors)))
    result = run(path)
    lines = result.stdout.splitlines()
    epoch = vectors[1]["after"]["leader_epoch"]
    assert result.exit_code == 1
    assert lines[:2] == [f"{path}: row 2", f"  after.leader_epoch: expected {epoch}, found {epoch - 1}"]
    assert (len(lines), lines[-1]) == (11, "1 passed, 7 failed, 0 departures")


def test_json_is_one_document_over_all_files(tmp_path: Path) -> None:
    vector = row()
    vector["after"]["isr"], found = [0], vector["after"]["isr"]
    path = _one_file(tmp_path, json.dumps(vector).encode())
    result = run(VECTORS, path, "--json")
    whole, damaged = (json.loads(result.stdout)["files"][index] for index in (0, 1))
    assert result.exit_code == 1
    counts = {"passed": 3982, "failed": 0, "departures": 0}
    release = {"kafka_release": "4.0", "release_is_stated": True}
    assert whole == {"file": str(VECTORS), "kind": "partition change", **release, **counts, "mismatches": []}
    difference = {"field": "after.isr", "expected": [0], "found": found}
    assert damaged["mismatches"] == [{"row": 1, "differences": [difference]}]
    assert (json.loads(result.stdout)["passed"], json.loads(result.stdout)["failed"]) == (3982, 1)


def _with(**fields: Any) -> bytes:
    return json.dumps(row() | fields).encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        pytest.param(b"", "no rows", id="empty"),
        pytest.param(b"not json", "row 1", id="not JSON"),
        pytest.param(b"\xff\xfe", "row 1", id="not UTF-8"),
        pytest.param(b"[1]", "row 1", id="not an object"),
        pytest.param(ROWS[0] + b"\n\n" + ROWS[1], "row 2", id="blank row"),
        pytest.param(ROWS[0] + b"\n" + ROWS[1][:-1], "row 2", id="torn row"),
        pytest.param(b"{}", "row 1: partition: found nothing", id="missing field"),
        pytest.param(_with(colour="red"), 'row 1: colour: found "red"', id="unknown field"),
        pytest.param(_with(min_isr=0), "row 1: min_isr: found 0", id="min ISR of 0"),
        pytest.param(_with(min_isr="2"), 'row 1: min_isr: found "2"; allowed: a whole number', id="text for a number"),
        pytest.param(_with(min_isr=True), "row 1: min_isr: found true", id="truth for a number"),
        pytest.param(_with(election="RANDOM"), 'row 1: election: found "RANDOM"', id="unknown election"),
        pytest.param(_with(target_isr=[1, -1]), "row 1: target_isr[1]: found -1", id="no broker"),
        pytest.param(_with(steps=[]), "row 1: partition: found {", id="steps in a row"),
        pytest.param(
            b'{"steps": [], "elr_enabled": true, "effective_min_insync_replicas": 1}',
            "row 1: steps: found",
            id="no steps",
        ),
        pytest.param(gzip.compress(ROWS[0])[:-9], "damaged gzip", id="torn gzip"),
        pytest.param(RELEASE_LINE, "no rows", id="a release alone"),
        pytest.param(
            b'{"kafka_release": "3.9.0"}\n' + ROWS[0],
            'kafka_release: found "3.9.0"; allowed: one of 4.0, 4.1.0, 4.1.2, 4.3, 4.4, or another release',
            id="unknown release",
        ),
    ],
)
def test_wrong_input_names_file_row_and_field(tmp_path: Path, content: bytes, named: str) -> None:
    path = _one_file(tmp_path, content)
    with pytest.raises(InputError) as raised:
        replay_file(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert named in message
    assert "\n" not in message


def test_a_file_is_replayed_under_its_release_the_option_or_what_fits(tmp_path: Path) -> None:
    """44 rows of 4.4.0 show a reassignment that completes without the whole final assignment."""
    newest = VECTORS.with_name("partition_change_kafka_4.4.0.jsonl.gz")
    _, *rows = gzip.decompress(newest.read_bytes()).splitlines()
    path = _one_file(tmp_path, b"\n".join(rows))
    assert replay_file(path, KafkaRelease.V4_1_2).failed == 44
    fitting = replay_file(path)
    assert (fitting.release, fitting.is_stated, fitting.failed) == (KafkaRelease.V4_4, False, 0)
    lines = run(path).stdout.splitlines()
    assert lines == [f"{path} does not say its release; its rows fit 4.4 best", "3000 passed, 0 failed, 0 departures"]
    result = run(newest, "--kafka", "4.1.2")
    assert str(result.exception) == f"--kafka: found 4.1.2; allowed: 4.4, the release that {newest} says"
    unknown = run(newest, "--kafka", "3.9")
    assert str(unknown.exception).startswith("--kafka: found '3.9'; allowed: one of 4.0, 4.1.0, 4.1.2, 4.3, 4.4, or")


@pytest.mark.parametrize("name", ["absent", "."])
def test_unreadable_paths_are_wrong_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="readable"):
        replay_file(tmp_path / name)


def test_a_wrong_file_reports_nothing_on_standard_output(tmp_path: Path) -> None:
    result = run(VECTORS, tmp_path / "absent")
    assert isinstance(result.exception, InputError)
    assert result.stdout == ""


def test_no_flipped_byte_of_the_compressed_file_passes(tmp_path: Path) -> None:
    small = gzip.compress(b"\n".join(ROWS[:20]), mtime=0)
    header = 10
    for position in random.Random(11).sample(range(header, len(small)), 200):
        damaged = bytearray(small)
        damaged[position] ^= 0x10
        with pytest.raises(InputError):
            replay_file(_one_file(tmp_path, bytes(damaged)))


@given(st.integers(0, len(ROWS) - 1), st.integers(0, 10_000), st.integers(1, 255))
def test_no_flipped_byte_of_an_answer_passes(index: int, offset: int, flip: int) -> None:
    line = bytearray(ROWS[index])
    start = line.index(b'"record":')
    position = start + offset % (len(line) - start)
    line[position] ^= flip
    assert _fails(bytes(line)), line[position - 20 : position + 20]


def _fails(line: bytes) -> bool:
    try:
        return bool(differences(PartitionChangeRow.model_validate_json(line), KafkaRelease.V4_0))
    except ValueError:
        return True
