"""The output directory: what belongs to the study, what is damaged or left over, and what another study changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps.batches import (
    batch_name,
    check_batch,
    commit,
    committed,
    disjoint,
    file_names,
    mark_name,
    remove_leftovers,
)
from experiments.studies.sweeps.output import claim, current_versions, exclusive, read_record, record_versions
from experiments.studies.sweeps.storage import Folder
from experiments.studies.sweeps.sweep import complete_batches, needed_batches
from experiments.studies.trace.schema import VERSION, VERSION_KEY
from experiments.studies.trials.batch import Batch
from experiments.support.errors import InputError
from tests.spark.trial_helpers import claimed, fill

RAW = {"name": "s", "seed": 1, "trials": 20, "duration": "1h", "sweep": {"min_insync_replicas": [1, 2]}}


def study_of(**changes: object) -> StudyPlan:
    return study_from({name: value for name, value in (RAW | changes).items() if value is not None}, "s.yaml")


@pytest.fixture
def cells(tmp_path: Path) -> tuple[str, ...]:
    """The digests of the cells of `study_of()`, which `tmp_path` belongs to."""
    return claimed(tmp_path, study_of())


def test_committed_batches_are_complete_and_the_others_missing(tmp_path: Path, cells: tuple[str, ...]) -> None:
    fill(tmp_path, study_of(), [Batch(cells[0], 0, 12), Batch(cells[1], 4, 20)])
    _, schedule = needed_batches(read_record(tmp_path), Folder(tmp_path))
    assert (schedule.trials, schedule.target) == (28, 40)
    with pytest.raises(InputError, match="12 missing"):
        complete_batches(read_record(tmp_path), tmp_path)
    fill(tmp_path, study_of(), [Batch(cells[0], 12, 20), Batch(cells[1], 0, 4)])
    complete_batches(read_record(tmp_path), tmp_path)


def test_trials_that_are_complete_can_be_analysed_unless_a_cell_has_none(
    tmp_path: Path, cells: tuple[str, ...]
) -> None:
    """A batch without its mark is half written and does not count."""
    first, second = Batch(cells[0], 0, 12), Batch(cells[1], 4, 20)
    fill(tmp_path, study_of(), [first, second])
    assert complete_batches(read_record(tmp_path), tmp_path, partial=True) == (sorted([first, second]), [20, 20])
    (tmp_path / mark_name(second)).unlink()
    with pytest.raises(InputError, match=r"cell 1 \(.*\): found no complete trial"):
        complete_batches(read_record(tmp_path), tmp_path, partial=True)


def test_files_of_an_interrupted_sweep_are_not_read_and_are_removed(tmp_path: Path, cells: tuple[str, ...]) -> None:
    first, second = Batch(cells[0], 0, 5), Batch(cells[0], 5, 9)
    fill(tmp_path, study_of(), [first, second])
    (tmp_path / mark_name(second)).unlink()
    (tmp_path / "trace" / ".tmp-1-x.parquet").write_bytes(b"half")
    (tmp_path / ".tmp-gold").mkdir()
    assert committed(Folder(tmp_path)) == [first]
    remove_leftovers(Folder(tmp_path))
    assert [path.stem for path in (tmp_path / "trace").iterdir()] == [batch_name(first)]
    assert not list(tmp_path.glob(".tmp-*"))


def damaged(content: bytes, how: str) -> bytes:
    if how == "flip":
        middle = len(content) // 4
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return content[:-20] if how == "cut" else b""


@pytest.mark.parametrize("file", ["trace/{}.parquet", "trials/{}.parquet", "trials/_{}.sha256"])
@pytest.mark.parametrize("how", ["cut", "empty", "flip"])
def test_error_names_the_damaged_file(tmp_path: Path, cells: tuple[str, ...], file: str, how: str) -> None:
    batch = Batch(cells[0], 0, 20)
    fill(tmp_path, study_of(), [batch])
    path = tmp_path / file.format(batch_name(batch))
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(InputError) as caught:
        check_batch(Folder(tmp_path), batch)
    named = {str(path)} if "parquet" in file or how != "flip" else {str(path), *map(str, tmp_path.glob("tr*/cell-*"))}
    assert caught.value.source in named


@pytest.mark.parametrize("position", [0, 1])
def test_error_names_the_missing_file_of_a_batch(tmp_path: Path, cells: tuple[str, ...], position: int) -> None:
    batch = Batch(cells[0], 0, 20)
    fill(tmp_path, study_of(), [batch])
    path = tmp_path / file_names(batch)[position]
    path.unlink()
    with pytest.raises(InputError) as caught:
        check_batch(Folder(tmp_path), batch)
    assert caught.value.source == str(path)


def older(trace: pa.Table) -> pa.Table:
    return trace.replace_schema_metadata({VERSION_KEY: str(VERSION - 1)})


def with_a_trial_twice(trace: pa.Table) -> pa.Table:
    first = trace.filter(pc.equal(trace["trial"], 0))
    return pa.concat_tables([first, trace.slice(first.num_rows)[: trace.num_rows - 2 * first.num_rows], first])


def replaced(trace: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The table with another column in the place of one, which may have nulls."""
    return trace.set_column(trace.schema.get_field_index(name), name, values)


