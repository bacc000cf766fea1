"""How far the studies in a folder of results are, from their records, marks and files alone: nothing is computed.

A study is *swept in part* until every cell has its trials on disk (with `precision`: any), then *swept*; *analysed*
once `gold/cells.json` is there, and *reported* with `report.html`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.studies.sweeps.batches import committed, disjoint
from experiments.studies.sweeps.output import RECORD, read_record
from experiments.studies.sweeps.staging import CELLS, REPORT
from experiments.studies.sweeps.storage import Location, store_at
from experiments.support.errors import InputError

Stage = Literal["swept in part", "swept", "analysed", "reported"]
NEXT: dict[Stage, str | None] = {
    "swept in part": "isray study run {place}/study.yaml --out {place}",
    "swept": "isray study analyze {place}",
    "analysed": "isray study report {place}",
    "reported": None,
}
"""The command that takes a study to its next stage."""


@dataclass(frozen=True, slots=True)
class StudyOnDisk:
    """One study on disk. `trials`: those on disk of its present cells; `wanted`: the most that its file asks for."""

    place: str
    name: str
    question: str | None
    cells: int
    trials: int
    wanted: int
    stage: Stage
    report: str

    @property
    def next_command(self) -> str | None:
        command = NEXT[self.stage]
        return command and command.format(place=self.place)


def results_of(out: Location) -> StudyOnDisk:
    """The study in `out`, a folder or URL. Raises InputError if there is none, StorageFailed."""
    store, record = store_at(out), read_record(out)
    study, counts = record.study, dict.fromkeys(record.cells, 0)
    for batch in disjoint(committed(store), counts):
        counts[batch.cell] += batch.stop - batch.first
    needed = 1 if study.precision is not None else study.max_trials
    stage: Stage = "swept" if counts and min(counts.values()) >= needed else "swept in part"
    if CELLS.rpartition("/")[2] in store.names("gold"):
        stage = "reported" if REPORT in store.names() else "analysed"
    trials, wanted, cells = sum(counts.values()), study.max_trials * len(study.cells), len(study.cells)
    return StudyOnDisk(
        store.place(), study.name, study.question, cells, trials, wanted, stage, report=store.place(REPORT)
    )


def studies_in(folder: Path) -> tuple[list[StudyOnDisk], list[InputError]]:
    """The studies in a folder: itself, or those in the folders right below it, by name; and what is wrong with those
    that cannot be read. Raises InputError if it is no folder."""
    if not folder.is_dir():
        raise InputError(str(folder), "", "no such folder", "a folder with the output directories of studies")
    found, refused = [], []
    for path in (folder, *sorted(folder.iterdir())):
        if path.is_dir() and (path / RECORD).is_file():
            try:
                found.append(results_of(path))
            except InputError as error:
                refused.append(error)
    return found, refused
