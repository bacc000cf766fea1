"""Which batches `silver/` was made of: `silver/manifest.json`.

An analysis adds a *run*: a folder `run=K` in each table of `silver/`, made of the batches that no earlier run has. The
manifest is written last and lists the runs; a folder that it does not list is left from an interrupted analysis, and
removed. Many small runs are made into one in the same way (docs/pipeline.md, "Extending a study").

Silver is computed from scratch if it is of another version of its tables, or holds trials in other batches than the
study has now (two sweeps at the same time may have written the same trials twice).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from experiments.studies.sweeps.storage import Store
from experiments.studies.trials.batch import Batch

NAME = "silver/manifest.json"
VERSION = 7
"""Of the tables of `silver/`; one more whenever a table or the meaning of a column changes."""
FILE_BYTES = 128 * 2**20
"""The size that files of silver are meant to have."""
MOST_SMALL_RUNS = 4
"""When there are more runs than this whose traces are smaller than `FILE_BYTES`, they become one."""


@dataclass(frozen=True, slots=True)
class AnalysisRun:
    """`size`: of the batches' traces, in bytes."""

    batches: tuple[Batch, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The runs by their numbers."""

    runs: dict[int, AnalysisRun]

    @property
    def batches(self) -> set[Batch]:
        return {batch for run in self.runs.values() for batch in run.batches}

    @property
    def next_run(self) -> int:
        return max(self.runs, default=-1) + 1


def read_manifest(store: Store) -> Manifest:
    """The manifest of a study's directory; one without runs if there is none that can be used."""
    runs: dict[int, AnalysisRun] = {}
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(store.read(NAME) or b"")
        if found["version"] == VERSION:
            for run in found["runs"]:
                runs[run["run"]] = AnalysisRun(tuple(Batch(*batch) for batch in run["batches"]), run["bytes"])
            return Manifest(runs)
    return Manifest({})


def usable(manifest: Manifest, needed: Iterable[Batch]) -> Manifest:
    """The manifest, if no trial of a needed batch is in another batch of it; otherwise one without runs."""
    batches = itertools.pairwise(sorted(manifest.batches.union(needed)))
    overlap = any(before.cell == after.cell and after.first < before.stop for before, after in batches)
    return Manifest({}) if overlap else manifest


def compacted(manifest: Manifest) -> tuple[tuple[int, ...], Manifest]:
    """The runs that become one (none, or more than `MOST_SMALL_RUNS`), and the manifest with that one instead."""
    small = {number: run for number, run in manifest.runs.items() if run.size < FILE_BYTES}
    if len(small) <= MOST_SMALL_RUNS:
        return (), manifest
    batches = tuple(sorted(batch for run in small.values() for batch in run.batches))
    whole = AnalysisRun(batches, sum(run.size for run in small.values()))
    kept = {number: run for number, run in manifest.runs.items() if number not in small}
    return tuple(small), Manifest({**kept, manifest.next_run: whole})


def write_manifest(store: Store, manifest: Manifest) -> None:
    runs = [
        {"run": number, "bytes": run.size, "batches": [list(batch) for batch in run.batches]}
        for number, run in manifest.runs.items()
    ]
    store.write(NAME, json.dumps({"version": VERSION, "runs": runs}, indent=1).encode())


def remove_unlisted(store: Store, manifest: Manifest, tables: Sequence[str]) -> None:
    """Removes what no run of the manifest has written."""
    kept = {f"run={run}" for run in manifest.runs}
    for name in store.names("silver"):
        if name in tables:
            for folder in store.names(f"silver/{name}"):
                if folder not in kept:
                    store.remove(f"silver/{name}/{folder}")
        elif f"silver/{name}" != NAME:
            store.remove(f"silver/{name}")
