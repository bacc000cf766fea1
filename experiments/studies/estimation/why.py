"""Why records were lost and writes were not taken, per cell, as `gold/cells.json` has it under `reasons`.

An entry is a metric, the rule that decided, and the failures that made it: how many losses or outages, their weights,
the weighted minutes of a share of time, and the share of the metric that they are. Trials are weighted as for the
metric. `trial` and `seed` are of an example, which `isray study replay` runs again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments.studies.trace.metrics import FRACTIONS
from experiments.studies.trace.reasons import BY_KEY
from experiments.support.errors import InputError

ALLOWED = "what `isray study analyze` writes; run it again"


@dataclass(frozen=True, slots=True)
class Attribution:
    """Of a cell and `metric`: `events` (losses, or outages that began) of `weight`, and weighted partition-`minutes`,
    for `reason` (a key of `trace/reasons.py`) by `causes`; `share` of the metric's value."""

    metric: str
    reason: str
    causes: str
    events: int
    weight: float
    minutes: float
    share: float
    trial: int
    seed: int

    @property
    def sentence(self) -> str:
        """What happened, in words."""
        return BY_KEY[self.reason].sentence


_DOCUMENTS = TypeAdapter(list[dict[str, object]])
_LIST = TypeAdapter(list[Attribution])


def attributions(
    rows: Iterable[Mapping[str, Any]], seed_of: Callable[[int, int], int]
) -> defaultdict[int, list[Attribution]]:
    """The attributions of each cell, by metric and falling share. `rows`: of `gold/reasons`; `seed_of`: the seed of a
    cell's trial."""
    found = list(rows)
    totals: defaultdict[tuple[int, str], float] = defaultdict(float)
    for row in found:
        totals[row["cell"], row["metric"]] += _amount(row)
    cells: defaultdict[int, list[Attribution]] = defaultdict(list)
    for row in found:
        cell, total = row["cell"], totals[row["cell"], row["metric"]]
        own = {name: row[name] for name in ("metric", "reason", "causes", "events", "weight", "minutes", "trial")}
        share = _amount(row) / total if total else 0.0
        cells[cell].append(Attribution(**own, share=share, seed=seed_of(cell, row["trial"])))
    for each in cells.values():
        each.sort(key=lambda it: (it.metric, -it.share, it.reason, it.causes))
    return cells


def documents(found: Iterable[Attribution]) -> list[dict[str, object]]:
    """The value of `reasons` in the document of a cell."""
    return [asdict(each) | {"sentence": each.sentence} for each in found]


def read_attributions(out: Path) -> list[list[Attribution]]:
    """The attributions of each cell of the study in `out`, in its order. Raises InputError for a file of another
    version."""
    path = out / "gold" / "cells.json"
    try:
        cells = _DOCUMENTS.validate_json(path.read_bytes())
        return [_LIST.validate_python([_without_sentence(each) for each in _listed(cell["reasons"])]) for cell in cells]
    except (OSError, ValidationError, KeyError, TypeError) as error:
        raise InputError(str(path), "reasons", "damaged, or of another version", ALLOWED) from error


def _listed(value: object) -> list[dict[str, object]]:
    return TypeAdapter(list[dict[str, object]]).validate_python(value)


def _without_sentence(each: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in each.items() if name != "sentence"}


def _amount(row: Mapping[str, Any]) -> float:
    """What the share of a metric is of: minutes of a share of time, losses by weight."""
    return float(row["minutes"] if row["metric"] in FRACTIONS else row["weight"])
