"""Parameters whose values are mappings, such as `burst: {per_year: 2, size: 2, window: 2m}`.

The fields of a model declare the keys: a field `x_ms` is the key `x`, and a field may carry a notation, as a parameter
does (`parameter.py`). :func:`mapping_or` gives the notation of such a parameter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, ValidationError, model_validator

from experiments.studies.design.distribution import DISTRIBUTION, Distribution
from experiments.studies.design.parameter import DURATION, Notation, allowed_values
from experiments.support.errors import shown
from protocol.errors import did_you_mean

MOST_PER_YEAR = 100_000.0
"""The highest rate of shared events."""
Number = Annotated[float, AllowInfNan(False)]

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)(/s)?")
_BYTES_IN = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class WrongKey(ValueError):
    """A key of a mapping has a wrong value: `key`, what was `found`, what is `allowed`."""

    def __init__(self, key: str, found: str, allowed: str) -> None:
        super().__init__(f"{key}: found {found}; allowed: {allowed}")
        self.key, self.found, self.allowed = key, found, allowed


def _read_bytes(value: object, per_second: str = "") -> object:
    if type(value) in (int, float):
        return value
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[3] or "") != per_second:
        raise ValueError(f"found {value!r}")
    return float(match[1]) * _BYTES_IN[match[2]]


def _write_bytes(value: object) -> str:
    assert isinstance(value, float | int)
    unit = next((unit for unit in ("TB", "GB", "MB", "kB") if value >= _BYTES_IN[unit]), "B")
    return f"{value / _BYTES_IN[unit]:g}{unit}"


BYTES = Notation(_read_bytes, _write_bytes, "a number of bytes, or with a unit (B, kB, MB, GB, TB), such as 50GB")
BYTES_PER_SECOND = Notation(
    lambda value: _read_bytes(value, "/s"),
    lambda value: f"{_write_bytes(value)}/s",
    "bytes per second, a number or with a unit (B/s, kB/s, MB/s, GB/s, TB/s), such as 50MB/s",
)


class ParameterMapping(BaseModel):
    """Base of the values that are mappings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Burst(ParameterMapping):
    """Bursts: failures of several brokers within a short window. An event strikes `size` random brokers of the cluster,
    or each broker with probability `fraction`; with probability `same_rack`, only brokers of one random rack. Each
    fails at a uniform time of the window. `down`: one down time for all brokers of an event; without it each has a
    repair time of its own."""

    per_year: Number | None = Field(None, gt=0, le=MOST_PER_YEAR, description="bursts per cluster-year")
    per_broker_year: Number | None = Field(
        None, gt=0, le=MOST_PER_YEAR, description="bursts that strike a given broker, a year"
    )
    size: int | None = Field(None, ge=1)
    fraction: Number | None = Field(None, gt=0, le=1)
    window_ms: Annotated[int, DURATION] = Field(120_000, ge=0)
    same_rack: Number = Field(0.0, ge=0, le=1)
    down: Annotated[Distribution | None, DISTRIBUTION] = None

    @model_validator(mode="after")
    def _check(self) -> Burst:
        if (self.per_year is None) == (self.per_broker_year is None):
            raise ValueError("either per_year or per_broker_year")
        if (self.size is None) == (self.fraction is None):
            raise ValueError("either size or fraction")
        return self

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


class RollingRestart(ParameterMapping):
    """A controlled shutdown of each broker in turn, every so often. Each is `down` for that time; the next one is shut
    down `pause` after the former was started."""

    every_ms: Annotated[int, DURATION] = Field(gt=0)
    down_ms: Annotated[int, DURATION] = Field(gt=0)
    pause_ms: Annotated[int, DURATION] = Field(60_000, ge=0)


class CatchUp(ParameterMapping):
    """How long a restarted replica is behind. It comes closer to the leader's end by `rate`; it is behind by what was
    written (`write_rate`) while it was down, and by `backlog` besides after the loss of its disk."""

    rate: Annotated[Number, BYTES_PER_SECOND] = Field(gt=0)
    backlog: Annotated[Number, BYTES] = Field(0.0, ge=0)
    write_rate: Annotated[Number, BYTES_PER_SECOND] = Field(10e6, ge=0)

    def needed_ms(self, down_ms: int, lost_disk: bool, behind_ms: int = 0) -> int:
        """Time from a restart until the broker has what was written: (down time x write rate + backlog after a disk
        loss) / rate. `behind_ms`: what was missing when it failed, as the time that it would still have needed."""
        lost_ms = self.backlog * 1_000 if lost_disk else behind_ms * self.rate
        return math.ceil((down_ms * self.write_rate + lost_ms) / self.rate)


class SlowEpisodes(ParameterMapping):
    """Episodes of a slow broker, a Poisson process per broker: for `duration`, all its messages leave `delay` late."""

    per_year: Number = Field(gt=0, le=MOST_PER_YEAR, description="episodes per broker-year")
    duration: Annotated[Distribution, DISTRIBUTION]
    delay_ms: Annotated[int, DURATION] = Field(gt=0)


def mapping_or(word: str, model: type[ParameterMapping], form: str, short: tuple[type, str] | None = None) -> Notation:
    """The notation of a mapping with the fields of `model`, or `word`, which the field of the parameter holds as None.

    `form`: the mapping in words. `short`: a type of values that stand for a mapping with that key alone.
    """

    def read(value: object) -> object:
        if value == word:
            return None
        if short is not None and isinstance(value, short[0]):
            value = {short[1]: value}
        if not isinstance(value, Mapping):
            raise ValueError(f"found {value!r}; allowed: {form}")
        return _read(model, value)

    return Notation(read, lambda value: word if value is None else write_mapping(value), f"{form}; or {word}")


def _keys(model: type[BaseModel]) -> dict[str, str]:
    return {field.removesuffix("_ms"): field for field in model.model_fields}


def _notation(model: type[BaseModel], field: str) -> Notation:
    metadata = model.model_fields[field].metadata
    return next((item for item in metadata if isinstance(item, Notation)), Notation())


def _read(model: type[ParameterMapping], given: Mapping[object, object]) -> ParameterMapping:
    keys, fields = _keys(model), {}
    for key, value in given.items():
        field = keys.get(str(key))
        if field is None:
            raise WrongKey(str(key), f"an unknown key{did_you_mean(str(key), keys)}", ", ".join(keys))
        notation = _notation(model, field)
        try:
            fields[field] = notation.read(value)
        except ValueError as error:
            raise WrongKey(str(key), shown(value), notation.form or "a number") from error
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        detail = error.errors()[0]
        if not detail["loc"]:
            raise WrongKey("", ", ".join(map(str, given)) or "nothing", str(detail["ctx"]["error"])) from error
        field = str(detail["loc"][0])
        found = "nothing" if detail["type"] == "missing" else shown(given[field.removesuffix("_ms")])
        allowed = _allowed(model, field)
        raise WrongKey(field.removesuffix("_ms"), found, allowed) from error


def _allowed(model: type[BaseModel], field: str) -> str:
    return allowed_values(model.model_json_schema()["properties"][field], _notation(model, field))


def write_mapping(value: object) -> str:
    """The keys and values of a mapping in words, without those that have their default."""
    assert isinstance(value, ParameterMapping)
    model = type(value)
    given = ((key, getattr(value, field), field) for key, field in _keys(model).items())
    shown = (
        f"{key.replace('_', ' ')} {_notation(model, field).write(part)}"
        for key, part, field in given
        if part is not None and part != model.model_fields[field].default
    )
    return ", ".join(shown)
