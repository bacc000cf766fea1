"""Keys of nodes: nested tuples of plain values that are equal for two objects if and only if they hold the same,
whatever objects they share and in whatever order their sets were filled.

A key is made by walking every attribute, so that one that is added to a node becomes part of the state, except those
that its class declares as `NOT_STATE` (`protocol/contract.py`). Dicts keep their order, since nodes iterate over them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from random import Random
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import Any

from protocol.config import ClusterConfig
from protocol.controller.metrics import ControllerMetrics
from protocol.features import Features
from protocol.messages.base import Message
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState

CALLS = frozenset({partial, FunctionType, GeneratorType, zip, enumerate})
"""Functions, and what goes on with them. How far a loop over `zip` or `enumerate` is, its variables show."""


def held_by(call: object) -> tuple[object, ...]:
    """The name of a function with what it has been given; of a procedure that has begun with where it has stopped, its
    variables, and the procedure that it waits for.

    A node may hold functions for later: methods bound to arguments, functions within functions, and, in `v3`,
    procedures, which are generators. Where a generator has stopped and what its variables are only its frame says. No
    other function reads frames and closures. It needs the interpreted sources.
    """
    if isinstance(call, partial):
        return "partial", call.func, call.args, call.keywords
    if isinstance(call, FunctionType):
        return call.__qualname__, *[cell.cell_contents for cell in call.__closure__ or ()]
    if isinstance(call, GeneratorType):
        frame = call.gi_frame
        if frame is None:
            return call.__qualname__, "ended"
        return call.__qualname__, frame.f_lasti, tuple(frame.f_locals.items()), call.gi_yieldfrom
    return (type(call).__name__,)


def not_state(kind: type) -> frozenset[str]:
    """The attributes of objects of that type that are no part of the state, as it and its bases declare them."""
    return frozenset[str]().union(*(vars(base).get("NOT_STATE", ()) for base in kind.__mro__))


def attributes_of(kind: type) -> tuple[list[str], bool]:
    """The slots of objects of that type, and whether they have a dict of attributes."""
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if not name.startswith("__")]
    return slots, any("__dict__" in vars(base) for base in kind.__mro__)


class ValueTable:
    """Immutable values, each once; a number for each."""

    def __init__(self) -> None:
        self._values: list[object] = []
        self._numbers: dict[object, int] = {}
        self._by_identity: dict[int, tuple[int, object]] = {}

    def number(self, value: object) -> int:
        found = self._by_identity.get(id(value))
        if found is not None:
            return found[0]
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        self._by_identity[id(value)] = number, value
        return number

    def value(self, number: int) -> object:
        return self._values[number]


VALUES = ValueTable()


class Keys:
    """Makes keys. Dicts keep their order unless `unordered` is set."""

    def __init__(self, *, unordered: bool = False) -> None:
        self._unordered = unordered
        self._walkers: dict[type, Callable[[Any, dict[int, int]], object]] = {}

    def key(self, thing: object) -> object:
        return self._walk(thing, {})

    def _walk(self, thing: object, seen: dict[int, int]) -> object:
        kind = type(thing)
        if kind in ATOMS:
            return thing
        walker = self._walkers.get(kind)
        if walker is None:
            walker = self._walkers[kind] = self._walker_of(kind)
        return walker(thing, seen)

    def _walker_of(self, kind: type) -> Callable[[Any, dict[int, int]], object]:
        if issubclass(kind, Message):
            return lambda message, seen: ("#", VALUES.number(message))
        if issubclass(kind, list | tuple | deque):
            return self._walk_items
        if issubclass(kind, dict):
            return self._walk_dict
        if issubclass(kind, set | frozenset):
            return self._walk_set
        if issubclass(kind, Enum) or kind in VALUE_TYPES:
            return lambda thing, seen: thing
        if issubclass(kind, _NAMED):
            return lambda thing, seen: getattr(thing, "__qualname__", type(thing).__name__)
        if issubclass(kind, Random):
            return lambda rng, seen: rng.getstate()
        return self._walk_call if kind in CALLS else self._object_walker(kind)

    def _walk_items(self, things: Iterable[object], seen: dict[int, int]) -> object:
        walk = self._walk
        return tuple([thing if type(thing) in ATOMS else walk(thing, seen) for thing in things])

    def _walk_dict(self, thing: Mapping[object, object], seen: dict[int, int]) -> object:
        walk = self._walk
        items = [(walk(name, seen), walk(item, seen)) for name, item in thing.items()]
        return tuple(sorted(items, key=lambda item: repr(item[0])) if self._unordered and len(items) > 1 else items)

    def _walk_set(self, things: Iterable[object], seen: dict[int, int]) -> object:
        return ("set", *sorted((self._walk(item, seen) for item in things), key=repr))

    def _walk_call(self, thing: object, seen: dict[int, int]) -> object:
        if isinstance(thing, GeneratorType):
            place = seen.get(id(thing))
            if place is not None:
                return ("@", place)
            seen[id(thing)] = len(seen)
        return self._walk_items(held_by(thing), seen)

    def _object_walker(self, kind: type) -> Callable[[Any, dict[int, int]], object]:
        walk, skipped, kind_name = self._walk, not_state(kind), kind.__name__
        all_slots, has_dict = attributes_of(kind)
        slots = [name for name in all_slots if name not in skipped]

        def walk_object(thing: object, seen: dict[int, int]) -> object:
            place = seen.get(id(thing))
            if place is not None:
                return ("@", place)
            seen[id(thing)] = len(seen)
            if has_dict:
                parts = [item for name, item in vars(thing).items() if name not in skipped]
            else:
                parts = [getattr(thing, name) for name in slots]
            return (kind_name, *[part if type(part) in ATOMS else walk(part, seen) for part in parts])

        return walk_object


ATOMS = frozenset({int, str, bytes, bool, float, type(None)})
VALUE_TYPES = frozenset({PartitionState, BrokerRegistration, Features})
"""Immutable types of which equal objects are the same."""
_NAMED = (MethodType, BuiltinFunctionType, type, ClusterConfig, ControllerMetrics)
"""Functions, and types of which there is one object in a search."""
