"""Keys and snapshots of nodes: equal states have equal keys, and copies of a state are cheap.

A *key* is a nested tuple of plain values that is equal for two objects if and only if they hold the same, whatever
objects they share and in whatever order their sets were filled. It is made by walking every attribute there is, so that
an attribute that is added to a node becomes part of the state by itself. Attributes that are left out are listed in
`LEFT_OUT`, each with its reason. Dicts keep their order, since a node may iterate over them.

A *snapshot* is a pickle from which the object can be made anew as often as it is wanted. Messages and other immutable
values are not in it: they are in one table per process (`VALUES`), a number stands for each, and all copies share them.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from random import Random
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType

from protocol.broker.context import Replica
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
from protocol.nodes.broker import BrokerNode
from protocol.nodes.broker_sessions import BrokerSessions
from protocol.nodes.controller import ControllerNode
from protocol.nodes.controller_log import ControllerLog
from protocol.nodes.controller_quorum import ControllerQuorum
from protocol.nodes.store import StoreNode
from protocol.nodes.store_broker import StoreBrokerNode
from protocol.nodes.store_calls import Moment, SessionOutlet
from protocol.nodes.store_controller import Term
from protocol.zookeeper.commands import _Channel
from protocol.zookeeper.transaction_log import TransactionLog

LEFT_OUT: Mapping[type, frozenset[str]] = {
    # Tables of the parts' methods, parts that only refer to other parts, and the replica of the metadata log, which the
    # image shows as far as it counts.
    BrokerNode: frozenset({"_handlers", "_timers", "_metadata", "_services", "replica"}),
    # Tables of handlers, and the replica of the metadata log, whose records the image shows.
    ControllerNode: frozenset({"storage", "replica", "_quorum_out", "_handlers", "_active_handlers"}),
    ControllerQuorum: frozenset({"_replica"}),
    # The metrics follow the records, and no decision reads them. Recoveries follow the records too, and what they send
    # goes to a manager that is in no search.
    ControllerLog: frozenset({"_replica", "metrics", "recoveries"}),
    # Whether a timer is set: in the search it may fire whenever its condition holds.
    Fetcher: frozenset({"_timed", "_unsettled"}),
    Flusher: frozenset({"_flush_due", "_checkpoint_due", "_retention_timer_is_set"}),
    DelayedProduces: frozenset({"_timer_is_set"}),
    IsrShrink: frozenset({"_lag_timers"}),
    # Tables of the parts' methods, and parts that only refer to others.
    StoreBrokerNode: frozenset({"_handlers", "_timers", "_services"}),
    # The transactions that have led to the tree; the store does not crash in a search.
    StoreNode: frozenset({"_storage"}),
    TransactionLog: frozenset({"_storage", "_log"}),
    # Names of timers, to be cancelled with the procedures.
    SessionOutlet: frozenset({"_timers"}),
    # Times, and what only helps to reckon them.
    Moment: frozenset({"now_ms"}),
    Term: frozenset({"due_ms"}),
    _Channel: frozenset({"due_ms"}),
    BrokerLifecycleManager: frozenset({"_next_heartbeat_ms"}),
    FollowerProgress: frozenset({"last_caught_up_ms", "last_fetch_ms", "leader_end_at_last_fetch"}),
}
"""Attributes that are not part of the state."""


NOT_OBSERVED: Mapping[type, frozenset[str]] = {
    BrokerNode: LEFT_OUT[BrokerNode] | {"_fetcher", "_isr", "_leader", "_reads", "_recovery", "_flusher"},
    BrokerLifecycleManager: LEFT_OUT[BrokerLifecycleManager] | {"_correlation_id", "_flusher", "_rng"},
    Replica: frozenset({"delayed_produces"}),
    FollowerProgress: LEFT_OUT[FollowerProgress] | {"parked_fetch", "fetcher"},
    ControllerNode: LEFT_OUT[ControllerNode],
    ControllerQuorum: LEFT_OUT[ControllerQuorum],
    ControllerLog: LEFT_OUT[ControllerLog] | {"incarnations"},
    BrokerSessions: frozenset({"_open"}),
}
"""Attributes that no invariant reads: fetch sessions, requests in flight, parked fetches."""


class ValueTable:
    """Immutable values, each once; a number for each."""

    def __init__(self) -> None:
        self._values: list[object] = []
        self._numbers: dict[object, int] = {}

    def number(self, value: object) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def value(self, number: int) -> object:
        return self._values[number]


VALUES = ValueTable()
_CONFIGS: dict[int, ClusterConfig] = {}


def value_at(number: int) -> object:
    """The value of that number in `VALUES`; what snapshots are made of."""
    return VALUES.value(number)


def config_at(identity: int) -> ClusterConfig:
    """The config object that a snapshot refers to."""
    return _CONFIGS[identity]


def _reduce_value(value: object) -> tuple[Callable[[int], object], tuple[int]]:
    return value_at, (VALUES.number(value),)


def _reduce_config(config: ClusterConfig) -> tuple[Callable[[int], ClusterConfig], tuple[int]]:
    _CONFIGS[id(config)] = config
    return config_at, (id(config),)


def _none() -> None:
    return None


def _reduce_to_none(thing: object) -> tuple[Callable[[], None], tuple[()]]:
    return _none, ()


def dump(thing: object, left_out: tuple[type, ...] = ()) -> bytes:
    """A snapshot, to be read by `pickle.loads` in this process; objects of the types `left_out` come back as None."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**_DISPATCH, **dict.fromkeys(left_out, _reduce_to_none)} if left_out else _DISPATCH
    pickler.dump(thing)
    return buffer.getvalue()


