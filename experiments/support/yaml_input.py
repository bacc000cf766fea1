"""Reads users' YAML and JSON files strictly, and turns what is wrong into an `InputError` of one line.

:func:`validated` is the one way from the raw values of a file to a model (`fields.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from experiments.support.errors import InputError, WrongField, shown
from experiments.support.fields import IN_FILE, StrictModel
from experiments.support.yaml_text import parse_yaml
from protocol.config import ConfigError
from protocol.errors import did_you_mean

Model = TypeVar("Model", bound=BaseModel)

_KINDS = {type(None): "nothing", list: "a list", dict: "a mapping", str: "text", bool: "true or false"}


def read_text(path: Path, what: str, form: str = "YAML") -> str:
    """The text of a user's file; `what` and `form` name the expected content in the InputError for other files."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "bytes that are not UTF-8"
        raise InputError(str(path), "", found, f"{what} ({form})") from error


def read_yaml_mapping(path: Path, what: str) -> dict[str, object]:
    """As `parse_yaml_mapping`, of a file."""
    return parse_yaml_mapping(read_text(path, what), str(path), what)


def parse_yaml_mapping(text: str, source: str, what: str) -> dict[str, object]:
    """The mapping in a text; InputError, which names `source` and the expected content `what`, for any other text."""
    raw = parse_yaml(text, source, f"a mapping: {what}")
    if not isinstance(raw, dict):
        raise InputError(source, "", kind_of(raw), f"a mapping: {what}")
    return raw


def kind_of(value: object) -> str:
    """What a value of YAML is, in words: `a list`."""
    return "a number" if type(value) in (int, float) else _KINDS.get(type(value), "a value")


def flow_yaml(value: object) -> str:
    """A value on one line, as YAML writes it."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("...\n").strip()


def first_error(error: ValidationError) -> ErrorDetails:
    """The error to report first: an unknown field, if there is one, since it often causes the others."""
    errors = error.errors()
    return next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])


def dotted_path(location: Sequence[object]) -> str:
    """`("steps", 3, "produce")` as `steps[3].produce`, without pydantic's names of union members."""
    text = ""
    for part in location:
        if isinstance(part, str) and ("[" in part or part in ("int", "str", "bool", "float")):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


_SHAPES = {
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_attributes_type": "a mapping",
    "string_type": "text",
    "bytes_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of 64 bits",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true | false",
    "bool_parsing": "true | false",
    "missing": "a value (required)",
    "none_required": "nothing",
    "greater_than_equal": "{ge} or more",
    "greater_than": "greater than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "too_short": "{min_length} or more items",
    "too_long": "{max_length} items or less",
    "string_too_short": "text with {min_length} or more characters",
    "string_too_long": "text with at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "union_tag_invalid": "{discriminator}: one of {expected_tags}",
    "union_tag_not_found": "a mapping with {discriminator}",
    "json_invalid": "JSON",
}
"""The allowed values by the kind of error, with what pydantic gives for it in braces."""
_ALLOWED = "allowed: "


def allowed_by(details: ErrorDetails, fields: Sequence[str] = ()) -> str:
    """The allowed values for an error, in words; `fields` are the fields of the mapping at that place."""
    kind = details["type"]
    if kind == "extra_forbidden":
        return f"one of {', '.join(fields)}" if fields else "no such field"
    if kind in ("model_type", "dataclass_type"):
        return f"a mapping of fields: {', '.join(fields)}" if fields else "a mapping"
    if kind in ("value_error", "assertion_error"):  # the text is the program's, not pydantic's
        return str((details.get("ctx") or {})["error"]).rpartition(_ALLOWED)[2]
    return _SHAPES.get(kind, "a value that the field takes").format(**(details.get("ctx") or {}))


