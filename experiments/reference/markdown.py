"""Markdown parts that pages share, and tables of the fields of pydantic models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from experiments.support.fields import DURATION, notation_of


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; `|` and line breaks in cells are escaped. Empty without rows."""
    cells = [[" ".join(str(value).split()).replace("|", r"\|") for value in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if cells else ""


def default(value: object) -> str:
    """The default of a field as inline code; empty for none."""
    if value is None or value in ({}, ""):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else value)


def first_paragraph(docstring: str | None) -> str:
    """The first paragraph of a docstring on one line; empty for None."""
    return " ".join(cleandoc(docstring or "").split("\n\n")[0].split())


def code(text: object) -> str:
    return f"`{text}`"


def block(text: str, language: str = "") -> str:
    """`text` as a fenced block, empty for an empty text."""
    return f"```{language}\n{text.strip()}\n```" if text else ""


def sections(*parts: str) -> str:
    """Parts of a page, separated by empty lines."""
    return "\n\n".join(part.strip() for part in parts if part.strip())


_NAMES: dict[object, str] = {int: "whole number", str: "text", bool: "true or false", float: "number"}
_DURATION = "duration (`250ms`, `5s`, `1h`)"


def field_table(model: type[BaseModel], left_out: Collection[str] = ()) -> str:
    """The fields of a model except `left_out`."""
    rows = []
    for name, field in model.model_fields.items():
        if name not in left_out:
            is_duration = notation_of(field.metadata) is DURATION
            kind = _DURATION if is_duration else type_words(field.annotation)
            rows.append((code(field.alias or name), kind, _default(field, is_duration), field.description or ""))
    return table(("field", "type", "default", "meaning"), rows)


def type_words(annotation: object) -> str:
    """A type in words: `list of whole numbers`, `` `none` or `all` ``."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(parts[0])
    if origin in (Union, UnionType):
        return ", ".join(dict.fromkeys(type_words(part) for part in parts if part is not NoneType))
    if origin is Literal:
        return ", ".join(code("true" if part is True else part) for part in parts)
    if origin is dict:
        return f"mapping of {type_words(parts[0])} to {type_words(parts[1])}"
    if origin in (list, tuple):
        item = type_words(parts[0])
        return f"list of {item}s" if item in _NAMES.values() else f"list of {item}"
    return _NAMES.get(annotation, "mapping")


def _default(field: FieldInfo, is_duration: bool) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if is_duration and value is not None:
        value = DURATION.write(value)
    return default(value)
