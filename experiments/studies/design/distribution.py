"""Random times: the distributions that a study file may give for times to failure and times to repair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Annotated, Literal

from pydantic import Field, model_validator

from experiments.support.durations import parse_duration_ms
from experiments.support.fields import DURATION, DurationMs, Notation, WrittenModel


class Distribution(WrittenModel):
    """A positive random time with the given mean.

    `shape`: Weibull's k (below 1: the hazard falls with age), or the log-normal's sigma; the others have none.
    """

    UNKNOWN = "an unknown field"

    dist: Literal["exponential", "weibull", "lognormal", "constant"] = "exponential"
    mean_ms: DurationMs = Field(gt=0)
    shape: float | None = Field(default=None, gt=0.0)

    @model_validator(mode="after")
    def _check_shape(self) -> Distribution:
        if (self.shape is not None) != (self.dist in ("weibull", "lognormal")):
            raise ValueError("allowed: shape with weibull and lognormal, and only there")
        return self

    @classmethod
    def allowed_in(cls, key: str) -> str:
        return ""

    def sample_ms(self, random: Random) -> int:
        """A draw in whole milliseconds, at least 1."""
        if self.dist == "constant":
            return self.mean_ms
        if self.dist == "exponential":
            return max(1, round(random.expovariate(1.0 / self.mean_ms)))
        shape = self.shape or 1.0
        if self.dist == "weibull":
            return max(1, round(random.weibullvariate(self.mean_ms / math.gamma(1.0 + 1.0 / shape), shape)))
        return max(1, round(random.lognormvariate(math.log(self.mean_ms) - shape * shape / 2.0, shape)))


def _read(value: object) -> object:
    if isinstance(value, Mapping):
        return value
    parse_duration_ms(value)
    return {"mean": value}


def _write(value: object) -> str:
    assert isinstance(value, Distribution)
    shape = "" if value.shape is None else f", shape {value.shape:g}"
    return f"{value.dist}, mean {DURATION.write(value.mean_ms)}{shape}"


DISTRIBUTION = Notation(
    _read,
    _write,
    f"the mean of an exponential distribution ({DURATION.form}), "
    "or {dist: exponential | weibull | lognormal | constant, mean: DURATION, shape: NUMBER}",
)
"""A bare duration is the mean of an exponential distribution; a mapping gives `dist`, `mean` and `shape`."""
RandomTime = Annotated[Distribution, DISTRIBUTION]
