"""Building a message without asking pydantic: for what a node makes by the thousand, out of values that it has checked.

The constructor of a message is for everybody who may be wrong about it: the wire, files, users, tests. It looks at
every value, which costs more than most inputs of a node cost otherwise. `trusted(Model)` is a constructor of the same
values that looks at nothing; the type checker sees the model itself, so that names and types of the arguments are
checked before the program runs. That what nodes build is valid is shown by the simulator's paranoid mode, in which
every message is encoded and decoded by the codec, which does look.
"""

from __future__ import annotations

from typing import TypeVar, cast

from protocol.messages.base import Frozen
from protocol.messages.making import maker, remake

Model = TypeVar("Model", bound=Frozen)


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
    source = f"def build(*, {', '.join(parameters)}): return make({', '.join(fields)})"
    scope: dict[str, object] = {**defaults, "make": maker(model)}
    exec(source, scope)
    return cast("type[Model]", scope["build"])


def changed(message: Model, **changes: object) -> Model:
    """A copy of the message with other values in some of its fields, which are believed too."""
    return remake(message, changes)
