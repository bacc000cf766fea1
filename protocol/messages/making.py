"""Builds pydantic models from values without validation (`trusted.py` says when that is allowed).

An instance of these models consists of its fields and nothing else (`base.py`). `making.c` is the same module for the
compiled build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

from pydantic import BaseModel

from protocol.messages.base import Frozen

Model = TypeVar("Model", bound=Frozen)

_PUT_FIELDS: Final = BaseModel.__dict__["__dict__"].__set__


def maker(model: type[Model]) -> Callable[..., Model]:
    """A function from the values of all fields, in order, to the model; TypeError for another number of values."""
    return _function(model, [*model.model_fields, "/"], {})


def constructor(model: type[Model]) -> Callable[..., Model]:
    """A function from the values of the fields, by keyword, to the model; TypeError for a missing or unknown field."""
    fields = model.model_fields
    defaults = {f"default_{name}": field.default for name, field in fields.items() if not field.is_required()}
    named = [f"{name}=default_{name}" if f"default_{name}" in defaults else name for name in fields]
    return _function(model, ["*", *named] if named else [], defaults)


def _function(model: type[Model], parameters: Sequence[str], defaults: Mapping[str, object]) -> Callable[..., Model]:
    values = ", ".join(f"{name!r}: {name}" for name in model.model_fields)
    source = f"""
def make({", ".join(parameters)}):
    message = new(model)
    put_fields(message, {{{values}}})
    return message
"""
    scope = {**defaults, "new": object.__new__, "put_fields": _PUT_FIELDS, "model": model}
    exec(source, scope)
    return cast("Callable[..., Model]", scope["make"])


def remake(message: Model, changes: dict[str, object]) -> Model:
    """A copy of the message with `changes` to its fields."""
    copy = object.__new__(type(message))
    _PUT_FIELDS(copy, message.__dict__ | changes)
    return copy
