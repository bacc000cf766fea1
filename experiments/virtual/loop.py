"""An asyncio event loop whose clock is the simulator's.

The loop has three sources of callbacks: those that are ready (`call_soon`), its timers, and the events of the cluster,
some of which are bytes for the application. `run_until` takes them in one order. While callbacks are ready they run, in
the order in which they were scheduled, as asyncio promises; time stands meanwhile. When none is left, the cluster's
next event or the loop's next timer is due, whichever is earlier, and at equal times the cluster's event. Time is whole
milliseconds; timers are rounded up.

Timers that are due at one time may fire in any order on a real loop, since it wakes late. With `order` they fire in an
order drawn from it, and up to `LATE_MS` late, so that seeds find what depends on it.

A real loop spends time on callbacks. Here callbacks that only schedule each other would stop the clock for good, so
every `CALLBACKS_PER_MS` callbacks at one time take a millisecond.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from heapq import heappop, heappush
from math import ceil
from random import Random
from typing import Any, NoReturn, TypeVarTuple

from experiments.engines.sim.cluster import SimCluster
from experiments.virtual.connections import Connections
from experiments.virtual.refusals import refusal
from protocol.ids import NodeId, TimeMs

_Ts = TypeVarTuple("_Ts")
LATE_MS = 1
CALLBACKS_PER_MS = 10_000
_NO_THREADS = "client code in virtual time has no threads"
_NO_SOCKETS = "client code in virtual time has the connections of the simulated network only"
_REFUSED = {
    "run_in_executor": _NO_THREADS,
    "set_default_executor": _NO_THREADS,
    "subprocess_exec": "client code in virtual time has no processes",
    "subprocess_shell": "client code in virtual time has no processes",
    "start_tls": "the simulated network has no TLS",
    "add_signal_handler": "client code in virtual time has no signals",
} | dict.fromkeys(
    (
        *("add_reader", "remove_reader", "add_writer", "remove_writer", "sock_recv", "sock_recv_into", "sock_recvfrom"),
        *("sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile"),
        *("sendfile", "create_server", "create_unix_server", "create_unix_connection", "create_datagram_endpoint"),
        *("connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "getnameinfo"),
    ),
    _NO_SOCKETS,
)


class _Numbered:
    """Hashes by the order of creation, not by the address in memory, which differs between runs: asyncio and libraries
    iterate over sets of futures and tasks.
    """

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedFuture(_Numbered, asyncio.Future[Any]):
    """A future of the loop."""


class SimulatedTask(_Numbered, asyncio.Task[Any]):
    """A task of the loop."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of the application on `host`, which reaches brokers by `connections`. ContextVars, futures, tasks,
    asynchronous generators, streams and timeouts are asyncio's own; what it refuses is in `_REFUSED`.
    """

    def __init__(self, cluster: SimCluster, connections: Connections, host: NodeId, order: Random | None) -> None:
        self._cluster = cluster
        self._connections = connections
        self._host = host
        self._order = order
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[TimeMs, int, asyncio.TimerHandle]] = []
        self._last_number = 0
        self._thread = threading.get_ident()
        self._is_closed = False
        self._is_running = False
        self._tasks: dict[int, SimulatedTask] = {}
        self._task_factory: Callable[..., Any] | None = None
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._burst: tuple[TimeMs, int] = (0, 0)
        self.unhandled: list[str] = []
        """What the exception handler was called with: exceptions of callbacks, and those that no task awaited."""

    # -- running -------------------------------------------------------------------------------------------------------

    def run_until(self, is_done: Callable[[], bool], until_ms: TimeMs) -> bool:
        """Runs application and cluster until `is_done`, at most to a time; returns whether it was reached."""
        cluster = self._cluster
        while True:
            self._run_ready()
            if is_done():
                return True
            due_ms = min(self._next_timer_ms(until_ms), until_ms)
            while not self._ready and cluster.step(due_ms):
                if is_done():
                    return True
            if self._ready:
                continue
            if not self._take_due_timers() and cluster.now_ms >= until_ms:
                return False

    def run_until_complete(self, future: Any) -> Any:
        """Runs until a future is done; returns its result. The engine's own waits use `run_until`."""
        task = asyncio.ensure_future(future, loop=self)
        self.run_until(task.done, 2**47)
        return task.result()

    def _run_ready(self) -> None:
        ready = self._ready
        if not ready:
            return
        self._is_running = True
        events._set_running_loop(self)
        try:
            while ready:
                handle = ready.popleft()
                if not handle.cancelled():
                    self._count_callback()
                    handle._run()
        finally:
            events._set_running_loop(None)
            self._is_running = False

    def _count_callback(self) -> None:
        now_ms, (since_ms, count) = self._cluster.now_ms, self._burst
        self._burst = (now_ms, count + 1 if since_ms == now_ms else 1)
        if count >= CALLBACKS_PER_MS and since_ms == now_ms:
            self._burst = (now_ms, 0)
            self._cluster.run_until(now_ms + 1)

    def _next_timer_ms(self, otherwise_ms: TimeMs) -> TimeMs:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        return timers[0][0] if timers else otherwise_ms

    def _take_due_timers(self) -> bool:
        due: list[asyncio.Handle] = []
        while self._next_timer_ms(self._cluster.now_ms + 1) <= self._cluster.now_ms:
            due.append(heappop(self._timers)[2])
        if self._order is not None:
            self._order.shuffle(due)
        self._ready += due
        return bool(due)

    # -- scheduling ----------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._cluster.now_ms / 1_000

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise refusal("loop.call_soon_threadsafe", _NO_THREADS)
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        due_ms = ceil(round(when * 1_000, 3))
        if self._order is not None:
            due_ms += self._order.randint(0, LATE_MS)
        heappush(self._timers, (due_ms, self._next_number(), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer is dropped when it is due."""

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def create_future(self) -> asyncio.Future[Any]:
        future = SimulatedFuture(loop=self)
        future.number = self._next_number()
        return future

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        if self._task_factory is not None:
            return self._task_factory(self, coro)  # type: ignore[no-any-return]
        number = self._next_number()
        task = _unhashed_task(number, coro, self, f"task-{number}" if name is None else str(name), context)
        self._tasks[number] = task
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(hash(task), None)

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    # -- the network ---------------------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        broker = await self._connections.resolve(self, self._host, host)
        address = (self._connections.address(broker), int(port))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        ssl: Any = None,
        **options: Any,
    ) -> Any:
        if ssl:
            raise refusal("loop.create_connection(ssl=...)", _REFUSED["start_tls"])
        if options.get("sock") is not None:
            raise refusal("loop.create_connection(sock=...)", _NO_SOCKETS)
        broker = await self._connections.resolve(self, self._host, host)
        protocol = protocol_factory()
        connected = self.create_future()
        transport = self._connections.connect(self, self._host, broker, int(port), protocol, connected)
        try:
            await connected
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

    # -- state ---------------------------------------------------------------------------------------------------------

    def pending(self) -> list[str]:
        """The names and coroutines of the tasks that are not done, in the order of their creation."""
        return [f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}" for task in self._tasks.values()]

    def cancel_all(self) -> None:
        """Cancels all tasks."""
        for task in [*self._tasks.values()]:
            task.cancel()

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        """Nothing: generators are closed where they are dropped."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing: there is none."""

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Nothing: asyncio's debugging mode measures real time."""

    def get_exception_handler(self) -> Any:
        return self._handler

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.unhandled.append(f"{context.get('message')}: {error!r}" if error is not None else str(context["message"]))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is None:
            self.default_exception_handler(context)
        else:
            self._handler(self, context)


def _unhashed_task(number: int, coro: Any, loop: SimulatedLoop, name: str, context: Context | None) -> SimulatedTask:
    """A task; asyncio puts it in a set while it is made, so that its number must be there before."""
    task = SimulatedTask.__new__(SimulatedTask)
    task.number = number
    task.__init__(coro, loop=loop, name=name, context=context)  # type: ignore[misc]
    return task


def _refusing(name: str, reason: str) -> Callable[..., NoReturn]:
    def refuse(self: SimulatedLoop, *args: Any, **options: Any) -> NoReturn:
        raise refusal(f"loop.{name}", reason)

    return refuse


for _name, _reason in _REFUSED.items():
    setattr(SimulatedLoop, _name, _refusing(_name, _reason))
