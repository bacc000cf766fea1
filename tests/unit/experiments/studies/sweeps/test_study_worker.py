"""What a worker does with a batch, on a disk that is full, in a folder that is not the driver's, and twice."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.sweeps.batches import check_batch, committed, remove_leftovers
from experiments.studies.sweeps.storage import Folder, StorageFailed
from experiments.studies.sweeps.sweep import job_of
from experiments.studies.sweeps.worker import Job, run_and_commit
from experiments.studies.trials.batch import Batch
from experiments.support import atomic
from tests.spark.trial_helpers import claimed, fake_trial

STUDY = study_from({"name": "s", "trials": 8, "duration": "1h"}, "s.yaml")
PARAMETERS = STUDY.cells[0].parameters


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(claimed(tmp_path, STUDY)[0], 0, 8)


@pytest.fixture
def job(tmp_path: Path, batch: Batch) -> Job:
    """The sweep of `STUDY` into `tmp_path`."""
    return job_of(STUDY, Folder(tmp_path), fake_trial, (tmp_path / "study.yaml").read_bytes())


def content(folder: Path) -> dict[str, str]:
    paths = [*folder.glob("trace/*"), *folder.glob("trials/*")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_batch_that_runs_twice_is_the_same_batch(tmp_path: Path, job: Job, batch: Batch) -> None:
    summary = run_and_commit(job, PARAMETERS, batch)
    once = content(tmp_path)
    assert len(once) == 3, once
    run_and_commit(job, PARAMETERS, batch)
    assert content(tmp_path) == once
    assert committed(Folder(tmp_path)) == [batch]
    assert (summary.events > 0, summary.rows > 0, summary.values) == (True, True, None)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_full_disk_commits_nothing_and_keeps_what_was_committed(
    tmp_path: Path, job: Job, batch: Batch, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_and_commit(job, PARAMETERS, batch._replace(stop=4))
    left = [writes * 2]  # a file and its folder are synced

    def full(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(StorageFailed, match="No space left on device"):
        run_and_commit(job, PARAMETERS, batch._replace(first=4))
    monkeypatch.undo()
    remove_leftovers(Folder(tmp_path))
    assert committed(Folder(tmp_path)) == [batch._replace(stop=4)]
    check_batch(Folder(tmp_path), batch._replace(stop=4))
    assert len(content(tmp_path)) == 3


def test_folder_that_is_not_the_drivers_is_refused(tmp_path: Path, job: Job, batch: Batch) -> None:
    elsewhere = Job(Folder(tmp_path / "elsewhere"), fake_trial, 0, True, job.record_digest, None)
    with pytest.raises(StorageFailed, match="a folder that all nodes of the Ray cluster share, or a URL"):
        run_and_commit(elsewhere, PARAMETERS, batch)
    assert not (tmp_path / "elsewhere").exists()
