"""The one notation of users' YAML and JSON files: base models, field types, and how values are written.

A file is a model, its values are fields, and pydantic checks them; `yaml_input.validated` turns what is wrong into one
line. The type of a field declares what is allowed, and, where a file writes a value in another form than the program
holds it, how it is written: a :class:`Notation`. A duration is written `15m` and held as milliseconds, a volume `50GB`
and held as bytes, `never` is held as None. The notation reads the values of files, and all text; other values that the
program itself gives stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated, ClassVar, Final, TypeGuard

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from experiments.support.durations import ALLOWED as DURATION_FORM
from experiments.support.durations import format_duration, parse_duration_ms
from protocol.broker.recovery import hook_named
from protocol.config import UNCLEAN_LEADER_HOOK, config_named, parse_config
from protocol.controller.topics import MAX_NAME_LENGTH, name_error
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.kafka_release import KafkaRelease, kafka_release

ERROR_NAMES = tuple(code.name for code in ErrorCode if code is not ErrorCode.NONE)
GENERATIONS = tuple(generation.value for generation in Generation)
RELEASES = tuple(release.value for release in KafkaRelease)
IN_FILE: Final = "a value of a file"
"""The context of a validation whose values are those of a file."""

# -- models ------------------------------------------------------------------------------------------------------------


class JsonShape(BaseModel):
    """The shape of a JSON file of Kafka's tools: types are strict, unknown fields are ignored as Kafka's tools do."""

    model_config = ConfigDict(strict=True, frozen=True)


class StrictModel(BaseModel):
    """A frozen, strict model without unknown fields. `UNKNOWN`: what errors call these; empty: they show the value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    UNKNOWN: ClassVar[str] = ""

    @classmethod
    def allowed_in(cls, key: str) -> str:
        """All that is allowed for a key, in words; empty: errors name the limit that a value breaks."""
        return ""

    @classmethod
    def key_names(cls) -> list[str]:
        """The keys that files may give."""
        return [info.alias or name for name, info in cls.model_fields.items()]


class WrittenModel(StrictModel):
    """A model whose field `x_ms` is the key `x` of a file, and whose errors list all that is allowed for a key."""

    model_config = ConfigDict(
        alias_generator=lambda field: field.removesuffix("_ms"), validate_by_name=True, validate_by_alias=True
    )
    UNKNOWN = "an unknown key"

    @classmethod
    def allowed_in(cls, key: str) -> str:
        schema = cls.model_json_schema()["properties"].get(key)
        return ", ".join(cls.key_names()) if schema is None else allowed_values(schema, cls.notations()[key])

    @classmethod
    def notations(cls) -> dict[str, Notation]:
        """The notation of each key."""
        return {info.alias or name: notation_of(info.metadata) for name, info in cls.model_fields.items()}

    def given(self) -> str:
        """The keys that were given."""
        fields = zip(self.key_names(), type(self).model_fields, strict=True)
        return ", ".join(key for key, field in fields if field in self.model_fields_set) or "nothing"

    def words(self) -> str:
        """The keys and values in words, without those that have their default."""
        return ", ".join(
            f"{(info.alias or name).replace('_', ' ')} {notation_of(info.metadata).write(value)}"
            for name, info in type(self).model_fields.items()
            if (value := getattr(self, name)) is not None and value != info.default
        )


# -- notations ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notation:
    """How files write the values of a field whose type it annotates.

    `read` turns a value of a file into the value of the field and raises ValueError for what it cannot read; `write`
    gives the text of a field's value. `form` describes the written form; empty for plain numbers and words, which the
    field's type describes.
    """

    read: Callable[[object], object] = lambda value: value
    write: Callable[[object], str] = lambda value: str(value).removesuffix(".0")
    form: str = ""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_before_validator_function(self._read_given, handler(source))

    def _read_given(self, value: object, info: ValidationInfo) -> object:
        is_written = isinstance(value, str) or (info.context is IN_FILE and not isinstance(value, BaseModel))
        return self.read(value) if is_written else value


PLAIN = Notation()
TEXT = Notation(lambda value: str(value) if type(value) is int else value)
"""Words, some of which are digits, that YAML reads as numbers."""


def _read_release(value: object) -> object:
    """The name of the release that behaves as this one does; YAML reads `4.3` as a number."""
    try:
        return kafka_release(str(value)).value
    except ValueError:
        return value


RELEASE = Notation(_read_release, form=f"one of {', '.join(RELEASES)}, or another release from 4.0 to 4.4")


def notation_of(metadata: Iterable[object]) -> Notation:
    """The notation among the annotations of a field; the plain one without any."""
    return next((item for item in metadata if isinstance(item, Notation)), PLAIN)


def word_or(word: str, notation: Notation, form: str = "") -> Notation:
    """A value in another notation, or `word`, which the field holds as None. `form`: that of the value."""
    return Notation(
        read=lambda value: None if value == word else notation.read(value),
        write=lambda value: word if value is None else notation.write(value),
        form=f"{form or notation.form}; or {word}",
    )


def _write_duration(value: object) -> str:
    assert isinstance(value, int)
    return format_duration(value)


DURATION = Notation(parse_duration_ms, _write_duration, DURATION_FORM)

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)(/s)?")
_BYTES_IN = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


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

_LIMITS = {
    "minimum": "greater than or equal to",
    "exclusiveMinimum": "greater than",
    "maximum": "less than or equal to",
    "exclusiveMaximum": "less than",
}
_TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "object": "a mapping", "array": "a list"}


