"""Declarations that are data: a YAML file beside the module that reads it, checked against a type. A wrong one is a
defect, and raises pydantic's ValidationError, or InputError if it is no YAML or has a key twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from experiments.support.yaml_text import parse_yaml

T = TypeVar("T")


def declared(kind: type[T], module: str, name: str) -> T:
    """The content of the file `name` in the folder of the file `module`, as a `kind`."""
    path = Path(module).with_name(name)
    return TypeAdapter(kind).validate_python(parse_yaml(path.read_text(encoding="utf-8"), str(path), "declarations"))
