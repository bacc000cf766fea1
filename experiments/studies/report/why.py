"""The section "Why" of the report: per setting and metric, the rules that decided and the failures that made it.

Losses are those of the metric that the study is about, or the losses with acks=all; times are those in which the
partition is not writable, offline, or refuses acks=all. Reasons below `LEAST` of a metric are one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.why import Attribution
from experiments.studies.report.words import cell_name
from experiments.studies.trace.metrics import BY_NAME, RATES, UNWRITABLE

MOST = 5
LEAST = 0.001
OTHERS = "others"


class Row(NamedTuple):
    """A reason. `share`: of the metric; `events`: losses, or outages that began; `command` runs an example again, empty
    where trials have no second run."""

    share: float
    sentence: str
    causes: str
    events: int
    command: str


class Block(NamedTuple):
    """The reasons of a metric in a setting, the largest share first."""

    setting: str
    title: str
    rows: list[Row]


def blocks(study: StudyPlan, found: Sequence[Sequence[Attribution]]) -> list[Block]:
    """The blocks of a study whose cells have these attributions."""
    losses = study.objective if study.objective in RATES else "loss_rate"
    made: list[Block] = []
    for cell, attributions in zip(study.cells, found, strict=False):
        for metric in dict.fromkeys((losses, UNWRITABLE)):
            own = [each for each in attributions if each.metric == metric and (each.share >= LEAST or each.events)]
            if own:
                again = cell.parameters.engine == "sim" and study.functions is None
                rows = list(_rows(own, cell.index if again else None))
                made.append(Block(cell_name(cell.swept), BY_NAME[metric].title, rows))
    return made


def _rows(own: Sequence[Attribution], cell: int | None) -> Iterator[Row]:
    ordered = sorted(own, key=lambda each: (-each.share, each.reason, each.causes))
    for each in ordered[:MOST]:
        command = "" if cell is None else f"isray study replay . --cell {cell} --trial {each.trial}"
        yield Row(each.share, each.sentence, each.causes, each.events, command)
    rest = ordered[MOST:]
    if rest:
        yield Row(sum(each.share for each in rest), OTHERS, "", sum(each.events for each in rest), "")
