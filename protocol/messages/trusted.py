"""Constructors without validation, for messages that nodes build in hot paths from values they have validated.

The constructor of a model validates every value, which costs more than the rest of most inputs of a node. Use it for
anything from the wire, files, users and tests. `trusted(Model)` returns a constructor with the same keyword arguments
that validates nothing. The type checker sees the model itself, so argument names and types are checked statically. The
simulator's paranoid mode encodes and decodes every message, which validates what nodes build.
"""

from __future__ import annotations

from typing import TypeVar, cast

from protocol.messages.base import Frozen
from protocol.messages.making import constructor, remake

Model = TypeVar("Model", bound=Frozen)


def trusted(model: type[Model]) -> type[Model]:
    """A constructor of `model` that takes the fields by keyword and does not validate them. Defaults are shared, which
    is safe because values in messages are immutable. Raises TypeError for a model with validators or default factories,
    which it would skip.
    """
    fields, own = model.model_fields, model.__pydantic_decorators__
    if own.field_validators or own.model_validators or any(field.default_factory for field in fields.values()):
        raise TypeError(f"{model.__name__} makes or changes values of its own")
    return cast("type[Model]", constructor(model))


def changed(message: Model, **changes: object) -> Model:
    """A copy of the message with `changes` to its fields, which are not validated."""
    return remake(message, changes)
