"""`isray clients compare`: the workload by aiokafka and by librdkafka, at the same time, on a cluster of processes with
the faults of a plan.

Each library reaches the brokers through a `Door`, a proxy on an address of its own: brokers listen on 127.0.0.1, a door
has the same ports on another address of the loopback, and writes that one into the responses. A door holds back what a
cut link would, and sees the bytes, so that the judge is that of virtual time (`findings.py`). Both topics have the
replicas of the plan's run in virtual time.

Time is the machine's. A killed process loses no page cache, and takes seconds to come back; so the faults are those of
the plan, and what they do to a client need not be. Of TCP a door leaves out that segments are sent again with growing
pauses, and that a connection to a broker which is cut off cannot be made: it is made and silent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Protocol, cast

from experiments.engines.port import Engine, Loss
from experiments.engines.ray.engine import PolledEngine, RayEngine
from experiments.faults.controls import Controls, Link, NodeControls
from experiments.faults.inject import Injector
from experiments.faults.kinds.links import Cut
from experiments.faults.kinds.processes import Crash, Pause, Restart
from experiments.hunt.clients.application import AIOKAFKA, Book, Library, application, quiet
from experiments.hunt.clients.findings import findings
from experiments.hunt.clients.librdkafka import LIBRDKAFKA, OWN_TOPIC
from experiments.hunt.clients.plan import BROKERS, TOPIC, ClientFinding, ClientPlan
from experiments.scenarios.runner import Runner
from experiments.support.errors import InputError
from experiments.virtual.connections import RESET_AFTER_MS
from experiments.virtual.engine import VirtualEngine
from experiments.virtual.observer import Observer
from experiments.virtual.simulation import RunResult, committed, scenario_of
from experiments.virtual.timeline import is_whole
from protocol.config import LISTENERS
from protocol.ids import FIRST_APPLICATION, NodeId, TopicPartition
from protocol.messages.kafka_batch import KafkaRecord

BROKER_HOST = "127.0.0.1"
LIBRARIES: dict[str, tuple[Library, str, str]] = {
    "aiokafka": (AIOKAFKA, TOPIC, "127.0.0.2"),
    "librdkafka": (LIBRDKAFKA, OWN_TOPIC, "127.0.0.3"),
}
"""By name: the library, its topic, and the address of its door, which is as long as that of the brokers."""
WITHIN_MS = 600_000
SETTLE_MS = 60_000
CONFIG = {"min.insync.replicas": 2}
FIRST_PORT, PLACES = 20_000, 1_000
HELD_S = 0.01


@dataclass(frozen=True, slots=True)
class Passage:
    """A connection through a door."""

    number: int
    broker: NodeId


class Watched(Protocol):
    """Where the bytes of a library are seen, and what it leaves to the event loop."""

    @property
    def observer(self) -> Observer: ...

    @property
    def unhandled(self) -> Sequence[str]: ...

    def now_ms(self) -> int: ...


class Door:
    """Proxies in front of the brokers whose `ports` are given; `cut` are the directions in which nothing passes."""

    def __init__(self, host: str, ports: range) -> None:
        self.observer, self.cut, self.unhandled = Observer(), set[Link](), list[str]()
        self._host, self._ports, self._count = host, ports, 0
        self._began_s = time.monotonic()

    async def serve(self, plan: ClientPlan, library: Library) -> Any:
        """What the workload returns behind the door."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: self.unhandled.append(f"{context['message']}: {context.get('exception')!r}")
        )
        servers = [
            await asyncio.start_server(partial(self._pass, broker), self._host, port)
            for broker, port in enumerate(self._ports)
        ]
        book = await application(",".join(f"{self._host}:{port}" for port in self._ports), plan, library)
        loop.set_exception_handler(lambda _, context: None)
        for server in servers:
            server.close()
        return book

    def now_ms(self) -> int:
        return int((time.monotonic() - self._began_s) * 1_000)

    async def _pass(self, broker: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        passage, writers = Passage(self._count, broker), [writer]
        try:
            from_broker, to_broker = await asyncio.open_connection(BROKER_HOST, self._ports[broker])
            writers.append(to_broker)
            there = self._forward(passage, "sends", (FIRST_APPLICATION, broker), reader, to_broker)
            back = self._forward(passage, "receives", (broker, FIRST_APPLICATION), from_broker, writer)
            directions = [asyncio.ensure_future(it) for it in (there, back)]
            ended, others = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            for direction in others:
                direction.cancel()
            for direction in ended:
                direction.result()
        except ConnectionError:
            pass  # The broker does not listen, so the client's connection ends, too.
        finally:
            for it in writers:
                it.close()
            self.observer.observe(self.now_ms(), passage, "ends", b"")

    async def _forward(
        self, passage: Passage, what: str, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Passes frames on until the connection ends."""
        try:
            while True:
                head = await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(head, "big"))
                while link in self.cut:
                    await asyncio.sleep(HELD_S)
                if what == "receives":
                    body = body.replace(BROKER_HOST.encode(), self._host.encode())
                self.observer.observe(self.now_ms(), passage, what, head + body)
                writer.write(head + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return


class Workload(threading.Thread):
    """A workload in a thread of its own, for which the process does not wait when it is interrupted."""

    def __init__(self, main: Coroutine[Any, Any, Book]) -> None:
        super().__init__(daemon=True)
        self._main = main
        self._books: list[Book] = []
        self.start()

    def run(self) -> None:
        self._books.append(asyncio.run(self._main))

    @property
    def book(self) -> Book:
        """What it has noted, once its thread has ended. IndexError where it was ended by an exception."""
        return self._books[0]


class DoorControls(NodeControls):
    """Processes in the hands of faults; the links of the application's host are those of the doors."""

    def __init__(self, engine: Engine, doors: Sequence[Door]) -> None:
        super().__init__(engine)
        self._doors = doors

    def set_link(self, link: Link, up: bool) -> None:
        if FIRST_APPLICATION not in link:
            super().set_link(link, up)
        for door in self._doors if FIRST_APPLICATION in link else ():
            (door.cut.discard if up else door.cut.add)(link)

    def kill(self, node: NodeId, asked: Loss) -> None:
        """Ends a node's process; whatever was asked for, its page cache stays."""
        super().kill(node, Loss())


@dataclass(frozen=True, slots=True)
class Compared:
    """What a plan shows of a library, and by API key the most requests within a second that it sent to one broker."""

    findings: list[ClientFinding]
    busiest: dict[int, int]

    def document(self) -> dict[str, object]:
        return {"findings": [finding.model_dump() for finding in self.findings], "busiest": self.busiest}


def compare(plan: ClientPlan) -> dict[str, Compared]:
    """What the plan shows of each library on processes. InputError for a plan with a fault that processes do not have.
    Call from the main thread.
    """
    for fault in plan.faults:
        if not isinstance(fault, Cut | Crash | Pause | Restart):
            raise InputError("isray clients compare", "faults", fault.kind, "crash, cut, pause and restart")
    ports = _free_ports()
    cluster: dict[str, object] = {"brokers": BROKERS, "controllers": plan.controllers}
    replicas = placed(plan, cluster)
    listeners = {LISTENERS: f"PLAINTEXT://{BROKER_HOST}:{ports[0]}"}
    scenario = scenario_of({**cluster, "config": listeners}, {TOPIC: replicas, OWN_TOPIC: replicas}, CONFIG)
    engine = RayEngine(scenario.cluster.spec(plan.seed))
    try:
        Runner(scenario, engine).set_up()
        doors = {name: Door(host, ports) for name, (_, _, host) in LIBRARIES.items()}
        with quiet():
            runs = {name: Workload(door.serve(plan, LIBRARIES[name][0])) for name, door in doors.items()}
            _carry_out(plan, engine, [*doors.values()], lambda: not any(run.is_alive() for run in runs.values()))
        engine.run_until(lambda: is_whole(engine), SETTLE_MS)
        logs = committed(engine)
    finally:
        engine.close()
    return {name: judged(plan, run.book, doors[name], logs, LIBRARIES[name][1]) for name, run in runs.items()}


def placed(plan: ClientPlan, cluster: dict[str, object]) -> Sequence[Sequence[NodeId]]:
    """The replicas of the topic's partitions in the plan's run in virtual time."""
    scenario = scenario_of(cluster, {TOPIC: plan.partitions}, CONFIG)
    engine = VirtualEngine(scenario.cluster.spec(plan.seed), None, True, RESET_AFTER_MS)
    runner = Runner(scenario, engine)
    runner.set_up()
    replicas = runner.as_placed(scenario.topics[0]).assignments
    engine.loop.close()
    engine.close()
    assert replicas is not None
    return replicas


def _carry_out(plan: ClientPlan, engine: PolledEngine[Any], doors: Sequence[Door], is_done: Callable[[], bool]) -> None:
    """Carries out the faults at their times, and waits for the applications."""
    controls = DoorControls(engine, doors)
    # The kinds of faults that are possible here use nothing else of the controls.
    Injector(cast(Controls, controls)).schedule(plan.faults, engine.now_ms())

    def is_over() -> bool:
        controls.act()
        return is_done()

    if not engine.run_until(is_over, WITHIN_MS):
        raise RuntimeError(f"the applications have not ended within {WITHIN_MS // 1_000} s")


def judged(
    plan: ClientPlan, book: Book, door: Watched, logs: Mapping[TopicPartition, Sequence[KafkaRecord]], topic: str
) -> Compared:
    """What a book and the bytes of a library say, whose topic is `topic`."""
    places = {TopicPartition(topic, index): TopicPartition(TOPIC, index) for index in range(plan.partitions)}
    acknowledged = [replace(it, place=places[it.place]) for it in door.observer.acknowledged]
    of_topic = {places[it]: log for it, log in logs.items() if it in places}
    exchanges = door.observer.exchanges
    result = RunResult(plan.seed, book, door.now_ms(), "", acknowledged, of_topic, exchanges, (), door.unhandled)
    busiest: dict[int, int] = {}
    for (api_key, _, _), count in Counter((it.api_key, it.broker, it.sent_ms // 1_000) for it in exchanges).items():
        busiest[api_key] = max(count, busiest.get(api_key, 0))
    return Compared(findings(plan, result), dict(sorted(busiest.items())))


def _free_ports() -> range:
    """As many ports in a row as there are brokers, which are free now on all addresses of the doors and brokers."""
    hosts = [BROKER_HOST, *(host for _, _, host in LIBRARIES.values())]
    begin = FIRST_PORT + BROKERS * (os.getpid() % PLACES)
    for first in range(begin, begin + BROKERS * PLACES, BROKERS):
        ports = range(first, first + BROKERS)
        with ExitStack() as stack:
            try:
                for host, port in product(hosts, ports):
                    stack.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            return ports
    raise InputError("isray clients compare", "ports", "none that are free", f"{BROKERS} in a row")
