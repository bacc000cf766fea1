"""Reads users' YAML files strictly, and turns what is wrong into an `InputError` of one line."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from experiments.support.errors import InputError


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
        raise InputError(source, "", type(raw).__name__, f"a mapping: {what}")
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
    "dict_type": "a mapping",
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true | false",
    "missing": "a value (required)",
}


def allowed_by(details: ErrorDetails, fields: Sequence[str] = ()) -> str:
    """The allowed values for an error, in words; `fields` are the fields of the mapping at that place."""
    kind = details["type"]
    if kind == "extra_forbidden":
        return f"one of {', '.join(fields)}" if fields else "no such field"
    if kind == "model_type":
        return f"a mapping of fields: {', '.join(fields)}"
    if kind in _SHAPES:
        return _SHAPES[kind]
    if kind in ("literal_error", "enum"):
        return str(details["ctx"]["expected"])
    return details["msg"].removeprefix("Input should be ").removeprefix("Value error, ").rpartition("allowed: ")[2]
