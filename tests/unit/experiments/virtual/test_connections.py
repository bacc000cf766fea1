"""Connections of the simulated network, by streams of asyncio to a listener. Links take exactly 1 ms, so that every
time can be computed by hand.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from experiments.engines.sim.network import NetworkModel
from experiments.virtual.refusals import OutsideSimulationError
from experiments.virtual.simulation import SimulatedKafka
from tests.unit.protocol.kafka.kafka_bench import frame

QUESTION = frame(18, 0, 1, {})
"""ApiVersions, which a listener answers at once."""
Script = Callable[["Clock"], Coroutine[Any, Any, Any]]


class Clock:
    """Times in ms since the application's start."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()

    @property
    def ms(self) -> int:
        return round(1_000 * (self._loop.time() - self._begun_s))

    async def reach(self, at_ms: int) -> None:
        reached = self._loop.create_future()
        self._loop.call_at(self._begun_s + at_ms / 1_000, reached.set_result, None)
        await reached


def run(script: Script, *timeline: dict[str, object], reset_after_ms: int = 924_600) -> Any:
    async def application(servers: str) -> Any:
        return await script(Clock())

    kafka = SimulatedKafka(
        3, timeline, latency=NetworkModel(1, 0), shuffle=False, reset_after_ms=reset_after_ms, within="20m"
    )
    return kafka.run(application).value


