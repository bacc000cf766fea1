"""A study: one question, asked of many cells (combinations of parameters) by many trials each.

A study compares settings under the same assumptions. Cells that differ in an assumption (how often machines fail, how
large the cluster is, how trials are sampled) are answers to different questions: none of them is better than another,
since an operator does not choose how machines fail. So cells are compared within groups that share all assumptions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from experiments.studies.design.model import CellParameters
from experiments.studies.design.targets import Targets
from experiments.studies.trace.metrics import (
    CLUSTER_METRICS,
    ESTIMATORS,
    INCIDENTS,
    METRICS,
    SOME_UNWRITABLE,
    Metric,
    topic_metric,
)
from experiments.support.fields import AsTuple, StrictModel, Switch, one_of

METRIC_NAME = "[a-z][a-z0-9_]*"


class MetricDeclaration(StrictModel):
    """A custom metric: `unit` says whether its value per trial is a count or a share of the trial."""

    name: str = Field(pattern=f"^{METRIC_NAME}$", description="Its key in `gold/cells.json`.")
    unit: Literal["rate", "fraction"] = Field(description="A count per partition-year, or a share of time.")
    meaning: str = Field(description="Its words in the report.")


class CustomFunctions(StrictModel):
    """What the record of a study, the pipeline and the report need of the functions that a script adds
    (`scripting/functions.py`): the metrics in the order of their values in `trials/`, the name of the failure model."""

    metrics: Annotated[tuple[MetricDeclaration, ...], AsTuple] = Field((), description="Custom metrics.")
    failure_model: str | None = Field(None, description="The function that replaces the failures of the parameters.")


METRIC_NAMES = [metric.name for metric in METRICS]
_MetricName = Annotated[str, one_of(METRIC_NAMES), Field(json_schema_extra={"enum": METRIC_NAMES})]
OBJECTIVES = [*METRIC_NAMES, INCIDENTS, SOME_UNWRITABLE]
_Objective = Annotated[str, one_of(OBJECTIVES), Field(json_schema_extra={"enum": OBJECTIVES})]
MOST_TOPICS = 20
"""So many topics of a cluster have numbers of their own, those with most partitions."""


class StudyModel(StrictModel):
    """Base of what a study is made of."""

    UNKNOWN = "an unknown field"


class Precision(StudyModel):
    """Sequential stopping: trials are added until the half-width of the 95 % interval of `metric` is at most
    `relative_error` times its estimate, or `max_trials` is reached."""

    model_config = ConfigDict(strict=False)

    metric: _MetricName = Field("loss_rate", description="The rate or share of time that decides.")
    relative_error: float = Field(gt=0.0, lt=1.0, description="Half-width divided by estimate.")
    max_trials: int = Field(ge=1, le=10_000_000, description="Trials per cell at most.")


class Cell(StudyModel):
    """One combination: `swept` holds the swept parameters as the file gives them, `parameters` all of them resolved."""

    index: int = Field(ge=0)
    swept: dict[str, object]
    parameters: CellParameters

    @property
    def name(self) -> str:
        """The swept parameters, as the file gives them."""
        return ", ".join(f"{name} {value}" for name, value in self.swept.items())


class StudyHeader(StudyModel):
    """The fields that a study has as its file gives them. Exactly one of `trials` and `precision` is set."""

    name: str = Field(min_length=1, description="Name of the study, in tables and in the report.")
    question: str | None = Field(None, description="The question, as the report's headline.")
    engine: Literal["sim", "ray"] = Field(
        "sim", description="What runs the trials of all cells; `sweep`, `zip` or `cells` may list both engines instead."
    )
    seed: int = Field(0, ge=0, description="The seed that the seeds of all trials are derived from.")
    trials: int | None = Field(None, ge=1, description="Trials per cell; either this or `precision`.")
    precision: Precision | None = Field(
        None,
        description="Adds trials to a cell until the interval of a rate is narrow enough; either this or `trials`.",
    )
    pairing: Switch = Field(
        True,
        description="Whether trial k of all cells sees the same failures (common random numbers), so that cells are "
        "compared by pairs of trials: `on` or `off`.",
    )
    functions: CustomFunctions | None = Field(
        None, description="The functions of a script, by name (docs/studies.md); a file cannot give them."
    )
    objective: _Objective = Field(
        "loss_rate",
        description="The metric that the question is about: the setting with the lowest value is the best. If a cell "
        "has acks=1 or 0, by default `acknowledged_loss_rate`; of a cluster, `incidents_per_year`.",
    )
    equivalence_margin: float | None = Field(
        None,
        gt=0.0,
        description="Relative difference of the objective up to which two cells count as equal; without it the "
        "report calls no cells equivalent.",
    )
    targets: Targets | None = Field(
        None,
        description="What a setting has to meet: `incidents` at most (`1 in 100y`, `0.1 a year`), and the share of "
        "time in which it is `writable` at least (`99.99%`). The report says which setting meets them, and which is "
        "the cheapest of these: the one with the fewest replicas; of these one that a replica down does not stop, "
        "with the most copies that are acknowledged.",
    )

    @classmethod
    def key_names(cls) -> list[str]:
        return [name for name in super().key_names() if name != "functions"]


class StudyPlan(StudyHeader):
    """A study as it runs, all parameters resolved. `source` is the file as the user wrote it, with overrides applied,
    and `text` its YAML with the comments; plans with equal sources are of the same study."""

    cells: tuple[Cell, ...] = Field(min_length=1)
    source: dict[str, object]
    text: str

    @property
    def max_trials(self) -> int:
        """The largest number of trials of a cell."""
        return self.precision.max_trials if self.precision is not None else self.trials or 1

    @property
    def has_cluster(self) -> bool:
        """Whether the cells are whole clusters; all are or none."""
        return self.cells[0].parameters.cluster is not None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of all cells' clusters that have numbers of their own, those with most partitions first."""
        sizes = Counter[str]()
        for cluster in (cell.parameters.cluster for cell in self.cells):
            for each in () if cluster is None else cluster.classes:
                sizes.update({cluster.topics[topic]: count for topic, count, _ in each.members} if cluster else {})
        return tuple(sorted(sizes, key=lambda topic: (-sizes[topic], topic))[:MOST_TOPICS])

    @property
    def has_consumer(self) -> bool:
        """Whether a cell's trials have a consumer, and so `silver/reads`."""
        return any(cell.parameters.consumer != "none" for cell in self.cells)


