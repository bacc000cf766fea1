"""The sweep: pending batches, sequential stopping, seeds, and the checks of the output directory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters, Precision, StudyPlan
from experiments.studies.sweeps import output
from experiments.studies.sweeps.output import (
    batch_name,
    claim,
    committed_batches,
    read_record,
    record_versions,
    remove_leftovers,
    write_batch,
)
from experiments.studies.sweeps.sweep import is_precise, pending_batches, rounds, wanted_trials
from experiments.studies.trace.schema import TraceError, TraceRow, TrialResult, check_trace
from experiments.studies.trials.batch import Batch, TrialFailed, run_batch, trial_seed
from experiments.support.errors import InputError
from tests.spark.trial_helpers import fake_trial

PARAMETERS = CellParameters(duration_ms=3_600_000)


def study_of(**changes: object) -> StudyPlan:
    raw = {"name": "s", "seed": 1, "trials": 20, "duration": "1h", "sweep": {"min_insync_replicas": [1, 2]}}
    return study_from({name: value for name, value in (raw | changes).items() if value is not None}, "s.yaml")


def claimed(out: Path, *batches: Batch) -> StudyPlan:
    """The directory of `study_of()` with these batches."""
    study = study_of()
    claim(out, study)
    fill(out, study, list(batches))
    return study


def fill(out: Path, study: StudyPlan, batches: list[Batch]) -> None:
    for batch in batches:
        write_batch(out, batch, *run_batch(fake_trial, study.cells[batch.cell].parameters, batch, study.seed))


def mark_of(out: Path, batch: Batch) -> Path:
    return out / "trials" / f"_{batch_name(batch)}.sha256"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8))), st.integers(1, 30))
def test_pending_and_committed_batches_hold_each_trial_once(parts: list[tuple[int, int]], trials: int) -> None:
    study, taken, done = study_of(trials=trials), set[int](), dict[Batch, pa.Table]()
    for first, length in parts:
        numbers = set(range(first, first + length))
        if not numbers & taken:
            taken |= numbers
            done[Batch(0, first, first + length)] = pa.table({"losses": [0] * length})
    pending = [batch for batch in pending_batches(study, done) if batch.cell == 0]
    planned = [number for batch in pending for number in range(batch.first, batch.stop)]
    assert sorted(planned) == sorted(set(range(trials)) - taken)


def test_cells_take_turns() -> None:
    assert [batch.cell for batch in pending_batches(study_of(), {})][:4] == [0, 1, 0, 1]


@settings(deadline=None)
@given(st.integers(1, 100_000))
def test_rounds_grow_up_to_the_largest_number_of_trials(max_trials: int) -> None:
    steps = list(rounds(max_trials))
    assert steps == sorted(set(steps))
    assert steps[-1] == max_trials


def test_sequential_study_stops_at_the_first_precise_round() -> None:
    study = study_of(trials=None, precision={"relative_error": 0.2, "max_trials": 1000})
    precision = Precision(relative_error=0.2, max_trials=1000)
    samples = ([0] * 500, [1, 1, 1], [1] * 150)
    assert [is_precise(precision, counts, PARAMETERS.partition_years) for counts in samples] == [False, False, True]
    grown: list[list[int]] = [[], [1] * 64, [1] * 96, [1] * 144, [0] * 1000]
    assert [wanted_trials(study, 0, counts) for counts in grown] == [64, 96, 144, 144, 1000]


def test_seed_depends_on_study_seed_and_trial_number_and_on_the_cell_without_pairing() -> None:
    cells = (PARAMETERS, PARAMETERS.model_copy(update={"min_insync_replicas": 1}), None)
    seeds = [trial_seed(study, trial, cell) for study in (1, 2) for cell in cells for trial in (0, 1)]
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert trial_seed(1, 0) == 4595320837383450133


def test_batch_size_does_not_change_the_tables() -> None:
    whole = run_batch(fake_trial, PARAMETERS, Batch(0, 0, 6), 1)
    parts = [run_batch(fake_trial, PARAMETERS, Batch(0, first, first + 3), 1) for first in (0, 3)]
    for table, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert table.equals(pa.concat_tables(pieces))


def test_error_of_a_failed_trial_names_its_seed() -> None:
    def broken(parameters: CellParameters, seed: int) -> TrialResult:
        raise ValueError("no")

    with pytest.raises(TrialFailed, match=str(trial_seed(1, 4))):
        run_batch(broken, PARAMETERS, Batch(0, 4, 5), 1)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [TraceRow(0, "state", 0)],
        [TraceRow(5, "state", 0), TraceRow(9, "end")],
        [TraceRow(0, "loss", 0, value=1), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "loss", 0, value=0), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "crash"), TraceRow(3, "start"), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "crush"), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "end"), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(8, "end")],
        [TraceRow(0, "state", 1), TraceRow(9, "end")],
    ],
)
def test_trace_that_breaks_a_rule_is_refused(rows: list[TraceRow]) -> None:
    with pytest.raises(TraceError):
        check_trace(rows, partitions=1, duration_ms=9)


def test_committed_batches_are_found_and_not_pending(tmp_path: Path) -> None:
    pending = pending_batches(study_of(), {})
    study = claimed(tmp_path, *pending[:3])
    found = committed_batches(tmp_path, study)
    assert sorted(found) == sorted(pending[:3])
    assert sorted([*pending_batches(study, found), *found]) == sorted(pending)


def test_files_of_an_interrupted_sweep_are_not_read_and_are_removed(tmp_path: Path) -> None:
    first, second = pending_batches(study_of(), {})[:2]
    study = claimed(tmp_path, first, second)
    mark_of(tmp_path, second).unlink()
    (tmp_path / "trace" / ".tmp-x.parquet").write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert list(committed_batches(tmp_path, study)) == [first]
    assert [path.stem for path in (tmp_path / "trace").iterdir()] == [batch_name(first)]


def damaged(content: bytes, how: str) -> bytes:
    if how == "flip":
        middle = len(content) // 4
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return content[:-20] if how == "cut" else b""


@pytest.mark.parametrize("file", ["trace/{}.parquet", "trials/{}.parquet", "trials/_{}.sha256"])
@pytest.mark.parametrize("how", ["cut", "empty", "flip"])
def test_error_names_the_damaged_file(tmp_path: Path, file: str, how: str) -> None:
    batch = Batch(0, 0, 20)
    study = claimed(tmp_path, batch)
    path = tmp_path / file.format(batch_name(batch))
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(InputError) as caught:
        committed_batches(tmp_path, study)
    named = {str(path)} if "parquet" in file or how != "flip" else {str(path), *map(str, tmp_path.glob("tr*/cell-*"))}
    assert caught.value.source in named


@pytest.mark.parametrize("folder", ["trace", "trials"])
def test_error_names_the_missing_file_of_a_batch(tmp_path: Path, folder: str) -> None:
    batch = Batch(0, 0, 20)
    study = claimed(tmp_path, batch)
    path = tmp_path / folder / f"{batch_name(batch)}.parquet"
    path.unlink()
    with pytest.raises(InputError) as caught:
        committed_batches(tmp_path, study)
    assert caught.value.source == str(path)


def test_batches_that_overlap_or_lie_outside_the_study_are_refused(tmp_path: Path) -> None:
    study = claimed(tmp_path, Batch(0, 0, 10), Batch(0, 5, 15))
    with pytest.raises(InputError, match="another file holds"):
        committed_batches(tmp_path, study)
    mark_of(tmp_path, Batch(0, 5, 15)).unlink()
    fill(tmp_path, study, [Batch(1, 15, 25)])
    with pytest.raises(InputError, match="outside the study"):
        committed_batches(tmp_path, study)


def test_directory_holds_one_study(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    claim(out, study_of())
    claim(out, study_of())
    assert read_record(out).study == study_of()
    with pytest.raises(InputError, match="another study"):
        claim(out, study_of(trials=21))
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match=r"letter\.txt"):
        claim(other, study_of())
    with pytest.raises(InputError, match="was swept"):
        read_record(other)


def test_directory_with_trials_of_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, study_of())
    record_versions(tmp_path)
    claim(tmp_path, study_of())
    monkeypatch.setattr(output, "trial_code_digest", lambda: "another")
    with pytest.raises(InputError, match="another version"):
        claim(tmp_path, study_of())


def test_equal_versions_are_recorded_once(tmp_path: Path) -> None:
    claim(tmp_path, study_of())
    record_versions(tmp_path)
    record_versions(tmp_path)
    (run,) = read_record(tmp_path).versions
    assert set(run) == {"isray", "ray", "pyspark", "python", "git_revision", "trial_code"}
