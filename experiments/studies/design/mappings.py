"""Parameters whose values are mappings, such as `burst: {per_year: 2, size: 2, window: 2m}`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, cast

from pydantic import Field, model_validator

from experiments.studies.design.distribution import DISTRIBUTION, Distribution, RandomTime
from experiments.studies.design.impairments import MOST_PER_YEAR, CauseName, listed_or_none
from experiments.support.errors import WrongField
from experiments.support.fields import (
    BYTES,
    BYTES_PER_SECOND,
    AsTuple,
    DurationMs,
    Finite,
    Notation,
    WrittenModel,
    word_or,
)

BURST = "burst"
"""The name of a cause of bursts without another, and what the causes of bursts begin with in a trace."""


class Burst(WrittenModel):
    """Failures of several brokers within a short window. An event strikes `size` random brokers of the cluster, or each
    broker with probability `fraction`; with probability `same_rack`, only brokers of one random rack. Each fails at a
    uniform time of the window. `down`: one down time for all of an event; without it each has its own repair time.
    `name`: of the cause, where a study has several."""

    name: CauseName = BURST
    per_year: Finite | None = Field(None, gt=0, le=MOST_PER_YEAR, description="bursts per cluster-year")
    per_broker_year: Finite | None = Field(
        None, gt=0, le=MOST_PER_YEAR, description="bursts that strike a given broker, a year"
    )
    size: int | None = Field(None, ge=1)
    fraction: Finite | None = Field(None, gt=0, le=1)
    window_ms: DurationMs = Field(120_000, ge=0)
    same_rack: Finite = Field(0.0, ge=0, le=1)
    down: Annotated[Distribution | None, DISTRIBUTION] = None

    @model_validator(mode="after")
    def _check(self) -> Burst:
        for one, other in (("per_year", "per_broker_year"), ("size", "fraction")):
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                raise WrongField("", self.given(), f"either {one} or {other}")
        return self

    @property
    def cause(self) -> str:
        """The cause of its failures in a trace: `burst`, or `burst NAME` of a cause with a name of its own."""
        return BURST if self.name == BURST else f"{BURST} {self.name}"

    def struck_of(self, racks: Sequence[int]) -> float:
        """The mean number of brokers that a burst strikes in a cluster whose racks have so many brokers."""

        def mean_of(brokers: int) -> float:
            return float(min(brokers, self.size)) if self.size is not None else brokers * (self.fraction or 0.0)

        in_one_rack = sum(map(mean_of, racks)) / len(racks)
        return self.same_rack * in_one_rack + (1.0 - self.same_rack) * mean_of(sum(racks))

    def events_per_year(self, racks: Sequence[int]) -> float:
        """The rate of bursts in a cluster whose racks have so many brokers."""
        if self.per_year is not None:
            return self.per_year
        return (self.per_broker_year or 0.0) * sum(racks) / self.struck_of(racks)


Bursts = Annotated[
    tuple[Burst, ...],
    AsTuple,
    listed_or_none(
        "{name: NAME, per_year: NUMBER (or per_broker_year), size: N (or fraction), window: DURATION, "
        "same_rack: PROBABILITY, down: DURATION or distribution}"
    ),
]


class RollingRestart(WrittenModel):
    """A controlled shutdown of each broker in turn, for `down`; the next one follows `pause` after the start."""

    every_ms: DurationMs = Field(gt=0)
    down_ms: DurationMs = Field(gt=0)
    pause_ms: DurationMs = Field(60_000, ge=0)


class Reassignments(WrittenModel):
    """Moves of a replica to another broker, a Poisson process per partition."""

    per_year: Finite = Field(gt=0, le=MOST_PER_YEAR, description="moves per partition-year")


class CatchUp(WrittenModel):
    """How long a restarted replica is behind. It comes closer to the leader's end by `rate`; it is behind by what was
    written (`write_rate`) while it was down, and by `backlog` besides after the loss of its disk."""

    rate: Annotated[Finite, BYTES_PER_SECOND] = Field(gt=0)
    backlog: Annotated[Finite, BYTES] = Field(0.0, ge=0)
    write_rate: Annotated[Finite, BYTES_PER_SECOND] = Field(10e6, ge=0)

    def needed_ms(self, down_ms: int, lost_disk: bool, behind_ms: int = 0) -> int:
        """Time from a restart until the broker has what was written: (time away x write rate + backlog after a disk
        loss) / rate. `behind_ms`: what was missing when it failed, as the time that it would still have needed; it is
        part of the backlog of a lost disk, as far as that goes."""
        lost_ms = max(self.backlog * 1_000 if lost_disk else 0.0, behind_ms * self.rate)
        return math.ceil((down_ms * self.write_rate + lost_ms) / self.rate)


class SlowEpisodes(WrittenModel):
    """Episodes of a slow broker, a Poisson process per broker: for `duration`, all its messages leave `delay` late."""

    per_year: Finite = Field(gt=0, le=MOST_PER_YEAR, description="episodes per broker-year")
    duration: RandomTime
    delay_ms: DurationMs = Field(gt=0)


def mapping_or(word: str, form: str, short: tuple[type, str] | None = None) -> Notation:
    """The notation of a mapping, or `word`, which the field of the parameter holds as None.

    `form`: the mapping in words. `short`: a type of values that stand for a mapping with that key alone.
    """

    def read(value: object) -> object:
        if short is not None and isinstance(value, short[0]):
            value = {short[1]: value}
        if not isinstance(value, Mapping):
            raise ValueError(f"found {value!r}; allowed: {form}")
        return value

    return word_or(word, Notation(read, lambda value: cast(WrittenModel, value).words(), form))