def allowed_values(schema: JsonSchemaValue, notation: Notation = PLAIN) -> str:
    """What the JSON schema of a field allows, as one phrase in that notation."""
    (branch,) = (branch for branch in schema.get("anyOf", [schema]) if branch.get("type") != "null")
    if "const" in branch:
        return str(branch["const"])
    if "enum" in branch:
        return f"one of {', '.join(map(str, branch['enum']))}"
    limits = [f"{words} {notation.write(branch[key])}" for key, words in _LIMITS.items() if key in branch]
    form, _, alternative = notation.form.partition("; or ")
    phrase = ", ".join([form or _TYPES[branch.get("type", "object")], *limits])
    return f"{phrase}; or {alternative}" if alternative else phrase


# -- what is allowed ---------------------------------------------------------------------------------------------------


def one_of(names: Iterable[str], also: Callable[[object], bool] | None = None, form: str = "") -> BeforeValidator:
    """Accepts these words, and what is `also` right; refuses any other value by an error that lists the words, or has
    the words of `form`."""
    words = tuple(names)
    allowed = form or f"one of {', '.join(words)}"

    def check(value: object) -> object:
        if (isinstance(value, str) and value in words) or (also is not None and also(value)):
            return value
        raise ValueError(f"allowed: {allowed}")

    return BeforeValidator(check)


def _hinted(hint: Callable[[object], str]) -> BeforeValidator:
    """Refuses what `hint` has a text for, which is what is allowed instead; to be annotated last."""

    def check(value: object) -> object:
        if text := hint(value):
            raise ValueError(f"allowed: {text}")
        return value

    return BeforeValidator(check)


def release_hint(value: object) -> str:
    """What is said of a release of Kafka's (`4.1`) in the place of a generation; empty for other values."""
    try:
        kafka_release(str(value))
    except ValueError:
        return ""
    return f"{value} is a kafka_release, of kip-497 and kip-966-elr"


def _generation_hint(value: object) -> str:
    said = release_hint(value)
    return f"one of {', '.join(GENERATIONS)}; {said}" if said else ""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number; `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _read_switch(value: object) -> bool:
    """`on` and `off` as text; YAML reads the bare words as booleans."""
    if value in ("on", "off") or isinstance(value, bool):
        return value in ("on", True)
    raise ValueError("allowed: on or off")


def expects_refusal(info: ValidationInfo) -> bool:
    """Whether the model has a field `expect_error`, in front of the one that is checked, that names an error."""
    return info.data.get("expect_error") is not None


def _configs(topic: bool) -> BeforeValidator:
    def check(value: object, info: ValidationInfo) -> object:
        if not isinstance(value, dict):
            raise ValueError("allowed: a mapping of config names to values")
        for name, setting in value.items() if not expects_refusal(info) else ():
            parsed = parse_config(name, setting, topic=topic)
            if name == UNCLEAN_LEADER_HOOK:
                hook_named(str(parsed), resolve_name)
        return value

    return BeforeValidator(check)


def _check_override(value: str, info: ValidationInfo) -> str:
    return value if expects_refusal(info) else config_named(value, topic=True).name


def _check_topic_name(value: str, info: ValidationInfo) -> str:
    if name_error(value) is not None and not expects_refusal(info):
        allowed = f"at most {MAX_NAME_LENGTH} ASCII letters, digits, '.', '_' and '-'; not '.' or '..'"
        raise ValueError(f"allowed: {allowed}")
    return value


DurationMs = Annotated[int, DURATION]
"""Milliseconds, written as `250ms`, `15m`, `1y`."""
PositiveMs = Annotated[int, Field(gt=0)]
Milliseconds = Annotated[int, Field(ge=1)]
"""Milliseconds, written as a number."""
Finite = Annotated[float, AllowInfNan(False)]
PerMille = Annotated[int, Field(ge=1, le=1_000)]
Switch = Annotated[bool, BeforeValidator(_read_switch), Field(json_schema_extra={"enum": ["on", "off"]})]
"""Written as `on` or `off`."""
AsTuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""A list, as files have it, where a tuple is declared."""
TopicName = Annotated[str, Field(min_length=1), AfterValidator(_check_topic_name)]
ErrorName = Annotated[str, one_of(ERROR_NAMES)]
NO_RELEASE = _hinted(_generation_hint)
GenerationName = Annotated[str, one_of(GENERATIONS), NO_RELEASE]
NOT_ON_THE_WIRE = _hinted(lambda value: "0, 1 or all; Kafka's -1 is all" if str(value) == "-1" else "")
"""For `acks`."""
ReleaseName = Annotated[str, one_of(RELEASES, form=RELEASE.form), RELEASE]
"""A release of Kafka's, under the name of those that behave alike (`protocol/kafka_release.py`)."""
ConfigSetting = int | bool | str
TopicConfig = Annotated[dict[str, ConfigSetting], _configs(topic=True)]
"""Topic configs by their Kafka names; each value is checked."""
OverrideName = Annotated[str, AfterValidator(_check_override)]
"""The name of a config that topics can override."""
ClusterConfigs = Annotated[dict[str, ConfigSetting], _configs(topic=False)]
"""Static configs of nodes by their Kafka names; each value is checked."""
Index = Annotated[int, Field(ge=0)]
Assignment = Annotated[list[Index], Field(min_length=1)]
"""The replica list of a partition."""
Nodes = Annotated[tuple[Index, ...], AsTuple, Field(min_length=1)]
"""Node ids, at least one."""
