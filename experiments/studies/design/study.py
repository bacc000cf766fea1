"""A study: one question, asked of many cells (combinations of parameters) by many trials each.

The loader (`loader.py`) turns a study file into a :class:`StudyPlan`. A trial depends on its cell's parameters
(`model.py`) and its seed, and on nothing else; the study says which cells there are, how many trials each gets, and
which metric decides.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from experiments.studies.design.functions import CustomFunctions
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.metrics import METRICS
from experiments.support.fields import StrictModel, Switch, one_of

METRIC_NAMES = [metric.name for metric in METRICS]


_MetricName = Annotated[str, one_of(METRIC_NAMES), Field(json_schema_extra={"enum": METRIC_NAMES})]


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
    objective: _MetricName = Field(
        "loss_rate",
        description="The metric that the question is about: the setting with the lowest value is the best. If a cell "
        "has acks=1 or 0, by default `acknowledged_loss_rate`.",
    )
    equivalence_margin: float | None = Field(
        None,
        gt=0.0,
        description="Relative difference of the objective up to which two cells count as equal; without it the "
        "report calls no cells equivalent.",
    )

    @classmethod
    def key_names(cls) -> list[str]:
        return [name for name in super().key_names() if name != "functions"]


class StudyPlan(StudyHeader):
    """A study as it runs: every cell with all parameters resolved. `source` is the file as the user wrote it, with
    overrides applied, and `text` its YAML with the comments; two plans are of the same study if their sources are
    equal."""

    cells: tuple[Cell, ...] = Field(min_length=1)
    source: dict[str, object]
    text: str

    @property
    def max_trials(self) -> int:
        """The largest number of trials of a cell."""
        return self.precision.max_trials if self.precision is not None else self.trials or 1

    @property
    def has_consumer(self) -> bool:
        """Whether a cell's trials have a consumer, and so `silver/reads`."""
        return any(cell.parameters.consumer != "none" for cell in self.cells)
