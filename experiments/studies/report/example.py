"""An example of a loss: the first one among the study's trials, of the reference setting if it has one, run again on
the simulator (`replay/`), in ten lines of its story; `loss.html` beside the report explores the run.

Trials on processes have no second run, and are not shown; neither is a trial of other code, which runs differently now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from experiments.explorer.page import write_page
from experiments.explorer.run import StoryRow
from experiments.studies.replay.replay import replay
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import listed, milliseconds
from experiments.studies.sweeps.batches import committed, disjoint, read_trials
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.sweeps.storage import Store
from protocol.ids import node_name

LINES, LINES_AFTER = 10, 1
EVENTS = ("losses_events", "acks_1_losses_events")


@dataclass(frozen=True, slots=True)
class StoryLine:
    """A line of the story: the time before the loss (or after it), the node, what happened."""

    time: str
    node: str
    text: str
    is_loss: bool


@dataclass(frozen=True, slots=True)
class Example:
    """A loss: in which setting, trial and seed, when in the trial, its story, and how to run it again."""

    setting: str
    trial: int
    seed: int
    when: str
    story: tuple[StoryLine, ...]
    command: str
    page: str


def example_of(record: StudyRecord, groups: Sequence[Group], store: Store, page: Path) -> Example | None:
    """The first loss of the study whose trials are in `store`; writes its run to `page`. None if there is none."""
    order = [group.reference for group in groups] + [other for group in groups for other in group.others]
    for setting in order if record.study.functions is None else ():
        found = _first_losing_trial(record, setting, store) if setting.parameters.engine == "sim" else None
        if found is not None:
            return _example(record, setting, found, page)
    return None


def _first_losing_trial(record: StudyRecord, setting: Setting, store: Store) -> tuple[int, str] | None:
    """The number and the trace hash of the first trial that lost records."""
    digest = record.cells[setting.index]
    for batch in sorted(disjoint(committed(store), {digest}), key=lambda batch: batch.first):
        table = read_trials(store, batch).select(["trial", "trace_hash", *EVENTS]).to_pylist()
        losing = [(row["trial"], row["trace_hash"]) for row in table if any(row[name] for name in EVENTS)]
        if losing:
            return min(losing)
    return None


def _example(record: StudyRecord, setting: Setting, losing: tuple[int, str], page: Path) -> Example | None:
    """The trial, run again; None if its trace is another one now, as the trial's code has changed since."""
    trial, trace_hash = losing
    found = replay(record.study, setting.index, trial)
    if found.loss is None or found.trace_hash != trace_hash:
        return None
    write_page(page, found.run)
    lines, lost_ms = story_of(found.run.story)
    return Example(
        setting=setting.full_name,
        trial=trial,
        seed=found.seed,
        when=milliseconds(lost_ms),
        story=lines,
        command=f"isray study replay . --cell {setting.index} --trial {trial} --html {page.name}",
        page=page.name,
    )


def story_of(story: Iterable[StoryRow]) -> tuple[tuple[StoryLine, ...], float]:
    """The lines of a run's story that end with the loss, and its time in ms since the cluster began."""
    rows = [row for row in story if row.is_heading or _matters(row.text.strip())]
    at = next(index for index, row in enumerate(rows) if _is_loss(row))
    lost_ms = next((row.time_ms for row in reversed(rows[:at]) if row.time_ms is not None), 0)
    shown = _joined(rows[: at + 1 + LINES_AFTER])
    alerts = [row for row in shown if row.text.startswith("ALERT")][: max(0, len(shown) - LINES)]
    shown = [row for row in shown if row not in alerts][-LINES:]
    return tuple(_line(row, rows, lost_ms) for row in shown), float(lost_ms)


def _joined(rows: Sequence[StoryRow]) -> list[StoryRow]:
    """The lines, one for all nodes to which the same happens at once: `broker-0 and broker-1: each starts`."""
    found: list[StoryRow] = []
    for what, group in groupby(rows, key=lambda row: row.text.partition(" ")[2] if row.is_heading else row):
        same = list(group)
        if len(same) > 1 and isinstance(what, str) and not _is_loss(same[0]):
            nodes = listed([row.text.partition(" ")[0] for row in same])
            same = [replace(same[-1], text=f"{nodes}: each {what}")]
        found += same
    return found


def _matters(text: str) -> bool:
    """Whether a line is about elections, or the loss."""
    return text.startswith(("ALERT", "leads ")) or ("epochs " in text and "ISR" in text)


def _is_loss(row: StoryRow) -> bool:
    return row.is_heading and row.text.startswith("violated")


def _line(row: StoryRow, rows: Iterable[StoryRow], lost_ms: int) -> StoryLine:
    time_ms = lost_ms if _is_loss(row) else row.time_ms
    if time_ms is None:
        time_ms = next(
            (other.time_ms for other in rows if other.event >= row.event and other.time_ms is not None), lost_ms
        )
    before = lost_ms - time_ms
    time = f"{milliseconds(abs(before))} {'before' if before > 0 else 'after'}" if before else "the loss"
    node = "" if row.node is None else node_name(row.node)
    return StoryLine(time, node, row.text.strip().removeprefix("violated: AcknowledgedRecordsLost: "), _is_loss(row))
