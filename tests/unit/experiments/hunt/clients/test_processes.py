"""The workload on processes: faults on a fake engine, a door in front of a fake broker, and a fake of librdkafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from experiments.engines.port import Loss
from experiments.faults.controls import Controls, Link
from experiments.faults.inject import SUPERVISE_MS, Injector
from experiments.faults.kinds.links import Cut, Disturb
from experiments.faults.kinds.processes import Crash, Pause, Restart
from experiments.hunt.clients import librdkafka
from experiments.hunt.clients.plan import ClientPlan
from experiments.hunt.clients.processes import BROKER_HOST, Door, DoorControls, compare
from experiments.support.errors import InputError
from protocol.ids import FIRST_APPLICATION
from protocol.kafka.wire import API_VERSIONS, encode_request

TIMES = {"at_ms": 0, "duration_ms": 1}
WITHIN_S = 10
HOST = "127.0.0.9"


class FakeEngine:
    """Notes what is done to its nodes; all of them run but the crashed."""

    spec = SimpleNamespace(node_ids=(0, 1, 1000))

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []
        self.down: set[int] = set()
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms

    def is_running(self, node: int) -> bool:
        return node not in self.down

    def crash(self, node: int, loss: object) -> None:
        assert loss == Loss()
        self.down.add(node)

    def start(self, node: int) -> None:
        self.down.remove(node)
        self.done.append((self.time_ms, "start", node))

    def set_link(self, source: int, target: int, up: bool) -> None:
        self.done.append((self.time_ms, source, target, up))

    def __getattr__(self, name: str) -> Any:
        return lambda node: self.done.append((self.time_ms, name, node))


def test_a_fault_holds_until_the_last_one_of_its_kind_ends() -> None:
    """Broker 0 is kept down by two crashes, from 0 to 1 and to 4 ms, which take nothing from its disk. Broker 1 is
    paused twice, from 5 to 7 and to 8 ms, so the controlled restart at 6 ms does not reach it, and that at 9 ms does.
    The cut lasts from 10 to 11 ms.
    """
    engine: Any = FakeEngine()
    door = Door(HOST, range(1, 3))
    controls = DoorControls(engine, [door])
    faults = (
        Crash(node=0, loses="torn", at_ms=0, duration_ms=1),
        Crash(node=0, at_ms=0, duration_ms=4),
        Pause(node=1, at_ms=5, duration_ms=2),
        Pause(node=1, at_ms=5, duration_ms=3),
        Restart(node=1, at_ms=6, duration_ms=1),
        Restart(node=1, at_ms=9, duration_ms=1),
        Cut(source=(0, FIRST_APPLICATION), target=(1,), one_way=True, at_ms=10, duration_ms=1),
    )
    Injector(cast(Controls, controls)).schedule(faults, from_ms=100)
    cut: list[set[Link]] = []
    for engine.time_ms in range(100, 112):
        controls.act()
        cut.append(set(door.cut))
    assert engine.done == [
        (104, "start", 0),
        (105, "pause", 1),
        (108, "resume", 1),
        (109, "terminate", 1),
        (110, 0, 1, False),
        (111, 0, 1, True),
    ]
    assert cut[9:] == [set(), {(FIRST_APPLICATION, 1)}, set()]


def test_the_supervisor_starts_a_node_that_has_ended_without_a_fault() -> None:
    engine: Any = FakeEngine()
    controls = DoorControls(engine, [])
    Injector(cast(Controls, controls)).schedule(())
    engine.down.add(1)
    for engine.time_ms in (SUPERVISE_MS - 1, SUPERVISE_MS):
        controls.act()
    assert engine.done == [(SUPERVISE_MS, "start", 1)]


def test_a_door_passes_frames_on_with_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    door = asyncio.run(asyncio.wait_for(_door(monkeypatch), WITHIN_S))
    assert [it.api_key for it in door.observer.exchanges] == [API_VERSIONS, API_VERSIONS]
    assert door.unhandled == []


async def _door(monkeypatch: pytest.MonkeyPatch) -> Door:
    """A broker that answers each request with its own address; the second one comes through only without the cut."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while length := await reader.read(4):
            body = await reader.readexactly(int.from_bytes(length, "big"))
            frame = body[4:8] + BROKER_HOST.encode()
            writer.write(len(frame).to_bytes(4, "big") + frame)

    server = await asyncio.start_server(answer, BROKER_HOST, 0)
    port = server.sockets[0].getsockname()[1]
    door = Door(HOST, range(port, port + 1))

    async def application(servers: str, plan: object, library: object) -> str:
        reader, writer = await asyncio.open_connection(HOST, port)
        for number in (1, 2):
            writer.write(encode_request(API_VERSIONS, 0, number, "test", {}))
            if number == 2:
                asyncio.get_running_loop().call_later(0.05, door.cut.clear)
            assert await reader.readexactly(17) == b"\0\0\0\x0d" + number.to_bytes(4, "big") + HOST.encode()
            door.cut.add((0, FIRST_APPLICATION))
        server.close()
        writer.close()
        other, closing = await asyncio.open_connection(HOST, port)
        assert await other.read() == b"", "a broker that does not listen"
        closing.close()
        return servers

    monkeypatch.setattr("experiments.hunt.clients.processes.application", application)
    assert await door.serve(ClientPlan(seed=1), librdkafka.LIBRDKAFKA) == f"{HOST}:{port}"
    return door


