"""A study: one question, asked of many cells (combinations of parameters) by many trials each.

The types here are resolved: durations are whole milliseconds, `instant` and `never` are None, every parameter has a
value. What users write is the loader's matter (`loader.py`). A cell's parameters are all that a trial may depend on,
beside its seed.

Model (the project's interfaces, section 2). Brokers fail independently: the time to failure while up is drawn from
`broker_mttf`, the time to repair from `broker_mttr`. A crash is unclean with `unclean_probability` (it leaves no
clean-shutdown file), and an unclean crash loses the unflushed tail of its logs with `tail_loss_probability`. Power
events (a Poisson process for the cluster) crash all running brokers unclean at once. The controller learns of a crash
after `detection_ms`. Catch-up is immediate and writes are continuous: every change of the ISR is followed by an
acknowledged write if one is possible. With these, small cases have closed-form Markov answers to hold a study
against.
"""

from __future__ import annotations

import math
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

YEAR_MS = 365 * 86_400_000
DAY_MS = 86_400_000
MINUTE_MS = 60_000

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Generation = Literal["kip-497", "kip-966-elr", "kip-966"]
RateMetric = Literal[
    "loss_rate", "lost_records_per_year", "unclean_recoveries_per_year", "high_watermark_regressions_per_year"
]


class Frozen(BaseModel):
    """Base of all study types: immutable, hashable where its fields are, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Distribution(Frozen):
    """A positive random time with the given mean.

    `shape`: Weibull's k (below 1: young machines fail more), or the log-normal's sigma; the others have none.
    """

    dist: Literal["exponential", "weibull", "lognormal", "constant"] = "exponential"
    mean_ms: int = Field(gt=0)
    shape: float | None = Field(default=None, gt=0.0)

    @model_validator(mode="after")
    def _shape_belongs(self) -> Distribution:
        if (self.shape is not None) != (self.dist in ("weibull", "lognormal")):
            raise ValueError("allowed: shape with weibull and lognormal, and only there")
        return self

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


class CellParameters(Frozen):
    """All that a trial depends on beside its seed. `detection_ms` None: an oracle tells the controller at once.
    `flush_interval_ms` None: never flushed. `power_events_per_year`: per cluster and year of 365 days."""

    generation: Generation = "kip-966"
    brokers: int = Field(default=3, ge=1, le=999)
    partitions: int = Field(default=1, ge=1)
    replication_factor: int = Field(default=3, ge=1)
    min_insync_replicas: int = Field(default=2, ge=1)
    unclean_recovery_strategy: Literal["proactive", "balanced", "manual"] = "balanced"
    acks: Literal["0", "1", "all"] = "all"
    broker_mttf: Distribution = Distribution(mean_ms=130 * DAY_MS)
    broker_mttr: Distribution = Distribution(mean_ms=15 * MINUTE_MS)
    unclean_probability: Probability = 1.0
    tail_loss_probability: Probability = 0.1
    detection_ms: int | None = Field(default=9_000, gt=0)
    flush_interval_ms: int | None = Field(default=None, gt=0)
    power_events_per_year: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    duration_ms: int = Field(default=YEAR_MS, gt=0)

    @model_validator(mode="after")
    def _fits_the_cluster(self) -> CellParameters:
        if self.replication_factor > self.brokers:
            raise ValueError(f"replication_factor {self.replication_factor} on {self.brokers} brokers")
        return self

    @property
    def partition_years(self) -> float:
        """What one trial observes, in partition-years."""
        return self.partitions * self.duration_ms / YEAR_MS


class Precision(Frozen):
    """Sequential stopping: trials are added until the half-width of the 95 % interval of `metric` is at most
    `relative_error` times its estimate, or `max_trials` is reached."""

    metric: RateMetric = "loss_rate"
    relative_error: float = Field(gt=0.0, lt=1.0)
    max_trials: int = Field(ge=1, le=10_000_000)


class Cell(Frozen):
    """One combination: `swept` holds the swept parameters as the file gives them, `parameters` all of them resolved."""

    index: int = Field(ge=0)
    swept: dict[str, object]
    parameters: CellParameters


class Study(Frozen):
    """A study as it runs. Exactly one of `trials` and `precision` is set. `source` is the file as the user wrote it,
    with overrides applied: it is what decides whether a directory holds this study or another."""

    name: str
    question: str | None
    engine: Literal["sim"]
    seed: int
    trials: int | None = Field(ge=1)
    precision: Precision | None
    cells: tuple[Cell, ...] = Field(min_length=1)
    source: dict[str, object]

    @property
    def max_trials(self) -> int:
        """The largest number of trials a cell may get."""
        if self.precision is not None:
            return self.precision.max_trials
        return self.trials or 1
