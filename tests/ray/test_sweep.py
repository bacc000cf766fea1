"""The sweep on private Rays, of this process and of its own: it is complete, resumes to the same trials, and leaves no
process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.engines.ray.session import ray_session
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps import sweep as sweeping
from experiments.studies.sweeps.batches import read_trials
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.storage import Location, store_at
from experiments.studies.sweeps.sweep import complete_batches, needed_batches, sweep
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trials.batch import FunctionFailed, TrialFailed
from experiments.support.errors import InputError
from experiments.support.processes import processes_naming
from tests.spark.trial_helpers import fake_trial

ROOT = Path(__file__).parent.parent.parent
RAW = {"name": "s", "seed": 3, "trials": 16, "duration": "1h", "sweep": {"min_insync_replicas": [1, 2]}}

INTERRUPTED = f"""
import os, signal, sys
from pathlib import Path
from experiments.studies.design.loader import study_from
from experiments.studies.sweeps.schedule import CellWork
from experiments.studies.sweeps.sweep import sweep
from tests.spark.trial_helpers import fake_trial
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background jobs
complete = CellWork.complete
def complete_and_interrupt(*arguments):
    complete(*arguments)
    os.kill(os.getpid(), int(sys.argv[2]))
CellWork.complete = complete_and_interrupt
sweep(study_from({RAW!r}, "s"), Path(sys.argv[1]), fake_trial, *sys.argv[3:])
"""


def study() -> StudyPlan:
    return study_from(RAW, "s.yaml")


def function_is_wrong(parameters: CellParameters, seed: int) -> TrialResult:
    raise InputError("Study", "failure_model", 3, "Outage")


def second_cell_fails(parameters: CellParameters, seed: int) -> TrialResult:
    if parameters.min_insync_replicas == 2:
        raise ValueError("a defect")
    return fake_trial(parameters, seed)


def all_trials(out: Location) -> pa.Table:
    """The rows of `trials/` of the study in `out`, by cell and trial."""
    batches, _ = needed_batches(read_record(out), store_at(out))
    tables = [read_trials(store_at(out), batch) for batch in batches]
    return pa.concat_tables(tables).sort_by([("cell", "ascending"), ("trial", "ascending")])


@pytest.fixture(scope="module")
def reference(private_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference")
    assert sweep(study(), out, fake_trial) == 32
    return out


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Ray's sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def test_second_sweep_runs_no_trial(reference: Path) -> None:
    complete_batches(read_record(reference), reference)
    table = all_trials(reference)
    assert table["trial"].to_pylist() == [*range(16), *range(16)]
    assert len(set(table["seed"].to_pylist())) == 16
    assert sweep(study(), reference, fake_trial) == 0


def test_trials_of_the_command_process_are_those_of_workers(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole files may have other trials, the rows of each trial are the same; and nothing starts a Ray."""
    monkeypatch.setattr(sweeping, "is_named", lambda address: False)
    monkeypatch.delattr(sweeping, "run_batches")
    assert sweep(study(), tmp_path, fake_trial) == 32
    assert all_trials(tmp_path).equals(all_trials(reference))
    order = [(name, "ascending") for name in ("cell", "trial", "seq")]
    traces = [pq.read_table(out / "trace").sort_by(order) for out in (tmp_path, reference)]
    assert traces[0].equals(traces[1])


def test_interrupted_sweep_leaves_no_process_and_resumes_to_the_same_trials(
    reference: Path, tmp_path: Path, short_folder: Path
) -> None:
    number = signal.SIGINT
    environment = os.environ | {"TMPDIR": str(short_folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(int(number))]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode in (128 + number, -number), ended.stderr
    assert not processes_naming([short_folder])
    assert not list(short_folder.iterdir())
    with pytest.raises(InputError, match="missing"):
        complete_batches(read_record(tmp_path), tmp_path)
    assert 0 < sweep(study(), tmp_path, fake_trial) < 32
    assert all_trials(tmp_path).equals(all_trials(reference))


def test_failed_trial_ends_the_sweep_and_committed_batches_stay(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match="a defect"):
        sweep(study(), tmp_path, second_cell_fails)
    assert sweep(study(), tmp_path, fake_trial) > 0
    assert all_trials(tmp_path).equals(all_trials(reference))


def test_wrong_value_of_a_function_ends_the_sweep_with_one_line(reference: Path, tmp_path: Path) -> None:
    """As from a function of a script, without the traceback of the worker."""
    with pytest.raises(FunctionFailed) as caught:
        sweep(study(), tmp_path, function_is_wrong)
    assert re.fullmatch(r"Study: failure_model: found 3; allowed: Outage \(trial \d+ of .*\)", str(caught.value))
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


@pytest.mark.parametrize("address", ["not an address", "127.0.0.1:1", "127.0.0.1:99999"])
def test_address_that_does_not_answer_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="--address"), ray_session(address):
        pass
