"""Keys of nodes: equal states have equal keys.

A *key* is a nested tuple of plain values that is equal for two objects if and only if they hold the same, whatever
objects they share and in whatever order their sets were filled. It is made by walking every attribute there is, so that
an attribute that is added to a node becomes part of the state by itself. Attributes that are left out are listed in
`LEFT_OUT`, each with its reason. Dicts keep their order, since a node may iterate over them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from random import Random
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import Any

from protocol.broker.delayed_produce import DelayedProduces
from protocol.broker.fetcher import Fetcher
from protocol.broker.flushing import Flusher
from protocol.broker.isr_shrink import IsrShrink
from protocol.broker.leadership import FollowerProgress
from protocol.broker.lifecycle_manager import BrokerLifecycleManager
from protocol.config import ClusterConfig, Features
from protocol.controller.metrics import ControllerMetrics
from protocol.messages.base import Message
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode
from protocol.nodes.controller_log import ControllerLog
from protocol.nodes.controller_quorum import ControllerQuorum
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.v3.controller.commands import _Channel
from protocol.v3.controller.outlet import SessionOutlet
from protocol.v3.controller.term import Term
from protocol.v3.store.node import StoreNode
from protocol.v3.store.transaction_log import TransactionLog

LEFT_OUT: Mapping[type, frozenset[str]] = {
    # Tables of the parts' methods, and parts that only refer to others.
    BaseBroker: frozenset({"_handlers", "_timers", "_services"}),
    # A part that only refers to others, and the replica of the metadata log, which the image shows as far as it counts.
    BrokerNode: frozenset({"_metadata", "replica"}),
    # Tables of handlers, and the replica of the metadata log, whose records the image shows.
    ControllerNode: frozenset({"storage", "replica", "_quorum_out", "_handlers", "_active_handlers"}),
    ControllerQuorum: frozenset({"_replica"}),
    # The metrics follow the records, and no decision reads them.
    ControllerLog: frozenset({"_replica", "metrics"}),
    # Whether a timer is set: in the search it may fire whenever its condition holds.
    Fetcher: frozenset({"_timed", "_unsettled"}),
    Flusher: frozenset({"_flush_due", "_checkpoint_due", "_retention_timer_is_set"}),
    DelayedProduces: frozenset({"_timer_is_set"}),
    IsrShrink: frozenset({"_lag_timers"}),
    RecoveryManagerNode: frozenset({"_wake_ms"}),
    # The transactions that have led to the tree; the store does not crash in a search.
    StoreNode: frozenset({"_storage"}),
    TransactionLog: frozenset({"_storage", "_log"}),
    # Names of timers, to be cancelled with the procedures.
    SessionOutlet: frozenset({"_timers"}),
    # Times, and what only helps to reckon them.
    Term: frozenset({"due_ms"}),
    _Channel: frozenset({"due_ms"}),
    BrokerLifecycleManager: frozenset({"_next_heartbeat_ms"}),
    FollowerProgress: frozenset({"last_caught_up_ms", "last_fetch_ms", "leader_end_at_last_fetch"}),
}
"""Attributes that are not part of the state."""


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
    """Makes keys. `left_out` names attributes by class; `constants` are types of which there is one object in a
    search. Dicts keep their order unless `unordered` is set.
    """

    def __init__(
        self,
        left_out: Mapping[type, frozenset[str]] = LEFT_OUT,
        constants: tuple[type, ...] = (),
        *,
        unordered: bool = False,
    ) -> None:
        self._unordered = unordered
        self._left_out = left_out
        self._walkers: dict[type, Callable[[Any, dict[int, int]], object]] = {}
        self._constants = {ClusterConfig, ControllerMetrics, *constants}

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
        """How objects of that type are walked."""
        if issubclass(kind, Message):
            return _number_of_message
        if issubclass(kind, list | tuple | deque):
            return self._walk_items
        if issubclass(kind, dict):
            return self._walk_dict
        if issubclass(kind, set | frozenset):
            return self._walk_set
        if issubclass(kind, Enum) or kind in VALUE_TYPES:
            return _itself
        if kind in self._constants or issubclass(kind, _FUNCTIONS):
            return _name
        if issubclass(kind, Random):
            return _random_state
        return self._walk_call if kind in _CALLS else self._object_walker(kind)

    def _walk_items(self, things: Iterable[object], seen: dict[int, int]) -> object:
        walk = self._walk
        return tuple([thing if type(thing) in ATOMS else walk(thing, seen) for thing in things])

    def _walk_dict(self, thing: Mapping[object, object], seen: dict[int, int]) -> object:
        walk = self._walk
        items = [(walk(name, seen), walk(item, seen)) for name, item in thing.items()]
        return tuple(sorted(items, key=_repr_of_name) if self._unordered and len(items) > 1 else items)

    def _walk_set(self, things: Iterable[object], seen: dict[int, int]) -> object:
        return ("set", *sorted((self._walk(item, seen) for item in things), key=repr))

    def _walk_call(self, thing: object, seen: dict[int, int]) -> object:
        """A function with what it has been given, or a procedure that has begun."""
        if isinstance(thing, partial):
            return ("partial", *[self._walk(part, seen) for part in (thing.func, thing.args, thing.keywords)])
        if isinstance(thing, FunctionType):
            return (thing.__qualname__, *[self._walk(cell.cell_contents, seen) for cell in thing.__closure__ or ()])
        if isinstance(thing, GeneratorType):
            return self._walk_procedure(thing, seen)
        return type(thing).__name__

    def _walk_procedure(self, procedure: GeneratorType[object, object, object], seen: dict[int, int]) -> object:
        """Where a procedure has stopped, its variables, and the procedure that it waits for."""
        place, frame = seen.get(id(procedure)), procedure.gi_frame
        if place is not None:
            return ("@", place)
        seen[id(procedure)] = len(seen)
        if frame is None:
            return (procedure.__qualname__, "ended")
        variables = [(name, self._walk(value, seen)) for name, value in frame.f_locals.items()]
        return (procedure.__qualname__, frame.f_lasti, tuple(variables), self._walk(procedure.gi_yieldfrom, seen))

    def _object_walker(self, kind: type) -> Callable[[Any, dict[int, int]], object]:
        """Walks the attributes of objects of that type: its slots, or what is in the objects' dicts."""
        walk, skipped, kind_name = self._walk, self._skipped(kind), kind.__name__
        slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if name not in skipped]
        has_dict = any("__dict__" in vars(base) for base in kind.__mro__)

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

    def _skipped(self, kind: type) -> frozenset[str]:
        named = (names for base, names in self._left_out.items() if issubclass(kind, base))
        return frozenset[str]().union(*named)


def _repr_of_name(item: tuple[object, object]) -> str:
    return repr(item[0])


def _itself(thing: object, seen: dict[int, int]) -> object:
    return thing


def _number_of_message(message: Message, seen: dict[int, int]) -> object:
    return ("#", VALUES.number(message))


def _name(thing: object, seen: dict[int, int]) -> object:
    return getattr(thing, "__qualname__", type(thing).__name__)


def _random_state(rng: Random, seen: dict[int, int]) -> object:
    return rng.getstate()


_CALLS = frozenset({partial, FunctionType, GeneratorType, zip, enumerate})
"""Functions, and what goes on with them. How far a loop over `zip` or `enumerate` is, its variables show."""
ATOMS = frozenset({int, str, bytes, bool, float, type(None)})
VALUE_TYPES = frozenset({PartitionState, BrokerRegistration, Features})
"""Immutable types of which equal objects are the same."""
_FUNCTIONS = (MethodType, BuiltinFunctionType, type)
