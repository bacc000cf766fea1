"""Reads users' YAML files strictly, and turns what is wrong into an `InputError` of one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from experiments.support.errors import InputError, shown
from protocol.errors import did_you_mean

_KINDS = {
    type(None): "nothing",
    list: "a list",
    dict: "a mapping",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}
"""What the values of YAML are called."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a duplicate key, of which YAML would take the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_text(path: Path, what: str, form: str = "YAML") -> str:
    """The text of a user's file; `what` and `form` name the expected content in the InputError for a file that has
    none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "bytes that are not UTF-8"
        raise InputError(str(path), "", found, f"{what} ({form})") from error


def read_yaml_mapping(path: Path, what: str) -> dict[str, object]:
    """The mapping in a YAML file; `what` names the expected content in the InputError for any other file."""
    return parse_yaml_mapping(read_text(path, what), str(path), what)


def parse_yaml_mapping(text: str, source: str, what: str) -> dict[str, object]:
    """The mapping in a text; InputError, which names `source` and the expected content `what`, for any other text."""
    raw = parse_yaml(text, source, f"a mapping: {what}")
    if not isinstance(raw, dict):
        raise InputError(source, "", kind_of(raw), f"a mapping: {what}")
    return raw


def parse_yaml(text: str, source: str, what: str) -> object:
    """The YAML value in a text; InputError, which names `source` and the expected content `what`, where it has none."""
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except RecursionError as error:
        raise InputError(source, "", "YAML that is nested too deeply", what) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else ""
        problem = str(getattr(error, "problem", error)).removeprefix("found ")
        raise InputError(source, line, problem, "YAML, each key once") from error


def kind_of(value: object) -> str:
    """What a value of YAML is, in words: `a list`."""
    return _KINDS.get(type(value), "a value")


def flow_yaml(value: object) -> str:
    """A value on one line, as YAML writes it."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("...\n").strip()


def first_error(error: ValidationError) -> ErrorDetails:
    """The error to report first: an unknown field, if there is one, since it often causes the others."""
    errors = error.errors()
    return next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])


_TYPE_NAMES = frozenset({"int", "str", "bool", "float"})


def dotted_path(location: Sequence[object]) -> str:
    """`("steps", 3, "produce")` as `steps[3].produce`, without pydantic's names of union members."""
    text = ""
    for part in location:
        if isinstance(part, str) and ("[" in part or part in _TYPE_NAMES):
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
_OWN_WORDS = ("value_error", "assertion_error")
"""The kinds of errors whose text is the program's, not pydantic's."""


def allowed_by(details: ErrorDetails, fields: Sequence[str] = ()) -> str:
    """The allowed values for an error, in words; `fields` are the fields of the mapping at that place."""
    kind = details["type"]
    if kind == "extra_forbidden":
        return f"one of {', '.join(fields)}" if fields else "no such field"
    if kind in ("model_type", "dataclass_type"):
        return f"a mapping of fields: {', '.join(fields)}" if fields else "a mapping"
    if kind in _OWN_WORDS:
        return str((details.get("ctx") or {})["error"]).rpartition("allowed: ")[2]
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


def fields_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """The names of the fields beside the one that the last part of a location names."""
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        model = next(_models_in(field.annotation), model) if field is not None else model
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a type is made of: itself, the members of a union, the elements of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def refused_by(
    error: ValidationError, model: type[BaseModel], source: str, place: str = "", as_json: bool = False
) -> InputError:
    """The first error in a value that is no `model`, as one line; `place` is where in `source` the value is. `as_json`:
    values are shown as a JSON file writes them.
    """
    details = first_error(error)
    names = fields_at(model, details["loc"])
    field = ".".join(part for part in (place, dotted_path(details["loc"])) if part).replace(".[", "[")
    return InputError(source, field, found_by(details, names, as_json), allowed_by(details, names))
