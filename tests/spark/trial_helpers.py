"""A small trial with known answers, so that the sweep and the pipeline can be tested without the protocol.

Partition 0 has an outage and a loss, whose length and size follow from the seed; everything else is constant. With
`kip-497` the recorded leader first does not answer (a stall), then there is none; with the other generations there is
none at once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps.batches import commit
from experiments.studies.sweeps.identity import cell_digests, trial_code_digest
from experiments.studies.sweeps.output import claim, current_versions, record_versions
from experiments.studies.sweeps.storage import Folder
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.batch import Batch, Trial, run_batch
from tests.trace_rows import typed


def fake_trial(parameters: CellParameters, seed: int) -> TrialResult:
    """One outage of partition 0 after half the time; in some trials a loss at its end."""
    random = Random(seed)
    half, minimum = parameters.duration_ms // 2, parameters.min_insync_replicas
    full = parameters.replication_factor

    def state(time_ms: int, partition: int, leader: int, serves: bool, isr_size: int) -> TraceRow:
        return TraceRow(time_ms, "state", partition, -1, leader, serves, isr_size, 0, minimum)

    rows = [state(0, partition, 0, True, full) for partition in range(parameters.partitions)]
    rows.append(TraceRow(half, "crash", node=0, detail="unclean"))
    silent_ms = 1_000 if parameters.generation == "kip-497" else 0
    if silent_ms:
        rows.append(state(half, 0, 0, False, full))
    rows.append(state(half + silent_ms, 0, -1, False, 0))
    back_ms = half + silent_ms + 60_000 + random.randrange(60_000)
    rows.append(state(back_ms, 0, 1, True, 1))
    rows.append(TraceRow(back_ms, "unclean_recovery", 0, 1))
    if random.random() < 0.5:
        rows.append(TraceRow(back_ms, "loss", 0, 1, value=random.randrange(1, 5)))
    rows.append(state(back_ms + 30_000, 0, 1, True, full))
    rows.append(TraceRow(parameters.duration_ms, "end"))
    return TrialResult(typed(rows), hashlib.sha256(repr(rows).encode()).hexdigest(), len(rows))


def claimed(out: Path, study: StudyPlan, trial: Trial = fake_trial) -> tuple[str, ...]:
    """Makes `out` the directory of the study, without Ray; returns the digests of its cells."""
    code = trial_code_digest(trial)
    cells = cell_digests(study, code)
    claim(Folder(out), study, cells)
    record_versions(Folder(out), current_versions(code))
    return cells


def fill(out: Path, study: StudyPlan, batches: list[Batch], trial: Trial = fake_trial) -> None:
    """Runs and commits batches, without Ray."""
    cells = cell_digests(study, trial_code_digest(trial))
    for batch in batches:
        parameters = study.cells[cells.index(batch.cell)].parameters
        commit(Folder(out), batch, *run_batch(trial, parameters, batch, study.seed, study.pairing))
