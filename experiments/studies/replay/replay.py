"""Replays a trial of a study: the same seed, the same events, and the part of them that explains a loss.

Of the millions of events of a trial the part is kept that ends shortly after the loss and begins where all replicas of
the partition were in sync for the last time before it; without a loss, the end of the trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.engines.port import Violation
from experiments.engines.sim.engine import kept_metadata
from experiments.engines.sim.memory import rare_collections
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.recorder import INVARIANT, Journal, SimRecorder, What
from experiments.explorer.run import Run
from experiments.story.render import Line
from experiments.studies.design.estimator import choose
from experiments.studies.design.placement import simulated_partitions
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps.batches import committed, disjoint, read_trials
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.sweeps.storage import Location, store_at
from experiments.studies.trace.kinds import Acks1Loss, Loss
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.estimators import trial_to_replay
from experiments.studies.trials.trial import Trial
from experiments.support.errors import InputError
from protocol.events.controller import PartitionChanged
from protocol.ids import NodeId, TimeMs, node_name

KEPT = 100_000
"""Entries that are kept while a trial runs; a loss whose beginning is further back is shown without it."""
BEFORE, AFTER = 60, 100
"""Entries that are shown before the last full ISR and after the loss."""
WITHOUT_LOSS = 20_000
"""Entries that are shown of a trial without a loss, the last ones."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A trial that was run again: how many losses it counts, and the part to explore. `loss`: the number of the loss
    that the part explains, None if there is none."""

    seed: int
    trace_hash: str
    losses: int
    loss: int | None
    run: Run

    def story(self, lines: int) -> list[str]:
        """The last lines of the part's story, in words."""
        rows = self.run.story[-lines:]
        return [str(Line(row.event, row.text, row.time_ms, row.node, row.is_heading)) for row in rows]


class _Losses(list[Violation]):
    """The losses among the rows of a trial while it runs, as violations; its length takes in the rows that are new."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._cluster = trial, trial.params.cluster
        self._names = [each.name for each in simulated_partitions(trial.params)]
        self._seen = 0

    def __len__(self) -> int:
        rows = self._trial.rows
        for row in rows[self._seen :] if len(rows) > self._seen else ():
            loss = row.what
            if isinstance(loss, Loss | Acks1Loss):
                place = self._names[loss.partition]
                records = "record is" if loss.records == 1 else "records are"
                lost = f"{loss.records} acknowledged {records}"
                text = f"{place}: {lost} missing from the log of {node_name(loss.leader)}"
                if self._cluster is not None:
                    text += f" (stands for {self._cluster.name_of(loss.partition)})"
                self.append(Violation(INVARIANT, self._trial.cluster.now_ms, text))
        self._seen = len(rows)
        return super().__len__()


class _UntilLoss(SimRecorder):
    """Records until some entries after the loss with the number `loss`."""

    def __init__(self, trial: Trial, loss: int) -> None:
        self.losses, self._loss = _Losses(trial), loss
        super().__init__(trial.cluster, (), self.losses, KEPT)

    def _append(self, time_ms: TimeMs, node: NodeId, what: What) -> int:
        """Nothing is added once there is enough: in a large cluster the loss would soon be among what is dropped."""
        return self.count if self._has_enough() else super()._append(time_ms, node, what)

    def _has_enough(self) -> bool:
        numbers = self.violation_numbers
        return self._loss < len(numbers) and self.count - numbers[self._loss] > AFTER


def replay(study: StudyPlan, cell: int, trial: int, loss: int = 0) -> Replayed:
    """Runs a trial again and keeps the part that explains a loss: `loss` counts from 0. InputError for a cell that the
    study does not have, and for a trial on processes, which has no other run."""
    if not 0 <= cell < len(study.cells):
        raise InputError("--cell", "", str(cell), f"0 to {len(study.cells) - 1}: the study's cells in their order")
    found = study.cells[cell]
    params = found.parameters
    if params.engine != "sim":
        raise InputError("--cell", "", f"cell {cell}, which runs on processes", "a cell on the simulator")
    seed = trial_seed(study.seed, trial, None if study.pairing else params)
    running = trial_to_replay(params, seed)
    records = kept_metadata(running.cluster)
    recorder = _UntilLoss(running, loss)
    with rare_collections():
        result = running.run()
    losses = len(recorder.losses)
    chosen = loss if loss < losses else None
    title = f"{study.name}, {found.name or 'the one setting'}, trial {trial}"
    facts = [
        ("generation", params.generation),
        ("estimator", choose(params).estimator),
        ("seed", str(seed)),
        ("losses in the trial", str(losses)),
        ("trace", result.trace_hash),
    ]
    part = part_of(recorder.journal(), recorder.violation_numbers, chosen)
    run = run_of_journal(part, title, facts, running.cluster.spec, records)
    note = "The trial has no such loss; this is its end."
    if chosen is not None:
        note = f"Loss {chosen + 1} of {losses}, from the last time before it that all replicas were in sync."
    return Replayed(seed, result.trace_hash, losses, chosen, replace(run, notes=[note]))


def part_of(journal: Journal, losses: Sequence[int], loss: int | None) -> Journal:
    """The part of a journal that explains the loss at the entry with the number `losses[loss]`."""
    entries = journal.entries
    if loss is None:
        begin = max(0, len(entries) - WITHOUT_LOSS)
        return Journal(entries[begin:], journal.first + begin)
    place = losses[loss] - journal.first
    found = entries[place].what
    assert isinstance(found, Violation)
    partition = found.detail.partition(":")[0]
    all_in_sync = (
        index
        for index in range(place, -1, -1)
        if isinstance(what := entries[index].what, PartitionChanged)
        and str(what.partition) == partition
        and len(what.isr) == len(what.replicas)
    )
    begin = max(0, next(all_in_sync, 0) - BEFORE)
    return Journal(entries[begin : place + AFTER], journal.first + begin)


def recorded_trace(out: Location, record: StudyRecord, cell: int, trial: int) -> str | None:
    """The trace hash of a stored trial; None without it, or for splitting, which replays another path."""
    if choose(record.study.cells[cell].parameters).estimator == "splitting":
        return None
    store, digest = store_at(out), record.cells[cell]
    for batch in disjoint(committed(store), {digest}):
        if batch.first <= trial < batch.stop:
            return str(read_trials(store, batch)["trace_hash"][trial - batch.first])
    return None