_DISPATCH: dict[type, Callable[..., tuple[Callable[..., object], tuple[object, ...]]]] = {
    **dict.fromkeys(Message.REGISTRY.values(), _reduce_value),
    PartitionState: _reduce_value,
    BrokerRegistration: _reduce_value,
    Features: _reduce_value,
    ClusterConfig: _reduce_config,
}


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
        self._attributes: dict[type, tuple[str, ...] | None] = {}
        self._skips: dict[type, frozenset[str]] = {}
        self._constants = {ClusterConfig, ControllerMetrics, *constants}

    def key(self, thing: object) -> object:
        return self._walk(thing, {})

    def _walk(self, thing: object, seen: dict[int, int]) -> object:
        kind = type(thing)
        if thing is None or kind in _ATOMS:
            return thing
        if isinstance(thing, Message):
            return ("#", VALUES.number(thing))
        if isinstance(thing, list | tuple | deque):
            return tuple([self._walk(item, seen) for item in thing])
        if isinstance(thing, dict):
            items = [(self._walk(name, seen), self._walk(item, seen)) for name, item in thing.items()]
            return tuple(sorted(items, key=repr) if self._unordered else items)
        if isinstance(thing, set | frozenset):
            return ("set", *sorted((self._walk(item, seen) for item in thing), key=repr))
        if isinstance(thing, Enum) or kind in _VALUES:
            return thing
        if kind in self._constants or isinstance(thing, _FUNCTIONS):
            return getattr(thing, "__qualname__", kind.__name__)
        if isinstance(thing, Random):
            return thing.getstate()
        if kind in _CALLS:
            return self._walk_call(thing, seen)
        return self._walk_object(thing, kind, seen)

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

    def _walk_object(self, thing: object, kind: type, seen: dict[int, int]) -> object:
        place = seen.get(id(thing))
        if place is not None:
            return ("@", place)
        seen[id(thing)] = len(seen)
        names = self._names(kind)
        if names is None:
            skipped = self._skipped(kind)
            names = tuple([name for name in vars(thing) if name not in skipped])
        return (kind.__name__, *[self._walk(getattr(thing, name), seen) for name in names])

    def _names(self, kind: type) -> tuple[str, ...] | None:
        """The slots of a class, None where its objects have a dict."""
        if kind not in self._attributes:
            slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
            skipped = self._skipped(kind)
            has_dict = any("__dict__" in vars(base) for base in kind.__mro__)
            self._attributes[kind] = None if has_dict else tuple(name for name in slots if name not in skipped)
        return self._attributes[kind]

    def _skipped(self, kind: type) -> frozenset[str]:
        skipped = self._skips.get(kind)
        if skipped is None:
            named = (names for base, names in self._left_out.items() if issubclass(kind, base))
            skipped = self._skips[kind] = frozenset[str]().union(*named)
        return skipped


_CALLS = frozenset({partial, FunctionType, GeneratorType, zip, enumerate})
"""Functions, and what goes on with them. How far a loop over `zip` or `enumerate` is, its variables show."""
_ATOMS = frozenset({int, str, bytes, bool, float})
_VALUES = frozenset({PartitionState, BrokerRegistration, Features})
_FUNCTIONS = (MethodType, BuiltinFunctionType, type)
