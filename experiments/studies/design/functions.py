"""What a script adds to a study (`scripting/functions.py`), without the functions: names, units and words, which the
record of the study, the pipeline and the report need."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from experiments.studies.trace.metrics import FRACTION, METRICS, RATE, Metric
from experiments.support.fields import AsTuple, StrictModel

METRIC_NAME = "[a-z][a-z0-9_]*"


class MetricDeclaration(StrictModel):
    """A custom metric: `unit` says whether its value per trial is a count or a share of the trial."""

    name: str = Field(pattern=f"^{METRIC_NAME}$", description="Its key in `gold/cells.json`.")
    unit: Literal["rate", "fraction"] = Field(description="A count per partition-year, or a share of time.")
    meaning: str = Field(description="Its words in the report.")


class CustomFunctions(StrictModel):
    """The custom metrics in the order of their values in `trials/`, and the name of the failure model."""

    metrics: Annotated[tuple[MetricDeclaration, ...], AsTuple] = Field((), description="Custom metrics.")
    failure_model: str | None = Field(None, description="The function that replaces the failures of the parameters.")


def metrics_of(functions: CustomFunctions | None) -> tuple[Metric, ...]:
    """Every metric of a study: the built-in ones, then the custom ones."""
    custom = () if functions is None else functions.metrics
    return (
        *METRICS,
        *(
            Metric(
                item.name,
                item.name,
                FRACTION if item.unit == "fraction" else RATE,
                item.name.replace("_", " "),
                item.meaning,
            )
            for item in custom
        ),
    )
