"""Studies with made-up trials: their numbers as the pipeline's would be, for tests of what the report says of them."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.estimates import CellEstimates, CellSums, FailoverTimes, estimate_cells
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import Products
from experiments.studies.estimation.times import Times
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.trace.metrics import FRACTIONS, METRICS

TRIALS = 100
RUNS = [{"isray": "0.1.0", "ray": "2", "pyspark": "4", "python": "3", "git_revision": None}]


def cell_like(base: CellParameters, **changes: object) -> CellParameters:
    return CellParameters.model_validate(dict(base) | changes)


def study_of(name: str = "s", **fields: object) -> StudyPlan:
    """A study of `TRIALS` trials per cell."""
    return study_from({"name": name, "trials": TRIALS, **fields}, f"{name}.yaml")


def record_of(study: StudyPlan) -> StudyRecord:
    """The record of a study that has run."""
    return StudyRecord(study, RUNS)


def cells_of(study: StudyPlan, losses: Sequence[int], **shares: Sequence[float]) -> list[CellEstimates]:
    """Cells of `TRIALS` trials of one year, each with one loss of two records in as many of the first trials as
    `losses` says, and by column of a share of time (`offline`, `refuses`, `stalled`) the share of each cell, which
    differs a little between trials and is in 50 episodes each. Pairs of trials have their losses in common."""
    columns = [
        _columns(losses[index], {name: values[index] for name, values in shares.items()})
        for index in range(len(losses))
    ]
    cells = [_sums(column, lost) for column, lost in zip(columns, losses, strict=True)]

    def products_with(reference: int) -> dict[tuple[int, str], Products]:
        found = {}
        for index, column in enumerate(columns):
            for metric in METRICS:
                mine, its = column[metric.column], columns[reference][metric.column]
                both = sum(x * y for x, y in zip(mine, its, strict=True))
                differing = sum(x != y for x, y in zip(mine, its, strict=True))
                found[index, metric.name] = Products(TRIALS, both, sum(mine), sum(its), float(TRIALS), differing)
        return found

    return estimate_cells(study, cells, products_with)


def times_of(*buckets: tuple[float, float]) -> Times:
    """Times with these buckets (the longest time in ms, the share of times up to it) and quantiles that fit them."""
    p50, p99 = (next(up_to for up_to, share in buckets if share >= level) for level in (0.5, 0.99))
    return Times(FailoverTimes(p50, p99, buckets[-1][0], buckets[0][0], p99, p50, None, 50), buckets)


def _columns(lost: int, shares: dict[str, float]) -> dict[str, list[float]]:
    values = {"losses": [1.0] * lost + [0.0] * (TRIALS - lost)}
    values["acknowledged_losses"] = values["losses"]
    values["lost_records"] = [2.0 * value for value in values["losses"]]
    values |= {name: [share * (0.9 + 0.002 * trial) for trial in range(TRIALS)] for name, share in shares.items()}
    return {metric.column: values.get(metric.column, [0.0] * TRIALS) for metric in METRICS}


def _sums(column: dict[str, list[float]], lost: int) -> CellSums:
    exposure = [1.0] * TRIALS
    events = {metric.name: 50 * TRIALS if metric.name in FRACTIONS else lost for metric in METRICS}
    sums = {metric.name: Sums.of(column[metric.column], exposure, events[metric.name]) for metric in METRICS}
    times = FailoverTimes(9_000.0, 90_000.0, 95_000.0, 8_000.0, 11_000.0, 70_000.0, None, 50)
    return CellSums(TRIALS, float(TRIALS), sums, times)
