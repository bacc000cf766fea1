"""Functions of a script in a study: custom metrics, and a custom failure model.

A *metric* is a function of the rows of one trial (`trace/schema.py`), in time order, whose value is one number per
trial. A rate's value is a count over the trial; the study divides the counts by the partition-years that the trials
observe. A fraction's value is a share of the trial, between 0 and 1. Both are estimated as the built-in metrics are,
with the trial as the unit of sampling, so the function needs no statistics.

A *failure model* is a function of the cell's parameters and a random source, whose value is an iterator of outages
(`failures/sources.py`) in time order; times count from the start of the measurement, in ms. It replaces all other
failures. It must draw from that random source only: the source depends on the seed of the trial, which two cells of a
study have in common, so that they see the same failures if the model depends on the same parameters.

A trial with functions is run in plain sampling: the functions see a whole trial of the original distribution.

Functions travel to Ray's workers by cloudpickle, those of the script itself (`__main__`) by value. They are part of
what a trial is: when the content of a function changes (`content.py`), its trials are run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import OutageKind
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline, warm_up_ms
from experiments.studies.trace.schema import TraceRow, TrialResult
from experiments.studies.trials.trial import run_through, run_trial

MetricFunction = Callable[[Sequence[TraceRow]], float]
"""The rows of one trial -> its value."""
FailureModel = Callable[[CellParameters, Random], Iterable[Outage]]
"""Parameters of the cell, random source of the trial -> outages in time order."""


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A metric of a script.

    `function`: see :data:`MetricFunction`. `unit`: whether its value is a count (`rate`, published per partition-year)
    or a share of the trial (`fraction`). `name`: its key in `gold/cells.json` and its column in data frames; the
    function's name unless given. `meaning`: its words in the report; the first line of the function's docstring unless
    given.
    """

    function: MetricFunction
    unit: Literal["rate", "fraction"] = "rate"
    name: str = ""
    meaning: str = ""

    def value(self, rows: Sequence[TraceRow]) -> float:
        """The value of one trial. Raises ValueError if it is no number of the metric's unit."""
        value = float(self.function(rows))
        if not math.isfinite(value) or value < 0.0 or (self.unit == "fraction" and value > 1.0):
            allowed = "a number from 0 to 1" if self.unit == "fraction" else "a number from 0"
            raise ValueError(f"metric {self.name}: found {value}; allowed: {allowed}")
        return value


@dataclass(frozen=True, slots=True)
class ScriptedTrial:
    """A trial with the functions of a script. `content`: the digest of their content (`content.py`), which is a part of
    what the trial is (`sweeps/identity.py`)."""

    metrics: tuple[CustomMetric, ...]
    failure_model: FailureModel | None
    content: str

    def __call__(self, parameters: CellParameters, seed: int) -> TrialResult:
        """Runs one trial; a pure function of its arguments if the script's functions are."""
        model = self.failure_model
        result = (
            run_trial(parameters, seed)
            if model is None
            else run_through(parameters, seed, lambda: _timeline(model, parameters, seed))
        )
        return replace(result, custom=tuple(metric.value(result.rows) for metric in self.metrics))


def _timeline(model: FailureModel, parameters: CellParameters, seed: int) -> DrawnTimeline:
    """The timeline of a trial with the failures of `model` alone."""
    outages = checked(model(parameters, Random(f"{seed}/failures")), parameters.brokers)
    return DrawnTimeline(parameters, seed, -warm_up_ms(parameters), outages=outages, own_failures=False)


def checked(outages: Iterable[Outage], brokers: int) -> Iterator[Outage]:
    """The outages of a failure model. Raises ValueError for one that no cluster of so many brokers can have."""
    before_ms = -math.inf
    for outage in outages:
        if not isinstance(outage, Outage):
            raise ValueError(f"failure model: found {outage!r}; allowed: Outage(down_ms, up_ms, broker, kind, cause)")
        if outage.down_ms < before_ms:
            raise ValueError(f"failure model: found {outage} after {before_ms} ms; allowed: outages in time order")
        if not 0 <= outage.broker < brokers or outage.up_ms <= outage.down_ms:
            raise ValueError(f"failure model: found {outage}; allowed: brokers 0 to {brokers - 1}, up_ms after down_ms")
        if outage.kind not in get_args(OutageKind):
            raise ValueError(f"failure model: found {outage}; allowed: one of {', '.join(get_args(OutageKind))}")
        before_ms = outage.down_ms
        yield outage
