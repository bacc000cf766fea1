"""The digests that trials are found by: of the code that runs them, and of their cell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from experiments.studies.design.model import CellParameters
from experiments.studies.sweeps import identity
from experiments.studies.sweeps.identity import cell_digest, trial_code_digest
from experiments.studies.trials.trial import run_trial
from tests.spark.trial_helpers import fake_trial


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package outside the project with a trial in `own/trial.py`, which imports `own/part.py`."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "trial.py").write_text("from . import part\n\ndef trial(parameters, seed):\n    return part.VALUE\n")
    (folder / "part.py").write_text("VALUE = 1\n")
    (folder / "unrelated.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
        del sys.modules[name]


def digest_of_own() -> str:
    import importlib

    identity._sources.cache_clear()
    return trial_code_digest(importlib.import_module("own.trial").trial)


def test_code_counts_with_what_it_imports_and_nothing_else(module: Path) -> None:
    before = digest_of_own()
    (module / "unrelated.py").write_text("VALUE = 3\n")
    assert digest_of_own() == before
    (module / "part.py").write_text("VALUE = 3\n")
    assert digest_of_own() != before


def test_code_of_a_trial_includes_protocol_simulator_and_failures_and_no_report() -> None:
    names = {name for name, _ in identity._sources(run_trial.__module__)}
    assert {"protocol.controller.partition_change", "experiments.engines.sim.cluster"} <= names
    assert {"experiments.studies.failures.timeline", "experiments.studies.trace.schema"} <= names
    assert not [name for name in names if name.startswith(("experiments.studies.sweeps", "experiments.studies.report"))]


def test_functions_and_their_bound_arguments_differ() -> None:
    trials = [run_trial, fake_trial, partial(fake_trial, seed=1), partial(fake_trial, seed=2)]
    assert len({trial_code_digest(trial) for trial in trials}) == 4  # type: ignore[arg-type]
    assert trial_code_digest(fake_trial) == trial_code_digest(fake_trial)


def test_cell_digest_depends_on_parameters_seed_pairing_and_code() -> None:
    other = CellParameters(min_insync_replicas=1)
    digests = [
        cell_digest(parameters, seed, pairing, code)
        for parameters in (CellParameters(), other)
        for seed in (1, 2)
        for pairing in (True, False)
        for code in ("a", "b")
    ]
    assert len(set(digests)) == 16
    assert all(len(digest) == 16 for digest in digests)
