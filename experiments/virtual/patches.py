"""What a library sees of clocks and random sources while a run lasts, in the thread of the run alone.

`time.time`, `time.monotonic` and `time.perf_counter` (and their `_ns` forms) show the simulator's clock, which begins
at 0, as the clocks of the brokers do: the day of a run is 1970-01-01. The module `random`, `os.urandom` (and with it
`uuid.uuid4` and `secrets`) draw from the seed. Blocking sleeps, threads, processes and sockets are refused. Everything
is as it was after the run. Functions that were imported from these modules by name before the run are not reached, nor
is `datetime.now`.

Objects in cycles are collected after the run: during it their finalizers would run at times that depend on what the
process did before.

aiokafka's compiled record builder asks the operating system for the time of records that are given none. Its class is
replaced by a subclass that gives it the time of the run. Its producers are numbered from 1 in each run, and its
sets iterate in the order of insertion (`ordered_sets.py`).
"""

from __future__ import annotations

import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any
from unittest.mock import patch

from experiments.engines.sim.cluster import SimCluster
from experiments.virtual.ordered_sets import OrderedFrozenSet, OrderedSet
from experiments.virtual.refusals import refusal

_SECONDS = ("time", "monotonic", "perf_counter")
_NANOSECONDS = ("time_ns", "monotonic_ns", "perf_counter_ns")
_BUILDER = "DefaultRecordBatchBuilder"
_PRODUCER = "AIOKafkaProducer"
_COUNTER = "_PRODUCER_CLIENT_ID_SEQUENCE"


@contextmanager
def patched(cluster: SimCluster, rng: Random) -> Iterator[None]:
    """For the block: the clock of `cluster`, and randomness from `rng`."""
    owner = threading.get_ident()
    before = random.getstate()

    def here(own: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*args: Any, **options: Any) -> Any:
            return (own if threading.get_ident() == owner else real)(*args, **options)

        return chosen

    def refused(name: str, reason: str) -> Callable[..., Any]:
        def refuse(*args: Any, **options: Any) -> Any:
            raise refusal(name, reason)

        return refuse

    replaced: list[tuple[object, str, Callable[..., Any]]] = [
        *((time, name, lambda: cluster.now_ms / 1_000) for name in _SECONDS),
        *((time, name, lambda: cluster.now_ms * 1_000_000) for name in _NANOSECONDS),
        (time, "sleep", refused("time.sleep", "it would stop virtual time; await asyncio.sleep")),
        (threading.Thread, "start", refused("Thread.start", "client code in virtual time has no threads")),
        (
            socket.socket,
            "__init__",
            refused("socket.socket", "client code in virtual time has the connections of its loop, no sockets"),
        ),
        (subprocess.Popen, "__init__", refused("subprocess.Popen", "client code in virtual time has no processes")),
        (os, "urandom", rng.randbytes),
    ]
    builders = _timed_builders(lambda: cluster.now_ms)
    collects = gc.isenabled()
    gc.disable()
    random.seed(rng.getrandbits(64))
    try:
        with ExitStack() as stack:
            for owner_object, name, own in replaced:
                stack.enter_context(patch.object(owner_object, name, here(own, getattr(owner_object, name))))
            for module, builder in builders:
                stack.enter_context(patch.object(module, _BUILDER, builder))
            for module in _modules("aiokafka."):
                stack.enter_context(patch.multiple(module, create=True, set=OrderedSet, frozenset=OrderedFrozenSet))
                if hasattr(module, _PRODUCER):
                    stack.enter_context(patch.object(getattr(module, _PRODUCER), _COUNTER, 0))
            yield
    finally:
        random.setstate(before)
        if collects:
            gc.enable()


def _timed_builders(now_ms: Callable[[], int]) -> list[tuple[object, type[Any]]]:
    """The modules of aiokafka that build records, each with the class that it gets; empty where it is not installed."""
    if find_spec("aiokafka") is None:
        return []
    import_module("aiokafka")
    modules = _modules("aiokafka.producer.")
    return [(module, _timed(getattr(module, _BUILDER), now_ms)) for module in modules if hasattr(module, _BUILDER)]


def _modules(prefix: str) -> list[object]:
    return [module for name, module in sys.modules.items() if name.startswith(prefix)]


def _timed(builder: type[Any], now_ms: Callable[[], int]) -> type[Any]:
    class Timed(builder):  # type: ignore[misc]
        """A record builder whose records have the time of the run unless they are given one."""

        def append(self, offset: int, timestamp: int | None, *fields: Any, **named: Any) -> Any:
            return super().append(offset, now_ms() if timestamp is None else timestamp, *fields, **named)

    return Timed