def nullable(trace: pa.Table) -> pa.Table:
    return replaced(trace, "epoch", pa.array([None] * trace.num_rows, pa.int32()))


def reversed_rows(trace: pa.Table) -> pa.Table:
    return trace.take(list(reversed(range(trace.num_rows))))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (older, f"a trace of version {VERSION - 1}"),
        (with_a_trial_twice, "rows of a trial twice or out of order"),
        (reversed_rows, "rows of a trial twice or out of order"),
        (lambda trace: trace.slice(1), " rows; allowed: "),
        (lambda trace: trace.drop_columns("epoch"), "epoch: found no column; allowed: int32"),
        (lambda trace: replaced(trace, "time_ms", pa.array(range(trace.num_rows), pa.int32())), "time_ms: found int32"),
        (nullable, "epoch: found nulls"),
    ],
    ids=["older version", "trial twice", "out of order", "row missing", "column missing", "other type", "nulls"],
)
def test_a_whole_file_with_other_content_is_refused(
    tmp_path: Path, cells: tuple[str, ...], change: Callable[[pa.Table], pa.Table], found: str
) -> None:
    batch, store = Batch(cells[0], 0, 20), Folder(tmp_path)
    fill(tmp_path, study_of(), [batch])
    trace, trials = (pq.read_table(tmp_path / name) for name in file_names(batch))
    commit(store, batch, trace, trials)
    check_batch(store, batch)
    commit(store, batch, change(trace), trials)
    with pytest.raises(InputError) as caught:
        check_batch(store, batch)
    assert caught.value.source == str(tmp_path / file_names(batch)[0])
    assert found in str(caught.value)


def test_batches_that_overlap_are_read_without_reading_a_trial_twice() -> None:
    batches = [Batch("a", 0, 4), Batch("a", 0, 10), Batch("a", 4, 8), Batch("a", 9, 12), Batch("b", 0, 2)]
    assert list(disjoint(batches, {"a", "b"})) == [batches[0], batches[2], batches[3], batches[4]]
    assert list(disjoint(batches, {"b"})) == [batches[4]]


def test_changed_study_extends_the_directory(tmp_path: Path, cells: tuple[str, ...]) -> None:
    fill(tmp_path, study_of(), [Batch(cell, 0, 20) for cell in cells])
    larger = study_of(trials=30, sweep={"min_insync_replicas": [2, 3, 1]})
    new_cells = claimed(tmp_path, larger)
    assert (new_cells[2], new_cells[0]) == cells
    record = read_record(tmp_path)
    assert record.study == larger
    batches, schedule = needed_batches(record, Folder(tmp_path))
    assert len(batches) == 2
    assert [cell.trials for cell in schedule.cells] == [20, 0, 20]
    claimed(tmp_path, study_of(trials=10, sweep={"min_insync_replicas": [2]}))
    complete_batches(read_record(tmp_path), tmp_path)
    batches, schedule = needed_batches(read_record(tmp_path), Folder(tmp_path))
    assert ([batch.cell for batch in batches], schedule.target) == ([cells[1]], 10)
    assert len(committed(Folder(tmp_path))) == 2


def test_other_code_or_another_seed_has_no_trials_yet(tmp_path: Path, cells: tuple[str, ...]) -> None:
    fill(tmp_path, study_of(), [Batch(cell, 0, 20) for cell in cells])
    claimed(tmp_path, study_of(seed=2))
    assert needed_batches(read_record(tmp_path), Folder(tmp_path))[1].trials == 0
    claim(Folder(tmp_path), study_of(), cells)
    assert needed_batches(read_record(tmp_path), Folder(tmp_path))[1].trials == 40


def test_directory_belongs_to_studies_of_one_name(tmp_path: Path, cells: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"study\.name: found other; allowed: a study of the name s"):
        claimed(tmp_path, study_of(name="other"))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match=r"letter\.txt"):
        claim(Folder(foreign), study_of(), cells)
    with pytest.raises(InputError, match="was swept"):
        read_record(foreign)


@pytest.mark.parametrize("content", [b"", b"study: [", b"study:\n  name: s\nruns: {}\n", b"\xff"])
def test_damaged_record_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_record(tmp_path)
    assert caught.value.source == str(tmp_path / "study.yaml")


def test_one_command_at_a_time_writes_to_a_directory(tmp_path: Path) -> None:
    second = exclusive(Folder(tmp_path))
    with exclusive(Folder(tmp_path)), pytest.raises(InputError, match="one command at a time"), second:
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="found a file"), exclusive(Folder(tmp_path / "file")):
        pass


def test_equal_versions_are_recorded_once(tmp_path: Path, cells: tuple[str, ...]) -> None:
    versions = current_versions("a")
    for _ in range(2):
        record_versions(Folder(tmp_path), versions)
    assert read_record(tmp_path).versions[1:] == [versions]
    assert set(versions) == {"isray", "ray", "pyspark", "python", "git_revision", "trial_code"}
