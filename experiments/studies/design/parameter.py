"""The declaration of a study parameter, and what follows from it.

A parameter is declared once, as a field of `CellParameters` (`model.py`): its name; its Python type, with a
:class:`Notation` if study files write its values in another form; and :func:`parameter` with its default, its words for
the report, its description, its unit and its limits. :func:`parameters` derives the rest: what the loader reads and
refuses, what the report prints and what the reference page lists. A field `x_ms` is the parameter `x`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import BaseModel, Field

from experiments.support.durations import ALLOWED as DURATION_FORM
from experiments.support.durations import format_duration, parse_duration_ms


@dataclass(frozen=True, slots=True)
class Notation:
    """How a study file writes the values of a parameter.

    `read` turns a YAML value into the value of the field and raises ValueError for what it cannot read; `write` gives
    the text of a field's value. `form` describes the written form; empty for plain numbers and words, which the field's
    type describes.
    """

    read: Callable[[object], object] = lambda value: value
    write: Callable[[object], str] = lambda value: str(value).removesuffix(".0")
    form: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A declared parameter: `name` in a study file, `field` of the model; `default` and `allowed` in the file's
    notation; `whole`: its values are whole numbers."""

    name: str
    field: str
    notation: Notation
    words: str
    unit: str
    default: str
    allowed: str
    description: str
    whole: bool


PLAIN = Notation()


def _write_duration(value: object) -> str:
    assert isinstance(value, int)
    return format_duration(value)


DURATION = Notation(parse_duration_ms, _write_duration, DURATION_FORM)


def duration_or(word: str) -> Notation:
    """A duration, or `word`, which the field holds as None."""
    return Notation(
        read=lambda value: None if value == word else parse_duration_ms(value),
        write=lambda value: word if value is None else _write_duration(value),
        form=f"{DURATION_FORM}; or {word}",
    )


def number_or(word: str) -> Notation:
    """A number, or `word`, which the field holds as None."""
    return Notation(
        read=lambda value: None if value == word else value,
        write=lambda value: word if value is None else PLAIN.write(value),
        form=f"a number; or {word}",
    )


TEXT = Notation(lambda value: str(value) if type(value) is int else value)
"""Words, some of which are digits, that YAML reads as numbers."""


T = TypeVar("T")


def parameter(
    default: T,
    words: str,
    description: str,
    unit: str = "",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> T:
    """The declaration of a parameter, as the default of a field; `ge`, `gt` and `le` are its limits.

    `words`: the name of a value in the report and the tables, with `{}` in its place (`min ISR {}`). `unit`: of a plain
    number.
    """
    info: object = Field(
        default,
        description=description,
        json_schema_extra={"words": words, "unit": unit},
        ge=ge,
        gt=gt,
        le=le,
    )
    return cast(T, info)


def parameters(model: type[BaseModel]) -> Mapping[str, Parameter]:
    """Every parameter that `model` declares, by its name in a study file, in the order of declaration."""
    declared = {}
    for field, schema in model.model_json_schema()["properties"].items():
        info, name = model.model_fields[field], field.removesuffix("_ms")
        notation = next((item for item in info.metadata if isinstance(item, Notation)), PLAIN)
        declared[name] = Parameter(
            name=name,
            field=field,
            notation=notation,
            words=schema["words"],
            unit=schema["unit"] or ("duration" if notation.form else ""),
            default=notation.write(info.default),
            allowed=allowed_values(schema, notation),
            description=schema["description"],
            whole=schema.get("type") == "integer" and not notation.form,
        )
    return declared


_LIMITS = {
    "minimum": "greater than or equal to",
    "exclusiveMinimum": "greater than",
    "maximum": "less than or equal to",
    "exclusiveMaximum": "less than",
}
_TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "object": "a mapping", "array": "a list"}


def allowed_values(schema: Mapping[str, Any], notation: Notation = PLAIN) -> str:
    """What the JSON schema of a field allows, as one phrase in the notation of study files."""
    (branch,) = (branch for branch in schema.get("anyOf", [schema]) if branch.get("type") != "null")
    if "const" in branch:
        return str(branch["const"])
    if "enum" in branch:
        return f"one of {', '.join(map(str, branch['enum']))}"
    limits = [f"{words} {notation.write(branch[key])}" for key, words in _LIMITS.items() if key in branch]
    form, _, alternative = notation.form.partition("; or ")
    phrase = ", ".join([form or _TYPES[branch.get("type", "object")], *limits])
    return f"{phrase}; or {alternative}" if alternative else phrase
