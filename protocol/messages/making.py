"""Builds pydantic models from values without validation (`trusted.py` says when that is allowed).

A pydantic model consists of four slots: its fields, the names of the fields that were set, and two slots that these
models do not use. Here all fields count as set, in one set that all instances of a model share; pydantic only modifies
copies of it. `making.c` is the same module for the compiled build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, TypeVar, cast

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)

_PUT_FIELDS: Final = BaseModel.__dict__["__dict__"].__set__
_PUT_NAMES: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_PUT_EXTRA: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
_PUT_PRIVATE: Final = BaseModel.__dict__["__pydantic_private__"].__set__
_SLOTS: Final = {
    "put_fields": _PUT_FIELDS,
    "put_names": _PUT_NAMES,
    "put_extra": _PUT_EXTRA,
    "put_private": _PUT_PRIVATE,
}


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
    put_names(message, names)
    put_extra(message, None)
    put_private(message, None)
    return message
"""
    scope = {**_SLOTS, **defaults, "new": object.__new__, "model": model, "names": _field_names(model)}
    exec(source, scope)
    return cast("Callable[..., Model]", scope["make"])


def remake(message: Model, changes: dict[str, object]) -> Model:
    """A copy of the message with `changes` to its fields."""
    model = type(message)
    copy = object.__new__(model)
    _PUT_FIELDS(copy, message.__dict__ | changes)
    _PUT_NAMES(copy, _field_names(model))
    _PUT_EXTRA(copy, None)
    _PUT_PRIVATE(copy, None)
    return copy


@cache
def _field_names(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)
