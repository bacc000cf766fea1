"""Which runs of silver become one, and that a manifest is read as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.pipeline.manifest import (
    FILE_BYTES,
    MOST_SMALL_RUNS,
    NAME,
    Manifest,
    RunBatches,
    compacted,
    read_manifest,
    usable,
    write_manifest,
)
from experiments.studies.sweeps.storage import Folder
from experiments.studies.trials.batch import Batch


def manifest_of(*sizes: int) -> Manifest:
    """Runs of these sizes, each of one batch."""
    return Manifest({at: RunBatches((Batch("c", at, at + 1),), size) for at, size in enumerate(sizes)})


@pytest.mark.parametrize("large", [0, 7])
def test_few_small_runs_and_all_large_ones_are_kept(large: int) -> None:
    found = manifest_of(*[FILE_BYTES] * large, *[1] * MOST_SMALL_RUNS)
    assert compacted(found) == ((), found)


def test_small_runs_become_one_beside_the_large_ones() -> None:
    found = manifest_of(5, FILE_BYTES, *[7] * MOST_SMALL_RUNS)
    small, one = compacted(found)
    assert small == (0, *range(2, MOST_SMALL_RUNS + 2))
    assert one.batches == found.batches
    assert {number: run.size for number, run in one.runs.items()} == {1: FILE_BYTES, 6: 5 + 7 * MOST_SMALL_RUNS}
    assert compacted(one) == ((), one)


def test_manifest_is_read_as_it_was_written_and_a_damaged_one_has_no_runs(tmp_path: Path) -> None:
    store, found = Folder(tmp_path), manifest_of(5, 7)
    write_manifest(store, found)
    assert read_manifest(store) == found
    assert usable(found, [Batch("c", 1, 3)]) == Manifest({})
    store.write(NAME, (store.read(NAME) or b"")[:-9])
    assert read_manifest(store) == Manifest({})
