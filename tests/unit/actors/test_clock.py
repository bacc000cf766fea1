"""The clock of a host: Unix time that never runs backwards."""

from __future__ import annotations

import asyncio
import time

import pytest

from actors.clock import LoopClock, UnixTime

NOW_MS = 1_700_000_000_000


class Machine:
    """The clocks of a machine, in nanoseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ns, self.monotonic_ns = NOW_MS * 1_000_000, 5_000_000_123
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ns)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ns)


def test_time_is_unix_time_and_follows_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = UnixTime()
    assert clock.now_ms() == NOW_MS
    machine.wall_ns -= 3_600_000_000_000  # the wall clock is set back an hour
    machine.monotonic_ns += 1_999_999
    assert clock.now_ms() == NOW_MS + 1
    assert UnixTime().now_ms() == NOW_MS - 3_600_000, "another process begins with the wall clock"
    assert UnixTime(7_200_000).now_ms() == NOW_MS + 3_600_000, "a clock that is two hours ahead"


@pytest.mark.parametrize("after_ms", [3, 0, -NOW_MS])
def test_a_call_is_made_but_not_before_its_time(after_ms: int) -> None:
    async def run() -> tuple[int, int]:
        clock, made = LoopClock(), asyncio.get_running_loop().create_future()
        at_ms = clock.now_ms() + after_ms
        clock.call_at(at_ms, lambda: made.set_result(clock.now_ms()))
        return at_ms, await made

    at_ms, made_ms = asyncio.run(run())
    assert made_ms >= at_ms