def metrics_of(plan: StudyPlan) -> tuple[Metric, ...]:
    """Every metric of a study: the built-in ones, those of a whole cluster and its topics, then the custom ones."""
    functions = plan.functions
    custom = (
        Metric(item.name, item.name, ESTIMATORS[item.unit], item.name.replace("_", " "), item.meaning)
        for item in (() if functions is None else functions.metrics)
    )
    clusters = (*CLUSTER_METRICS, *map(topic_metric, plan.topics)) if plan.has_cluster else ()
    return (*METRICS, *clusters, *custom)


DECISIONS = frozenset(
    {"generation", "kafka_release", "replication_factor", "min_insync_replicas", "unclean_recovery_strategy", "acks"}
    | {"detection", "flush_interval", "placement", "rolling_restart", "reassignments", "delivery_timeout", "cluster"}
)
"""The parameters, by their names in study files, that are settings of a cluster; all others are assumptions."""


def decided(swept: Mapping[str, object]) -> dict[str, object]:
    """The swept parameters that are decisions, in the order of the file."""
    return {name: value for name, value in swept.items() if name in DECISIONS}


def assumed(swept: Mapping[str, object]) -> dict[str, object]:
    """The swept parameters that are assumptions, in the order of the file."""
    return {name: value for name, value in swept.items() if name not in DECISIONS}


def groups_of(cells: Sequence[Cell]) -> tuple[tuple[int, ...], ...]:
    """The positions of the cells that share all assumptions, group by group, in the order of their first cells."""
    groups: dict[str, list[int]] = {}
    for position, cell in enumerate(cells):
        groups.setdefault(json.dumps(assumed(cell.swept), sort_keys=True, default=str), []).append(position)
    return tuple(tuple(group) for group in groups.values())
