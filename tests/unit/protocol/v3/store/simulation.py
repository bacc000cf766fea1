"""A store and clients of it in a small world: a clock, timers, and a network that delays, loses, copies and reorders.

A client is a node with one session. It keeps what happens to it in `log`, in order: `("opened",)`, `("expired",)`,
`("watch", kind, path)`, and `(tag, results)` for the request that was submitted with that tag; the times are in
`times_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random

from experiments.engines.sim.disk import SimStorage
from protocol.contract import CancelTimer, Effect, Node, Outbox, Send, SetTimer
from protocol.events.base import Trace
from protocol.ids import DRIVER, STORE, NodeId, TimeMs
from protocol.messages.base import Message
from protocol.messages.store import (
    ExpireSessions,
    OperationResult,
    StoreError,
    WatchKind,
)
from protocol.v3.store.client import Operations, StoreSession
from protocol.v3.store.node import StoreNode
from protocol.v3.store.settings import Latency, StoreSettings

TIMEOUT_MS = 600
WRITE_MS, READ_MS = 4, 1


class Client:
    """A node with one session; `on_result` and `on_event` add to what it does."""

    def __init__(self, node_id: NodeId, rng: Random, timeout_ms: int = TIMEOUT_MS) -> None:
        self.node_id = node_id
        self.log: list[tuple[object, ...]] = []
        self.times_ms: list[TimeMs] = []
        self.on_event: Callable[[tuple[object, ...]], None] = lambda event: None
        self._out = Outbox()
        self.session = StoreSession(timeout_ms, self, self._out, rng)

    def start(self, now_ms: TimeMs) -> list[Effect]:
        self.session.start(now_ms)
        return self._out.drain()

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        self.session.receive(now_ms, message)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        assert self.session.fire(now_ms, name), name
        return self._out.drain()

    def submit(self, tag: object, operations: Operations) -> None:
        self.session.submit(operations, lambda now_ms, results: self._happened(now_ms, tag, results))

    def session_opened(self, now_ms: TimeMs) -> None:
        self._happened(now_ms, "opened")

    def session_expired(self, now_ms: TimeMs) -> None:
        self._happened(now_ms, "expired")

    def watch_fired(self, now_ms: TimeMs, kind: WatchKind, path: str) -> None:
        self._happened(now_ms, "watch", kind, path)

    def _happened(self, now_ms: TimeMs, *event: object) -> None:
        self.log.append(event)
        self.times_ms.append(now_ms)
        self.on_event(event)

    def results(self, tag: object) -> tuple[OperationResult, ...]:
        """The results of a request that has been answered once."""
        [results] = [event[1] for event in self.log if event[0] == tag]
        assert isinstance(results, tuple)
        return results

    def error(self, tag: object) -> StoreError:
        return self.results(tag)[-1].error

    def drain(self) -> list[Effect]:
        """The effects of requests that a test has submitted."""
        return self._out.drain()


class World:
    """A store, its disk, and clients 0 to `clients` - 1. `lose`, `copy` and `reorder` are the shares of messages to
    which that happens; a message takes 1 to `delay_ms` ms; messages of a pair keep their order unless reordered.
    """

    def __init__(
        self,
        clients: int = 1,
        seed: int = 0,
        settings: StoreSettings | None = None,
        delay_ms: int = 1,
        snapshot_every: int = 1_000,
    ) -> None:
        self.now_ms = 0
        self.rng = Random(seed)
        self.settings = settings or StoreSettings(
            write_latency=Latency(mean_ms=WRITE_MS), read_latency=Latency(mean_ms=READ_MS)
        )
        self.delay_ms = delay_ms
        self.lose = self.copy = self.reorder = 0.0
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.paused: set[NodeId] = set()
        self.disk = SimStorage()
        self.sent: list[tuple[TimeMs, NodeId, NodeId, Message]] = []
        self.traces: list[Trace] = []
        self.clients = [Client(number, Random(f"{seed}/{number}")) for number in range(clients)]
        self._snapshot_every = snapshot_every
        self._nodes: dict[NodeId, Node] = {}
        self._events: list[tuple[TimeMs, int, NodeId, Callable[[Node], list[Effect]]]] = []
        self._numbers: Iterator[int] = count()
        self._timers: dict[tuple[NodeId, str], int] = {}
        self._arrivals: dict[tuple[NodeId, NodeId], TimeMs] = {}
        self._held: list[tuple[int, NodeId, Callable[[Node], list[Effect]]]] = []
        self.start_store()
        for client in self.clients:
            self._start(client)

    @property
    def store(self) -> StoreNode:
        store = self._nodes[STORE]
        assert isinstance(store, StoreNode)
        return store

    def _start(self, node: Node) -> None:
        self._nodes[node.node_id] = node
        self._carry_out(node.node_id, node.start(self.now_ms))

    def start_store(self) -> None:
        rng = Random(self.rng.random())
        self._start(StoreNode(self.settings, self.disk, rng, snapshot_every=self._snapshot_every))

    def crash(self, node: NodeId = STORE) -> None:
        """Ends a process: its timers and the messages to it are gone."""
        del self._nodes[node]
        self._timers = {key: number for key, number in self._timers.items() if key[0] != node}
        self._events = [event for event in self._events if event[2] != node]
        self._events.sort()

    def restart_client(self, number: int) -> Client:
        """A new process of a client."""
        self.crash(number)
        self.clients[number] = Client(number, Random(f"again/{number}/{self.now_ms}"))
        self._start(self.clients[number])
        return self.clients[number]

    def expire(self, owner: NodeId) -> None:
        """The store ends all sessions of a node."""
        message = ExpireSessions(node_id=owner)
        self._carry_out(STORE, self.store.receive(self.now_ms, DRIVER, message))

    def resume(self, node: NodeId) -> None:
        self.paused.discard(node)
        for number, target, action in self._held:
            heappush(self._events, (self.now_ms, number, target, action))
        self._held.clear()

    def submit(self, tag: object, operations: Operations, client: int = 0) -> None:
        node = self.clients[client]
        node.submit(tag, operations)
        self._carry_out(node.node_id, node.drain())

    def send_raw(self, sender: NodeId, *messages: Message) -> None:
        """The store receives messages now, as from a node; what it sends to one that does not run is lost."""
        for message in messages:
            self._carry_out(STORE, self.store.receive(self.now_ms, sender, message))

    def ask(self, operations: Operations, client: int = 0) -> tuple[OperationResult, ...]:
        """Submits a request and runs until it is answered."""
        tag = object()
        self.submit(tag, operations, client)
        self.run_until(lambda: any(event[0] is tag for event in self.clients[client].log))
        return self.clients[client].results(tag)

    def run_for(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end_ms:
            self._step()
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], within_ms: int = 60_000) -> None:
        deadline_ms = self.now_ms + within_ms
        while not condition():
            assert self._events, "nothing happens any more"
            assert self.now_ms <= deadline_ms, "it has not happened"
            self._step()

    def connect(self) -> World:
        """Runs until all sessions are open."""
        self.run_until(lambda: all(client.session.is_connected for client in self.clients))
        return self

    def _step(self) -> None:
        due_ms, number, target, action = heappop(self._events)
        self.now_ms = max(self.now_ms, due_ms)
        if target in self.paused:
            self._held.append((number, target, action))
        elif target in self._nodes:
            self._carry_out(target, action(self._nodes[target]))

    def _carry_out(self, node: NodeId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(node, to, message)
                case SetTimer(name=name, at_ms=at_ms):
                    self._set_timer(node, name, at_ms)
                case CancelTimer(name):
                    self._timers.pop((node, name), None)
                case Trace():
                    self.traces.append(effect)

    def _set_timer(self, node: NodeId, name: str, at_ms: TimeMs) -> None:
        number = self._timers[node, name] = next(self._numbers)

        def fire(target: Node) -> list[Effect]:
            if self._timers.get((node, name)) != number:
                return []
            del self._timers[node, name]
            return target.fire(self.now_ms, name)

        heappush(self._events, (max(at_ms, self.now_ms), number, node, fire))

    def _send(self, source: NodeId, target: NodeId, message: Message) -> None:
        self.sent.append((self.now_ms, source, target, message))
        assert message.CONTROL, "messages of two channels have no order"
        if (source, target) in self.cut or self.rng.random() < self.lose:
            return
        for _ in range(1 + (self.rng.random() < self.copy)):
            arrival_ms = self.now_ms + self.rng.randint(1, self.delay_ms)
            if self.rng.random() < self.reorder:
                arrival_ms += self.rng.randint(1, 5 * self.delay_ms)
            else:
                arrival_ms = self._arrivals[source, target] = max(arrival_ms, self._arrivals.get((source, target), 0))

            def deliver(node: Node) -> list[Effect]:
                return [] if (source, target) in self.cut else node.receive(self.now_ms, source, message)

            heappush(self._events, (arrival_ms, next(self._numbers), target, deliver))
