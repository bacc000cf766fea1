"""Copies of nodes: a step is computed on a copy, and the state that it began in stays as it is.

A copy shares with the original what never changes: messages, states of partitions, registrations, configs, functions.
Everything else is copied, and what an object refers to twice is one object in the copy as well. A node in the middle
of a procedure cannot be copied (`machines.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from pydantic import BaseModel

from experiments.hunt.explore.values import ATOMS, VALUE_TYPES, attributes_of
from protocol.config import ClusterConfig
from protocol.errors import ProtocolInvariantError
from protocol.messages.base import Message

_Copier = Callable[[Any, dict[int, Any]], Any]


def copy_of(thing: Any) -> Any:
    """A copy, which may be changed without changing the original."""
    return _copy(thing, {})


def _copy(thing: Any, made: dict[int, Any]) -> Any:
    kind = type(thing)
    if kind in ATOMS:
        return thing
    copier = _COPIERS.get(kind)
    if copier is None:
        copier = _COPIERS[kind] = _copier_of(kind)
    return copier(thing, made)


def _copier_of(kind: type) -> _Copier:
    if issubclass(kind, _SHARED) or kind in VALUE_TYPES:
        return lambda thing, made: thing
    for base, copier in _CONTAINERS.items():
        if issubclass(kind, base):
            return copier
    if kind.__reduce__ is not object.__reduce__ or hasattr(kind, "__next__"):
        raise ProtocolInvariantError(f"a {kind.__name__} cannot be copied")
    return _object_copier(kind)


def _object_copier(kind: type) -> _Copier:
    slots, has_dict = attributes_of(kind)
    new, set_attribute = object.__new__, object.__setattr__

    def copy_object(thing: Any, made: dict[int, Any]) -> Any:
        found = made.get(id(thing))
        if found is not None:
            return found
        found = made[id(thing)] = new(kind)
        for name in slots:
            value = getattr(thing, name)
            set_attribute(found, name, value if type(value) in ATOMS else _copy(value, made))
        if has_dict:
            attributes: dict[str, Any] = found.__dict__
            for name, value in vars(thing).items():
                attributes[name] = value if type(value) in ATOMS else _copy(value, made)
        return found

    return copy_object


def _copy_tuple(things: Any, made: dict[int, Any]) -> Any:
    parts = [_copy(thing, made) for thing in things]
    if all(part is thing for part, thing in zip(parts, things, strict=True)):
        return things
    kind = type(things)
    return kind(parts) if kind is tuple else kind(*parts)


def _copy_items(things: Any, made: dict[int, Any]) -> Any:
    found = made.get(id(things))
    if found is None:
        found = made[id(things)] = type(things)()
        found.extend([thing if type(thing) in ATOMS else _copy(thing, made) for thing in things])
    return found


def _copy_dict(things: Any, made: dict[int, Any]) -> Any:
    found = made.get(id(things))
    if found is None:
        found = made[id(things)] = type(things)()
        for name, thing in things.items():
            found[name] = thing if type(thing) in ATOMS else _copy(thing, made)
    return found


def _copy_partial(thing: Any, made: dict[int, Any]) -> Any:
    return partial(_copy(thing.func, made), *_copy(thing.args, made), **_copy(thing.keywords, made))


_SHARED = (type, Enum, Message, BaseModel, ClusterConfig, Random, FunctionType, BuiltinFunctionType, range, frozenset)
_CONTAINERS: dict[type, _Copier] = {
    tuple: _copy_tuple,
    list: _copy_items,
    deque: _copy_items,
    dict: _copy_dict,
    set: lambda things, made: made.setdefault(id(things), type(things)(things)),
    MethodType: lambda method, made: MethodType(method.__func__, _copy(method.__self__, made)),
    partial: _copy_partial,
}
_COPIERS: dict[type, _Copier] = {}
