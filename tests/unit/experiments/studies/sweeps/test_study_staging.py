"""A study in an object store (fsspec's in memory): its batches are copied to be analysed, the results are put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.sweeps.batches import commit
from experiments.studies.sweeps.identity import cell_digests
from experiments.studies.sweeps.output import claim, read_record
from experiments.studies.sweeps.staging import local_copy
from experiments.studies.sweeps.storage import Store, store_at
from experiments.studies.sweeps.sweep import complete_batches
from experiments.studies.trials.batch import Batch, run_batch
from experiments.support.errors import InputError
from tests.spark.trial_helpers import fake_trial

STUDY = study_from({"name": "s", "trials": 8, "duration": "1h"}, "s.yaml")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with `STUDY`, its trials, and those of a cell that it does not have."""
    found = store_at(f"memory://{tmp_path.name}/s")
    cells = cell_digests(STUDY, "code")
    claim(found, STUDY, cells)
    for cell in (*cells, "0" * 16):
        batch = Batch(cell, 0, 8)
        commit(found, batch, *run_batch(fake_trial, STUDY.cells[0].parameters, batch, STUDY.seed))
    yield found
    fsspec.filesystem("memory").rm("/", recursive=True)


def analyse(folder: Path, part: str) -> None:
    """Files as Spark writes them."""
    for name in (f"silver/intervals/{part}.parquet", f"gold/cells/{part}.parquet", "gold/cells.json", "report.html"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part)
        (path.parent / "._SUCCESS.crc").write_text("")


def test_batches_are_copied_and_results_replace_those_of_before(store: Store) -> None:
    for part in ("first", "second"):
        with local_copy(store.place()) as folder:
            complete_batches(read_record(folder), folder)
            assert len(list(folder.glob("trace/*"))) == 1
            analyse(folder, part)
        assert not folder.exists()
        assert store.read("gold/cells.json") == store.read("report.html") == part.encode()
        assert store.names("silver/intervals") == store.names("gold/cells") == [f"{part}.parquet"]
    with local_copy(store.place(), traces=False) as folder:
        assert {path.name for path in folder.rglob("*")} == {"study.yaml", "gold", "cells.json"}
        (folder / "report.html").write_text("third")
    assert store.read("report.html") == b"third"
    assert store.names("silver") == ["intervals"]


def test_failed_analysis_changes_nothing(store: Store) -> None:
    def fail(folder: Path) -> None:
        analyse(folder, "half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), local_copy(store.place()) as folder:
        fail(folder)
    assert store.names("gold") == []
    assert not folder.exists()


def test_folder_is_not_copied_and_a_store_without_a_study_is_refused(tmp_path: Path) -> None:
    with local_copy(str(tmp_path)) as folder:
        assert folder == tmp_path
    with pytest.raises(InputError, match="was swept"), local_copy("memory://nothing/here"):
        pass