async def ask(clock: Clock, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Sends a question; returns how long the answer takes, in ms."""
    begun_ms = clock.ms
    writer.write(QUESTION)
    length = int.from_bytes(await reader.readexactly(4), "big")
    await reader.readexactly(length)
    return clock.ms - begun_ms


async def open_then_ask_at_1500(clock: Clock) -> int | str:
    reader, writer = await asyncio.open_connection("broker-0", 9092)
    assert clock.ms == 4, "a lookup of the name and its answer, SYN and its answer"
    assert await ask(clock, reader, writer) == 2
    await clock.reach(1_500)
    try:
        return await ask(clock, reader, writer)
    except OSError as error:
        return f"{type(error).__name__} after {clock.ms - 1_500} ms"


async def open_at_1500(clock: Clock) -> str:
    await clock.reach(1_500)
    try:
        await asyncio.open_connection("broker-0", 9092)
    except OSError as error:
        return f"{type(error).__name__} after {clock.ms - 1_500} ms"
    return "connected"


def test_a_cut_holds_bytes_back_until_a_retransmission_after_the_heal() -> None:
    """Attempts arrive 1, 201, 601, 1,401 and 3,001 ms after the write at 1,500 ms, the last one after the heal at
    3,000 ms; the answer takes another ms.
    """
    took = run(open_then_ask_at_1500, {"at": "1s", "cut": {"between": [6000, 0]}}, {"at": "3s", "heal": "all"})
    assert took == 3_002


def test_the_sender_gives_up_after_a_time() -> None:
    """The attempt at 1,401 ms is the first one a second or more after the write."""
    cut = {"at": "1s", "cut": {"from": 6000, "to": 0}}
    assert run(open_then_ask_at_1500, cut, reset_after_ms=1_000) == "TimeoutError after 1401 ms"


def test_an_answer_is_held_back_by_a_cut_of_its_direction() -> None:
    """The answer leaves at 1,501 ms; its attempts arrive 1, 201, 601, 1,401 and 3,001 ms later."""
    took = run(open_then_ask_at_1500, {"at": "1s", "cut": {"from": 0, "to": 6000}}, {"at": "3s", "heal": "all"})
    assert took == 1 + 3_001


def test_a_delay_applies_to_every_segment() -> None:
    slow = {"kind": "disturb", "source": [6000], "target": [0], "effect": "delay", "delay_ms": 50}
    step = {"at": "1s", "fault": {**slow, "per_mille": 1000, "duration": "5s"}}
    assert run(open_then_ask_at_1500, step) == 52


def test_a_dead_broker_refuses_connections_and_a_cut_one_times_out() -> None:
    """A lookup takes 2 ms. A SYN is sent again after 1, 2, 4, ... 64 s; the last attempt arrives 127,001 ms after the
    first was sent.
    """
    assert run(open_at_1500, {"at": "1s", "crash": {"broker": 0}}) == "ConnectionRefusedError after 4 ms"
    assert run(open_at_1500, {"at": "1s", "cut": {"between": [6000, 0]}}) == "TimeoutError after 127003 ms"


def test_a_host_that_is_cut_off_gets_no_answer_from_the_name_server() -> None:
    """Two attempts of 5 s each. An address is no name."""
    isolated = {"at": "1s", "cut": {"between": [6000, "rest"]}}
    assert run(open_at_1500, isolated) == "gaierror after 10000 ms"
    assert run(open_at_1500, isolated, {"at": "4s", "heal": "all"}) == "connected"

    async def open_address(clock: Clock) -> int:
        await asyncio.open_connection("10.0.2.1", 9092)
        return clock.ms

    assert run(open_address) == 2


def test_a_crash_resets_connections_at_once() -> None:
    async def wait(clock: Clock) -> str:
        reader, _ = await asyncio.open_connection("broker-0", 9092)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        return f"after {clock.ms} ms"

    assert run(wait, {"at": "1s", "crash": {"broker": 0}}) == "after 1001 ms"


def test_a_crash_behind_a_cut_is_learnt_with_the_next_bytes() -> None:
    steps = [
        {"at": "1s", "cut": {"between": [6000, 0]}},
        {"at": "1100ms", "crash": {"broker": 0}},
        {"at": "1200ms", "heal": "all"},
    ]
    assert run(open_then_ask_at_1500, *steps) == "ConnectionResetError after 2 ms"


def test_a_paused_broker_accepts_and_is_silent_until_it_resumes() -> None:
    async def open_and_ask(clock: Clock) -> tuple[int, int]:
        await clock.reach(1_500)
        reader, writer = await asyncio.open_connection("broker-0", 9092)
        return clock.ms, await ask(clock, reader, writer)

    steps = [{"at": "1s", "pause": {"broker": 0}}, {"at": "4s", "resume": {"broker": 0}}]
    assert run(open_and_ask, *steps) == (1_504, 4_001 - 1_504)


def test_the_listener_closes_a_connection_that_does_not_speak_the_protocol() -> None:
    async def send_rubbish(clock: Clock) -> bytes:
        reader, writer = await asyncio.open_connection("broker-0", 9092)
        writer.write(b"\xff" * 8)
        return await reader.read()

    assert run(send_rubbish) == b""


def test_an_unknown_host_has_no_address() -> None:
    async def look_up(clock: Clock) -> Any:
        loop = asyncio.get_running_loop()
        assert (await loop.getaddrinfo("broker-1", 9092))[0][4] == ("10.0.2.2", 9092)
        with pytest.raises(socket.gaierror, match="nowhere"):
            await asyncio.open_connection("nowhere", 9092)

    run(look_up)


async def in_executor() -> None:
    await asyncio.to_thread(print)


async def in_thread() -> None:
    threading.Thread(target=print).start()


async def with_socket() -> None:
    socket.socket()


async def in_process() -> None:
    subprocess.run(["true"], check=True)


async def with_tls() -> None:
    await asyncio.open_connection("broker-0", 9092, ssl=ssl.create_default_context())


async def as_server() -> None:
    await asyncio.start_server(print, "127.0.0.1", 0)


async def blocked() -> None:
    vars(time)["sleep"](1)


@pytest.mark.parametrize(
    ("act", "call"),
    [
        (in_executor, r"loop\.run_in_executor"),
        (in_thread, r"Thread\.start"),
        (in_process, r"subprocess\.Popen"),
        (with_socket, r"socket\.socket"),
        (with_tls, r"loop\.create_connection\(ssl=\.\.\.\)"),
        (as_server, r"loop\.create_server"),
        (blocked, r"time\.sleep"),
    ],
)
def test_what_virtual_time_does_not_have_is_refused_with_the_call(act: Callable[[], Any], call: str) -> None:
    with pytest.raises(OutsideSimulationError, match=rf"^{call} at virtual/test_connections\.py:\d+: [^\n]+$"):
        run(lambda clock: act())
