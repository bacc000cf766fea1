"""Replacing functions of the protocol for the length of a block.

The protocol does not know its mutants. To run it without a guard, a function, method or property with a name is
replaced on its module or class for the whole process, and restored. Calls within extension modules are bound at compile
time, so this needs the interpreted sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import getattr_static, signature
from typing import TypeAlias

from experiments.support.build import is_compiled
from experiments.support.errors import InputError

Original: TypeAlias = Callable[..., object]
"""The function that a patch replaces."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Puts `make(original)` in the place of `owner.name`, which must be defined there and not be inherited."""

    owner: object
    name: str
    make: Callable[..., object]


@contextmanager
def replaced(name: str, patches: Sequence[Patch]) -> Iterator[None]:
    """Puts the patches in place until the end of the block; `name` is what errors call them. AttributeError if a patch
    has no original, InputError in a compiled build.
    """
    if is_compiled():
        raise InputError("this build", "", "compiled", "the interpreted sources, where functions can be replaced")
    with ExitStack() as stack:
        for patch in patches:
            if patch.name not in vars(patch.owner):
                raise AttributeError(
                    f"{name}: {getattr(patch.owner, '__name__', patch.owner)} has no {patch.name} of its own"
                )
            original = getattr_static(patch.owner, patch.name)
            stack.callback(setattr, patch.owner, patch.name, original)
            setattr(patch.owner, patch.name, patch.make(original))
        yield


def around(owner: object, name: str, function: Callable[..., object]) -> Patch:
    """A patch by `function`, which is called with the original and then with the arguments of the call. It keeps the
    original's name, by which snapshots of nodes refer to methods.
    """

    def make(original: Callable[..., object]) -> Callable[..., object]:
        @wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            return function(original, *args, **kwargs)

        return call

    return Patch(owner, name, make)


def constant(owner: object, name: str, value: object) -> Patch:
    """A patch by a function that takes any arguments and always returns `value`."""
    return around(owner, name, lambda *args, **kwargs: value)


def as_property(owner: object, name: str, getter: Callable[..., object]) -> Patch:
    """A patch of a property by another one."""
    return Patch(owner, name, lambda original: property(getter))


def with_arguments(owner: object, name: str, /, **changes: Callable[..., object]) -> Patch:
    """A patch that replaces these arguments in each call of the original, each by its change's result for it."""

    def make(original: Callable[..., object]) -> Callable[..., object]:
        parameters = signature(original)

        def call(*args: object, **kwargs: object) -> object:
            bound = parameters.bind(*args, **kwargs)
            bound.arguments.update({key: change(bound.arguments[key]) for key, change in changes.items()})
            return original(*bound.args, **bound.kwargs)

        return call

    return Patch(owner, name, make)
