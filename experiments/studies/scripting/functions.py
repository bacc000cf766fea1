"""Functions of a script in a study: custom metrics, and a custom failure model (docs/studies-in-python.md).

Metrics are estimated as the built-in ones are, with the trial as the unit of sampling. A failure model must draw from
its random source only: the source depends on the seed of the trial, which two cells of a study have in common, so that
they see the same failures if the model depends on the same parameters. A trial with functions is run in plain sampling.

Functions are sent to Ray's workers by cloudpickle, those of the script itself (`__main__`) by value. When the content
of a function changes, its trials are run again (`sweeps/identity.py`). What a function returns is checked, and what it
raises is caught: both end the study with one line (`InputError`).
"""

from __future__ import annotations

import math
import numbers
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from experiments.studies.design.impairments import IMPAIRMENTS, SLOW_DISK
from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import KINDS, OUTAGES
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline, warm_up_ms
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.trial import run_through
from experiments.support.errors import InputError

SOURCE = "Study"
"""What errors name instead of a file."""
MetricFunction = Callable[[Sequence[TraceRow]], float]
FailureModel = Callable[[CellParameters, Random], Iterable[Outage]]
"""Parameters of the cell, random source of the trial -> outages in time order."""


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A metric of a script.

    `function`: the rows of one trial -> its value. `unit`: whether that is a count (`rate`, published per
    partition-year) or a share of the trial (`fraction`). `name`: its key in `gold/cells.json` and its column in data
    frames; the function's name unless given. `meaning`: its words in the report; the first line of the function's
    docstring unless given.
    """

    function: MetricFunction
    unit: Literal["rate", "fraction"] = "rate"
    name: str = ""
    meaning: str = ""

    def value(self, rows: Sequence[TraceRow]) -> float:
        """The value of one trial. Raises InputError if the function raises or returns no such number."""
        place = f"metrics.{self.name}"
        with _reported(place):
            value = self.function(rows)
        most = 1.0 if self.unit == "fraction" else math.inf
        if not isinstance(value, numbers.Real) or not math.isfinite(value) or not 0.0 <= value <= most:
            allowed = "a number from 0 to 1" if self.unit == "fraction" else "a number from 0"
            raise InputError(SOURCE, place, _shown(value), allowed)
        return float(value)


@dataclass(frozen=True, slots=True)
class ScriptedTrial:
    """A trial with the functions of a script. `content`: the digest of their content."""

    metrics: tuple[CustomMetric, ...]
    failure_model: FailureModel | None
    content: str

    def __call__(self, parameters: CellParameters, seed: int) -> TrialResult:
        """Runs one trial; a pure function of its arguments if the script's functions are."""
        model = self.failure_model

        def timeline() -> DrawnTimeline:
            begins_ms = -warm_up_ms(parameters)
            if model is None:
                return DrawnTimeline(parameters, seed, begins_ms)
            outages = checked(model, parameters, Random(f"{seed}/failures"))
            return DrawnTimeline(parameters, seed, begins_ms, outages=outages, own_failures=False)

        result = run_through(parameters, seed, timeline)
        rows = [row.row() for row in result.rows]
        return replace(result, custom=tuple(metric.value(rows) for metric in self.metrics))


_OUTAGES = "Outage(down_ms, up_ms, broker, kind, cause) one after the other"


def checked(model: FailureModel, parameters: CellParameters, random: Random) -> Iterator[Outage]:
    """The outages of a failure model. InputError if it raises, or for outages that no such cluster can have."""
    place, before_ms = "failure_model", -math.inf
    with _reported(place):
        returned: object = model(parameters, random)
    if not isinstance(returned, Iterable):
        raise InputError(SOURCE, place, _shown(returned), f"an iterable of {_OUTAGES}")
    with _reported(place):
        outages = iter(returned)
    end = object()
    while True:
        with _reported(place):
            outage = next(outages, end)
        if outage is end:
            return
        allowed = _wrong(outage, parameters, before_ms)
        if allowed:
            raise InputError(SOURCE, place, _shown(outage), allowed)
        assert isinstance(outage, Outage)
        before_ms = outage.down_ms
        yield outage


def _wrong(outage: object, parameters: CellParameters, before_ms: float) -> str:
    """What is allowed instead of an outage that follows one at `before_ms`; empty for one that is right."""
    if not isinstance(outage, Outage):
        return _OUTAGES
    if not all(isinstance(each, numbers.Integral) for each in (outage.down_ms, outage.up_ms, outage.broker)):
        return "whole numbers for down_ms and up_ms (milliseconds) and broker"
    if outage.down_ms < before_ms:
        return f"outages in time order, so from {before_ms} ms on"
    brokers = parameters.brokers
    if not 0 <= outage.broker < brokers or outage.up_ms <= outage.down_ms:
        return f"brokers 0 to {brokers - 1}, up_ms after down_ms"
    if outage.kind not in KINDS or (outage.kind in IMPAIRMENTS and parameters.generation == "v3"):
        return f"as kind one of {', '.join(KINDS if parameters.generation != 'v3' else OUTAGES)}"
    if outage.kind == SLOW_DISK and parameters.engine == "ray":
        return "slow-disk with engine sim"
    if not isinstance(outage.cause, str) or not isinstance(outage.holds, bool):
        return "a text as cause, and True or False as holds"
    return ""


@contextmanager
def _reported(place: str) -> Iterator[None]:
    """Turns what a function of the script raises into one line, with the place in its code."""
    try:
        yield
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
        raise InputError(SOURCE, place, found, "a function that raises nothing") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