def found_by(details: ErrorDetails, fields: Sequence[str] = (), as_json: bool = False) -> str:
    """What was found, in words; of an unknown field its value, and the most similar one of `fields`. `as_json`: as a
    JSON file writes it.
    """
    kind = details["type"]
    if kind == "missing":
        return "nothing"
    if kind == "json_invalid":
        place = re.search(r"line \d+ column \d+", str((details.get("ctx") or {}).get("error")))
        return f"text that is not JSON{f', {place[0]}' if place else ''}"
    hint = did_you_mean(str(details["loc"][-1]), fields) if kind == "extra_forbidden" else ""
    return shown(details["input"], as_json) + hint


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The models that a type is made of: itself, the members of a union, the elements of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel]:
    """The model that has the field which the last part of a location names."""
    for part in location[:-1]:
        fields = (info for name, info in model.model_fields.items() if part in (info.alias, name))
        field = next(fields, None)
        model = next(_models_in(field.annotation), model) if field is not None else model
    return model


def _keys(model: type[BaseModel]) -> list[str]:
    if issubclass(model, StrictModel):
        return model.key_names()
    return [info.alias or name for name, info in model.model_fields.items()]


def _as_written(raw: object, details: ErrorDetails) -> ErrorDetails:
    """The error with the value that the file has, which a notation may have turned into another one."""
    for part in details["loc"]:
        is_part = isinstance(raw, dict) and part in raw
        if not is_part and not (isinstance(raw, list) and isinstance(part, int) and part < len(raw)):
            return details
        raw = raw[part]  # type: ignore[index]
    details["input"] = raw
    return details


def refused_by(
    error: ValidationError,
    model: type[BaseModel],
    source: str,
    place: str = "",
    as_json: bool = False,
    raw: object = None,
) -> InputError:
    """The first error in a value that is no `model`, as one line; `place` is where in `source` the value is. `as_json`:
    values are shown as a JSON file writes them. `raw`: the value, if errors show what it has.
    """
    details = _as_written(raw, first_error(error))
    owner, cause = _model_at(model, details["loc"]), (details.get("ctx") or {}).get("error")
    field = ".".join(part for part in (place, dotted_path(details["loc"])) if part).replace(".[", "[")
    if isinstance(cause, WrongField):
        return InputError(source, ".".join(filter(None, (field, cause.field))), cause.found, cause.allowed)
    if isinstance(cause, ConfigError) and cause.name == "config":
        return InputError(source, field, f"{shown(cause.found)}{cause.hint}", f"one of {cause.allowed}")
    if isinstance(cause, ConfigError):
        return InputError(source, f"{field}.{cause.name}", shown(cause.found), cause.allowed)
    key, is_unknown = str((details["loc"] or ("",))[-1]), details["type"] == "extra_forbidden"
    names = _keys(owner if is_unknown else _model_at(model, (*details["loc"], "")))
    found, allowed = found_by(details, names, as_json), allowed_by(details, names)
    if issubclass(owner, StrictModel):
        if is_unknown and owner.UNKNOWN:
            found = f"{owner.UNKNOWN}{did_you_mean(key, names)}"
        if not str(cause).startswith(_ALLOWED):
            allowed = owner.allowed_in(key) or allowed
    return InputError(source, field, found, allowed)


def validated(model: type[Model], raw: object, source: str, place: str = "", as_json: bool = False) -> Model:
    """The value `raw` of a file as a `model`. InputError, as :func:`refused_by`, for a value that is no such model."""
    try:
        return model.model_validate(raw, context=IN_FILE, by_alias=True, by_name=False)
    except ValidationError as error:
        raise refused_by(error, model, source, place, as_json, raw) from error


def validated_json(model: type[Model], text: str | bytes, source: str, place: str = "") -> Model:
    """The JSON text of a file as a `model`. InputError, as :func:`validated`."""
    try:
        return model.model_validate_json(text, context=IN_FILE, by_alias=True, by_name=False)
    except ValidationError as error:
        raise refused_by(error, model, source, place, as_json=True) from error
