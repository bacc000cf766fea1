"""A bare SimPy model for comparison, with as many messages and timers as a measured run.

Five processes form a ring; each waits for a message in its store, waits for a link's latency, and passes the message
on. A hop counts as two events, a fired timer and a delivered message, without protocol, disks, faults and trace. For
SimPy a hop is three events (timeout, put and get).
"""

from __future__ import annotations

from collections.abc import Generator

import simpy

PROCESSES = 5
LATENCY = 1


def exchange(events: int) -> int:
    """Runs the model for `events` events, rounded down to whole hops; returns their number."""
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
