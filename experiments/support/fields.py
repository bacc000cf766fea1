"""Field types that scenario, study and timeline files share: durations, names, configs, indices.

Each is an `Annotated` type that pydantic checks; the error of a refused value lists what is allowed.
"""

from __future__ import annotations

from collections.abc import Collection
from pkgutil import resolve_name
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from experiments.support.durations import parse_duration_ms
from protocol.broker.recovery import hook_named
from protocol.config import LOG_GENERATIONS, UNCLEAN_LEADER_HOOK, Generation, parse_config
from protocol.controller.topic_names import MAX_NAME_LENGTH, name_error
from protocol.errors import ErrorCode

ERROR_NAMES = tuple(code.name for code in ErrorCode if code is not ErrorCode.NONE)
GENERATIONS = tuple(generation.value for generation in Generation)


class StrictModel(BaseModel):
    """A frozen model that refuses unknown fields and converts no types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def one_of(names: Collection[str]) -> BeforeValidator:
    """A check that refuses every value but those."""

    def check(value: object) -> object:
        if value not in names:
            raise ValueError(f"allowed: one of {', '.join(names)}")
        return value

    return BeforeValidator(check)


def _configs(topic: bool) -> BeforeValidator:
    def check(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError("allowed: a mapping of config names to values")
        for name, setting in value.items():
            parsed = parse_config(name, setting, topic=topic)
            if name == UNCLEAN_LEADER_HOOK:
                hook_named(str(parsed), resolve_name)
        return value

    return BeforeValidator(check)


def _check_topic_name(value: str) -> str:
    if name_error(value) is not None:
        allowed = f"at most {MAX_NAME_LENGTH} ASCII letters, digits, '.', '_' and '-'; not '.' or '..'"
        raise ValueError(f"allowed: {allowed}")
    return value


DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]
"""Milliseconds, written as `250ms`, `15m`, `1y`."""
TopicName = Annotated[str, Field(min_length=1), AfterValidator(_check_topic_name)]
ErrorName = Annotated[str, one_of(ERROR_NAMES)]
GenerationName = Annotated[str, one_of(GENERATIONS)]
LogGenerationName = Annotated[str, one_of([generation.value for generation in LOG_GENERATIONS])]
"""A generation with a metadata log."""
ConfigSetting = int | bool | str
TopicConfig = Annotated[dict[str, ConfigSetting], _configs(topic=True)]
"""Topic configs by their Kafka names; each value is checked."""
ClusterConfigs = Annotated[dict[str, ConfigSetting], _configs(topic=False)]
"""Static configs of nodes by their Kafka names; each value is checked."""
Index = Annotated[int, Field(ge=0)]
Assignment = Annotated[list[Index], Field(min_length=1)]
"""The replica list of a partition."""
