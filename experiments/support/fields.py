"""Field types that scenario, study and timeline files share: durations, names, configs, indices.

Each is an `Annotated` type that pydantic checks; what it refuses says what is allowed.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from experiments.support.durations import parse_duration_ms
from protocol.broker.recovery import hook_named
from protocol.config import UNCLEAN_LEADER_HOOK, Generation, parse_config
from protocol.controller.topic_names import MAX_NAME_LENGTH, name_error
from protocol.errors import ErrorCode

ERROR_NAMES = tuple(code.name for code in ErrorCode if code is not ErrorCode.NONE)
GENERATIONS = tuple(generation.value for generation in Generation)


class StrictModel(BaseModel):
    """Frozen, strict, nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _duration(value: object) -> int:
    return parse_duration_ms(value)


def _error_name(value: object) -> object:
    if value not in ERROR_NAMES:
        raise ValueError(f"allowed: one of {', '.join(ERROR_NAMES)}")
    return value


def _generation(value: object) -> object:
    if value not in GENERATIONS:
        raise ValueError(f"allowed: one of {', '.join(GENERATIONS)}")
    return value


def _config(topic: bool) -> Any:
    def check(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError("allowed: a mapping of config names to values")
        for name, setting in value.items():
            parsed = parse_config(name, setting, topic=topic)
            if name == UNCLEAN_LEADER_HOOK:
                hook_named(str(parsed), resolve_name)
        return value

    return BeforeValidator(check)


DurationMs = Annotated[int, BeforeValidator(_duration)]


def _topic_name(value: str) -> str:
    if name_error(value) is not None:
        allowed = f"at most {MAX_NAME_LENGTH} ASCII letters, digits, '.', '_' and '-'; not '.' or '..'"
        raise ValueError(f"allowed: {allowed}")
    return value


TopicName = Annotated[str, Field(min_length=1), AfterValidator(_topic_name)]
ErrorName = Annotated[str, BeforeValidator(_error_name)]
GenerationName = Annotated[str, BeforeValidator(_generation)]
ConfigSetting = int | bool | str
TopicConfig = Annotated[dict[str, ConfigSetting], _config(topic=True)]
ClusterConfigs = Annotated[dict[str, ConfigSetting], _config(topic=False)]
Index = Annotated[int, Field(ge=0)]
Assignment = Annotated[list[Index], Field(min_length=1)]
