"""What a terminal shows of a study: its headline, and a table of the numbers that decide, in 80 columns.

The page has all numbers. The table has, per setting, what the study asks (the targets with their answers, or the
objective), and what else decides: how often records are lost, how long writes fail, and how many replicas that takes.
A number that a target is about is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.design.targets import INCIDENTS
from experiments.studies.estimation.estimates import CellEstimates
from experiments.studies.estimation.moments import Estimate
from experiments.studies.estimation.targets import TargetAnswer, measured
from experiments.studies.report import verdict, words
from experiments.studies.report.settings import groups
from experiments.studies.report.targets import target_name
from experiments.studies.trace import metrics
from experiments.studies.trace.metrics import BY_NAME, FRACTION, UNWRITABLE, Metric


@dataclass(frozen=True, slots=True)
class Summary:
    """`headline`: the sentence that answers the study. `columns`: titles, the setting first; `rows`: a text per column
    and setting, in the order of the study, in which a line break separates a number from its interval. `caption`: what
    the numbers are."""

    headline: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


def summary(study: StudyPlan, cells: Sequence[CellEstimates]) -> Summary:
    """What a terminal shows of a study whose cells have these numbers."""
    shown = shown_metrics(study)
    targets = [target_name(each) for each in cells[0].targets]
    rows = tuple(
        (
            words.cell_name(cell.swept),
            *map(_answered, found.targets),
            *(_value(metric, found.estimates[metric.name]) for metric in shown),
            f"{_replicas(cell.parameters):,}",
        )
        for cell, found in zip(study.cells, cells, strict=True)
    )
    columns = ("setting", *targets, *(metric.title for metric in shown), "replicas")
    headline = words.plain(verdict.judge(study, groups(study, cells)).headline)
    together = "those of the targets hold together; " if targets else ""
    caption = f"a year, {'' if study.has_cluster else 'per partition, '}with 95 % intervals; {together}"
    return Summary(headline, columns, rows, f"{caption}the report has all numbers")


def shown_metrics(study: StudyPlan) -> list[Metric]:
    """The objective, the losses and the time in which writes fail, without what a target of the study is about."""
    about = {each.metric.name for each in measured(study.targets, study.cells[0].parameters)}
    has_other_acks = any(cell.parameters.acks != "all" for cell in study.cells)
    losses = metrics.ACKNOWLEDGED_LOSS_RATE if has_other_acks else "loss_rate"
    if metrics.ACKNOWLEDGED_LOSS_RATE in about:
        about.add(losses)
    wanted = dict.fromkeys((study.objective, metrics.INCIDENTS if study.has_cluster else losses, UNWRITABLE))
    return [BY_NAME[name] for name in wanted if name not in about]


def _answered(found: TargetAnswer) -> str:
    """`met: 1 in 52 years`, and the limits below it."""
    if found.name == INCIDENTS:
        value = "none seen" if found.estimate <= 0.0 else words.every(found.estimate)
        return f"{found.verdict}: {value}\n{words.every_between(found.low, found.high)}"
    value, low, high = map(words.minutes, (found.estimate, found.low, found.high))
    limits = f"at most {high}" if found.low <= 0.0 else f"{low} – {high}"
    return f"{found.verdict}: fails {value}\n{limits}"


def _value(metric: Metric, found: Estimate) -> str:
    text = words.minutes if metric.estimator is FRACTION else words.number
    return f"{'not known' if found.degenerate else text(found.estimate)}\n{words.interval(found, text)}"


def _replicas(params: CellParameters) -> int:
    """Copies of a partition; of a whole cluster, of all partitions."""
    if params.cluster is None:
        return params.replication_factor
    return sum(each.size * len(each.replicas) for each in params.cluster.classes)
