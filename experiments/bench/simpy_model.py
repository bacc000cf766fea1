"""The simulator that Python's users know: a bare SimPy model that exchanges as many messages and fires as many timers.

Five processes in a ring; each waits for a message in its store, lets a link's latency pass, and hands the message on. A
hop is two events of ours, a timer that fires and a message that is delivered, and nothing is done with either: no
protocol, no disks, no faults, no trace. For SimPy a hop is three events (timeout, put and get).
"""

from __future__ import annotations

from collections.abc import Generator

import simpy

PROCESSES = 5
LATENCY = 1


def exchange(events: int) -> int:
    """Runs the model for so many events (rounded down to whole hops); how many there were."""
    environment = simpy.Environment()
    stores = [simpy.Store(environment) for _ in range(PROCESSES)]
    hops = 0

    def relay(own: int) -> Generator[simpy.Event, bytes, None]:
        nonlocal hops
        while True:
            message = yield stores[own].get()
            yield environment.timeout(LATENCY)
            hops += 1
            yield stores[(own + 1) % PROCESSES].put(message)

    for number in range(PROCESSES):
        environment.process(relay(number))
    stores[0].put(b"message")
    while hops < events // 2:
        environment.step()
    return 2 * hops
