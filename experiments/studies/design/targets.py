"""What a study is to show of a setting: how often records may be lost, and for how much of the time writes succeed.

`incidents` is a rate, at most so many a year: `1 in 100y` or `0.1 a year`. `writable` is a share of time, at least so
much of it: `99.99%` or `0.9999`. Neither 0 incidents nor 100 % can be shown by any number of trials, so both are
refused; so are incidents with acks 0, which acknowledges nothing. The metrics that answer are in
`estimation/targets.py`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import Field, model_validator

from experiments.studies.trace.schema import YEAR_MS
from experiments.support.durations import parse_duration_ms
from experiments.support.errors import WrongField
from experiments.support.fields import Finite, Notation, WrittenModel

INCIDENTS, WRITABLE = "incidents", "writable"
_EVERY = re.compile(r"(\d+(?:\.\d+)?) in (\S+)")
_A_YEAR = re.compile(r"(\d+(?:\.\d+)?) a year")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")


def _read_incidents(value: object) -> object:
    text = value if isinstance(value, str) else ""
    if match := _A_YEAR.fullmatch(text):
        return float(match[1])
    if match := _EVERY.fullmatch(text):
        years = parse_duration_ms(match[2]) / YEAR_MS
        return float(match[1]) / years if years > 0.0 else math.inf
    raise ValueError(f"found {value!r}")


def write_incidents(value: object) -> str:
    """`1 in 100y`; `3 a year`."""
    assert isinstance(value, int | float)
    return f"1 in {1.0 / value:.6g}y" if 0.0 < value < 1.0 else f"{value:g} a year"


def _read_writable(value: object) -> object:
    if type(value) in (int, float):
        return value
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"found {value!r}")
    return float(f"{float(match[1]) / 100.0:.12g}")


def write_writable(value: object) -> str:
    """`99.99%`."""
    assert isinstance(value, int | float)
    return f"{100.0 * value:.10g}%"


INCIDENTS_FORM = Notation(
    _read_incidents, write_incidents, "a number of incidents and a time, such as 1 in 100y or 0.1 a year"
)
WRITABLE_FORM = Notation(_read_writable, write_writable, "a percentage such as 99.99%, or a share such as 0.9999")


class Targets(WrittenModel):
    """The targets of a study; at least one is given."""

    incidents: Annotated[Annotated[Finite, Field(gt=0.0)] | None, INCIDENTS_FORM] = Field(
        None, description="Incidents of a cluster in which acknowledged records are lost, at most: `1 in 100y`."
    )
    writable: Annotated[Annotated[Finite, Field(gt=0.0, lt=1.0)] | None, WRITABLE_FORM] = Field(
        None, description="The share of time in which writes succeed, at least: `99.99%`."
    )

    @model_validator(mode="after")
    def _require_one(self) -> Targets:
        if self.incidents is None and self.writable is None:
            raise WrongField("", "no target", "one or more of incidents, writable")
        return self

    def limits(self) -> dict[str, float]:
        """The targets that are given: the largest rate a year, the smallest share of time."""
        found = {INCIDENTS: self.incidents, WRITABLE: self.writable}
        return {name: limit for name, limit in found.items() if limit is not None}
