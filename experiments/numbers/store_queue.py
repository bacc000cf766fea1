"""Commands through a queue in the store, the baseline that S1 compares direct requests with (L3, N10).

The sender creates a node below `/queue`. The receiver's watch on the children of `/queue` fires; it lists the children,
which sets the watch again, reads each node, and deletes it. That is S1's count of 2 writes, 1 watch and 1 read, and the
listing, which S1 leaves out; commands that come together share watch and listing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random

from experiments.engines.port import ClusterSpec
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import NetworkModel
from experiments.numbers.conditions import Conditions, Row, about, same
from experiments.numbers.failover import fail_over
from experiments.numbers.measured_cluster import WITHIN_MS, MeasurementError
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox
from protocol.ids import FIRST_CLIENT, NodeId, TimeMs, is_client
from protocol.messages.base import Message
from protocol.messages.commands import Command
from protocol.messages.store import Create, Delete, GetChildren, GetData, StoreRead, StoreWrite, WatchEvent, WatchKind
from protocol.v3.store.client import Results, StoreSession

QUEUE = "/queue"
SENDER, RECEIVER = FIRST_CLIENT, FIRST_CLIENT + 1
BURST = 100
CLAIMED_RPCS = 6
ROUGHLY = 0.5
"""S1 says "roughly": the claim holds within this share of it."""


@dataclass(frozen=True, slots=True)
class _QueueSpec(ClusterSpec):
    """A store and two of its clients."""

    @property
    def client_ids(self) -> tuple[NodeId, ...]:
        return (SENDER, RECEIVER)


class _QueueClient:
    """The sender or the receiver: a node with one session. What the receiver has read is in `received`."""

    def __init__(self, node_id: NodeId, timeout_ms: int) -> None:
        self.node_id = node_id
        self.received: list[TimeMs] = []
        self.deleted = 0
        self._seen: set[str] = set()
        self._out = Outbox()
        self._session = StoreSession(timeout_ms, self, self._out, Random(node_id))

    def start(self, now_ms: TimeMs) -> list[Effect]:
        self._session.start(now_ms)
        return self._out.drain()

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, Command):
            create = Create(path=f"{QUEUE}/{message.command_id}", data=b"command")
            self._session.submit((create,), lambda now_ms, results: None)
        else:
            self._session.receive(now_ms, message)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        self._session.fire(now_ms, name)
        return self._out.drain()

    def session_opened(self, now_ms: TimeMs) -> None:
        """The receiver begins to listen."""
        if self.node_id == RECEIVER:
            self._session.submit((Create(path=QUEUE),), lambda now_ms, results: self._list())

    def session_expired(self, now_ms: TimeMs) -> None:
        raise MeasurementError("a session of the queue has expired")

    def watch_fired(self, now_ms: TimeMs, kind: WatchKind, path: str) -> None:
        self._list()

    def _list(self) -> None:
        self._session.submit(GetChildren(path=QUEUE, watch=True), self._listed)

    def _listed(self, now_ms: TimeMs, results: Results) -> None:
        new = [name for name in results[0].children if name not in self._seen]
        self._seen.update(new)
        for name in new:
            self._session.submit(GetData(path=f"{QUEUE}/{name}"), partial(self._take, name))

    def _take(self, name: str, now_ms: TimeMs, results: Results) -> None:
        self.received.append(now_ms)
        self._session.submit((Delete(path=f"{QUEUE}/{name}"),), self._gone)

    def _gone(self, now_ms: TimeMs, results: Results) -> None:
        self.deleted += 1


@dataclass(frozen=True, slots=True)
class QueueRun:
    """What a number of commands took: messages to and from the store by kind, responses aside, and the time in ms from
    the first command to when the receiver has the last one.
    """

    writes: int
    reads: int
    watches: int
    delay_ms: TimeMs

    @property
    def rpcs(self) -> int:
        """As S1 counts: a write is one RPC to the store, and one within the ensemble."""
        return 2 * self.writes + self.reads + self.watches


def through_queue(conditions: Conditions, commands: int) -> QueueRun:
    """Sends commands at the same time, and waits until they are all taken."""
    clients: dict[NodeId, _QueueClient] = {}
    counts: Counter[type[Message]] = Counter()

    def build(node: NodeId) -> _QueueClient | None:
        if not is_client(node):
            return None
        clients[node] = _QueueClient(node, conditions.session_timeout_ms)
        return clients[node]

    spec = _QueueSpec(0, 0, ClusterConfig(), conditions.seed, store=conditions.store())
    cluster = SimCluster(spec, NetworkModel(conditions.network_ms, 0), build=build)
    for node in spec.node_ids:
        cluster.start(node)
    cluster.run_until(conditions.session_timeout_ms)
    began_ms = cluster.now_ms
    cluster.on_message = lambda source, target, message: counts.update((type(message),))
    for number in range(commands):
        cluster.command(SENDER, Command(command_id=number))
    receiver = clients[RECEIVER]
    while receiver.deleted < commands:
        if not cluster.step(began_ms + WITHIN_MS):
            raise MeasurementError("the queue does not become empty")
    return QueueRun(counts[StoreWrite], counts[StoreRead], counts[WatchEvent], max(receiver.received) - began_ms)


def rows(conditions: Conditions) -> list[Row]:
    """L3."""
    one, burst = through_queue(conditions, 1), through_queue(conditions, BURST)
    course = fail_over(conditions)
    found = []
    for what, run, commands in (("one command", one, 1), (f"{BURST} commands at once", burst, BURST)):
        each = run.rpcs / commands
        parts = f"{run.writes / commands:g} writes, {run.watches / commands:g} watches, {run.reads / commands:g} reads"
        what = f"RPCs per command through the queue, {what}: {parts}"
        found.append(Row(what, CLAIMED_RPCS, each, "", about(CLAIMED_RPCS, each, ROUGHLY)))
    found.append(same("RPCs per command of the controller", 1, max(course.commands.values())))
    found.append(Row("delay of one command through the queue", None, one.delay_ms, "ms"))
    found.append(Row("delay of a command of the controller", None, course.commanded_ms - course.published_ms, "ms"))
    return found
