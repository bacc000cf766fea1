"""A study: one question, asked of many cells (combinations of parameters) by many trials each.

The loader (`loader.py`) turns a study file into a :class:`StudyPlan`. A trial depends on its cell's parameters
(`model.py`) and its seed, and on nothing else; the study says which cells there are, how many trials each gets, and
which metric decides.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from experiments.studies.design.functions import CustomFunctions
from experiments.studies.design.model import CellParameters, Frozen
from experiments.studies.trace.metrics import METRICS

METRIC_NAMES = [metric.name for metric in METRICS]


def _check_metric(name: str) -> str:
    if name not in METRIC_NAMES:
        raise ValueError(f"allowed: one of {', '.join(METRIC_NAMES)}")
    return name


class Precision(Frozen):
    """Sequential stopping: trials are added until the half-width of the 95 % interval of `metric` is at most
    `relative_error` times its estimate, or `max_trials` is reached."""

    metric: Annotated[
        str,
        AfterValidator(_check_metric),
        Field(description="The rate or share of time that decides.", json_schema_extra={"enum": METRIC_NAMES}),
    ] = "loss_rate"
    relative_error: float = Field(gt=0.0, lt=1.0, description="Half-width divided by estimate.")
    max_trials: int = Field(ge=1, le=10_000_000, description="Trials per cell at most.")


class Cell(Frozen):
    """One combination: `swept` holds the swept parameters as the file gives them, `parameters` all of them resolved."""

    index: int = Field(ge=0)
    swept: dict[str, object]
    parameters: CellParameters


def _read_switch(value: object) -> object:
    """`on` and `off` as text; YAML reads the bare words as booleans. Raises ValueError for anything else."""
    switch = {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value
    if not isinstance(switch, bool):
        raise ValueError("allowed: on or off")
    return switch


class StudyHeader(Frozen):
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
    pairing: Annotated[bool, BeforeValidator(_read_switch)] = Field(
        True,
        description="Whether trial k of all cells sees the same failures (common random numbers), so that cells are "
        "compared by pairs of trials: `on` or `off`.",
        json_schema_extra={"enum": ["on", "off"]},
    )
    functions: CustomFunctions | None = Field(
        None, description="The functions of a script, by name (docs/studies.md); a file cannot give them."
    )
    objective: Annotated[
        str,
        AfterValidator(_check_metric),
        Field(
            description="The metric that the question is about: the setting with the lowest value is the best. If a "
            "cell has acks=1 or 0, by default `acknowledged_loss_rate`.",
            json_schema_extra={"enum": METRIC_NAMES},
        ),
    ] = "loss_rate"
    equivalence_margin: float | None = Field(
        None,
        gt=0.0,
        description="Relative difference of the objective up to which two cells count as equal; without it the "
        "report calls no cells equivalent.",
    )


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