def test_a_fault_that_processes_do_not_have_is_refused() -> None:
    disturb = Disturb(source=(0,), target=(1,), effect="lose", **TIMES)
    with pytest.raises(InputError, match="found disturb; allowed: crash, cut, pause and restart"):
        compare(ClientPlan(seed=1, faults=(disturb,)))


class Module:
    """librdkafka: the producer delivers the first record and fails the others; the consumer reads one, then fails."""

    class KafkaException(Exception):
        pass

    def __init__(self) -> None:
        self.settings: list[dict[str, object]] = []
        self.due: list[Any] = []
        self.read = [SimpleNamespace(error=lambda: None, partition=lambda: 1, offset=lambda: 7, value=lambda: b"v")]
        self.error = SimpleNamespace(name=lambda: "_MSG_TIMED_OUT", str=lambda: "timed out")

    def TopicPartition(self, *fields: object) -> tuple[object, ...]:
        return fields

    def Producer(self, settings: dict[str, object]) -> Module:
        self.settings.append(settings)
        return self

    Consumer = Producer

    def produce(self, topic: str, value: bytes, partition: int, on_delivery: Any) -> None:
        failed = None if not self.due else self.error
        self.due.append(lambda: on_delivery(failed, SimpleNamespace(offset=lambda: 3)))

    def poll(self, timeout: float) -> Any:
        if not hasattr(self, "assigned"):
            for report in self.due:
                report()
            self.due = []
            return None
        return self.read.pop(0) if self.read else SimpleNamespace(error=lambda: self.error)

    def __len__(self) -> int:
        return len(self.due)

    def assign(self, places: list[tuple[object, ...]]) -> None:
        self.assigned = places

    def commit(self, offsets: object, asynchronous: bool) -> None:
        raise self.KafkaException(self.error)

    def close(self) -> None:
        self.assigned = []


def test_librdkafka_with_the_methods_of_aiokafka(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module()
    monkeypatch.setattr(librdkafka, "librdkafka", lambda asking: module)
    plan = ClientPlan(seed=1, partitions=2, linger_ms=20, request_timeout_ms=10)

    async def use() -> None:
        producer = librdkafka.Producer("s", plan)
        await producer.start()
        first, second = [await producer.send("t", b"v", 0) for _ in range(2)]
        assert (await first).offset == 3
        with pytest.raises(KafkaError, match="timed out") as caught:
            await second
        assert type(caught.value).__name__ == "_MSG_TIMED_OUT"
        await producer.stop()
        consumer = librdkafka.Consumer("s", plan, 0)
        await consumer.start()
        assert module.assigned == [("t-librdkafka", 0, -2), ("t-librdkafka", 1, -2)]
        record = await consumer.getone()
        assert (record.topic, record.partition, record.offset, record.value) == ("t", 1, 7, b"v")
        with pytest.raises(KafkaError):
            await consumer.getone()
        with pytest.raises(KafkaError):
            await consumer.commit({TopicPartition("t", 0): 8})
        await consumer.stop()

    asyncio.run(asyncio.wait_for(use(), WITHIN_S))
    assert module.settings[0]["message.timeout.ms"] == 21, "librdkafka wants more than linger.ms"
    assert module.assigned == []
