"""Declarations that are data: a YAML file beside the module that reads it, checked against a type.

They belong to the program, as its code does: a wrong one is a defect, and raises pydantic's ValidationError.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import TypeAdapter

T = TypeVar("T")


def declared(kind: type[T], module: str, name: str) -> T:
    """The content of the file `name` in the folder of the file `module`, as a `kind`."""
    return TypeAdapter(kind).validate_python(yaml.safe_load(Path(module).with_name(name).read_text(encoding="utf-8")))
