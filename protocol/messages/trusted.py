"""Building a message without asking pydantic: for what a node makes by the thousand, out of values that it has checked.

The constructor of a message is for everybody who may be wrong about it: the wire, files, users, tests. It looks at
every value, which costs more than most inputs of a node cost otherwise. `trusted(Model)` is a constructor of the same
values that looks at nothing; the type checker sees the model itself, so that names and types of the arguments are
checked before the program runs. That what nodes build is valid is shown by the simulator's paranoid mode, in which
every message is encoded and decoded by the codec, which does look.

A pydantic model is four slots: its fields, the names of those that were given, and two that these models do not use.
Here all fields count as given.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeVar, cast

from pydantic import BaseModel

from protocol.messages.base import Frozen

Model = TypeVar("Model", bound=Frozen)

PUT_FIELDS: Final = BaseModel.__dict__["__dict__"].__set__
PUT_NAMES: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
PUT_EXTRA: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
PUT_PRIVATE: Final = BaseModel.__dict__["__pydantic_private__"].__set__
_SLOTS: Final = {
    "put_fields": PUT_FIELDS,
    "put_names": PUT_NAMES,
    "put_extra": PUT_EXTRA,
    "put_private": PUT_PRIVATE,
}


def trusted(model: type[Model]) -> type[Model]:
    """A function that takes the fields by name, as the model does, and returns the model with just these values. Only
    to be called; defaults are shared, and immutable as all values in messages are. TypeError for a model that makes or
    changes values itself (default factories, validators): that would be left out.
    """
    fields, own = model.model_fields, model.__pydantic_decorators__
    if own.field_validators or own.model_validators or any(field.default_factory for field in fields.values()):
        raise TypeError(f"{model.__name__} makes or changes values of its own")
    defaults = {f"default_{name}": field.default for name, field in fields.items() if not field.is_required()}
    parameters = [f"{name}=default_{name}" if f"default_{name}" in defaults else name for name in fields]
    values = [f"{name!r}: {name}" for name in fields]
    source = f"""
def build(*, {", ".join(parameters)}):
    message = new(model)
    put_fields(message, {{{", ".join(values)}}})
    put_names(message, names)
    put_extra(message, None)
    put_private(message, None)
    return message
"""
    scope: dict[str, object] = {**_SLOTS, **defaults, "new": object.__new__, "model": model, "names": _names(model)}
    exec(source, scope)
    return cast("type[Model]", scope["build"])


def changed(message: Model, **changes: object) -> Model:
    """A copy of the message with other values in some of its fields, which are believed too."""
    model = type(message)
    copy = object.__new__(model)
    PUT_FIELDS(copy, message.__dict__ | changes)
    PUT_NAMES(copy, _names(model))
    PUT_EXTRA(copy, None)
    PUT_PRIVATE(copy, None)
    return copy


@cache
def _names(model: type[Frozen]) -> set[str]:
    """All instances share it; pydantic changes nothing but copies of it."""
    return set(model.model_fields)
