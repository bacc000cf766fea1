"""The ceiling of `isray bench replication`: the same hops with bare Ray actor calls, without messages, logs, protocol.
It is that of nodes whose messages were Ray calls; those of isray send theirs over connections.

A producer calls the leader with the payload, the leader calls both followers with it and waits for their returns, then
it returns: four hops, the payload in three calls. Every broker leads its share of the partitions and follows in the
others, as in the measured cluster; each actor is a process of its own with async methods.

Ray must be initialised before this module is imported.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import ray

from experiments.engines.ray.session import Handle

_AS_ACTOR: Handle = ray.remote(num_cpus=0.001)


@dataclass(frozen=True, slots=True)
class CallLatencies:
    """The measurements of a bare producer: the latencies of the calls that ended within `elapsed_s`, at least one."""

    elapsed_s: float
    latencies_s: list[float]


class BareBroker:
    """A broker without a log: replicates a payload to its peers, or stores one."""

    def __init__(self) -> None:
        self._peers: list[Handle] = []

    async def set_peers(self, peers: Sequence[Handle]) -> None:
        self._peers = list(peers)

    async def produce(self, payload: bytes) -> None:
        """Returns once all peers hold the payload."""
        await asyncio.gather(*(peer.store.remote(payload) for peer in self._peers))

    async def store(self, payload: bytes) -> None:
        """Returns at once."""

    async def exchange(self, every_s: float, for_s: float, size: int) -> None:
        """Calls its peers in turn with `size` bytes, one every `every_s`."""
        payload, ends_s, turn = b"\xa5" * size, time.perf_counter() + for_s, 0
        while time.perf_counter() < ends_s:
            await self._peers[turn % len(self._peers)].store.remote(payload)
            turn += 1
            await asyncio.sleep(every_s)

    async def pid(self) -> int:
        return os.getpid()


class BareProducer:
    """Keeps a number of calls under way and measures them."""

    async def replicate(
        self, leaders: Sequence[Handle], size: int, in_flight: int, warm_up_s: float, for_s: float
    ) -> CallLatencies:
        """CallLatencies `produce` of the leaders in turn, with `in_flight` calls of `size` bytes under way."""
        return await _keep_calling([leader.produce.remote for leader in leaders], size, in_flight, warm_up_s, for_s)

    async def pid(self) -> int:
        return os.getpid()

    async def round_trip(self, broker: Handle, size: int, warm_up_s: float, for_s: float) -> CallLatencies:
        """CallLatencies `store` of one broker with `size` bytes, one call at a time."""
        return await _keep_calling([broker.store.remote], size, 1, warm_up_s, for_s)


async def _keep_calling(
    calls: Sequence[Callable[[bytes], Awaitable[None]]], size: int, in_flight: int, warm_up_s: float, for_s: float
) -> CallLatencies:
    """Measures for `for_s` after a warm-up, or until the first measured call has ended if that takes longer."""
    payload = b"\xa5" * size
    began_s = time.perf_counter() + warm_up_s
    ends_s = began_s + for_s
    latencies_s: list[float] = []
    turn, last_s = 0, ends_s

    async def one_at_a_time() -> None:
        nonlocal turn, last_s
        while (sent_s := time.perf_counter()) < ends_s or not latencies_s:
            call = calls[turn % len(calls)]
            turn += 1
            await call(payload)
            back_s = time.perf_counter()
            if began_s <= back_s and (back_s < ends_s or not latencies_s):
                latencies_s.append(back_s - sent_s)
                last_s = max(ends_s, back_s)

    await asyncio.gather(*(one_at_a_time() for _ in range(in_flight)))
    return CallLatencies(last_s - began_s, latencies_s)


class Ceiling:
    """The actors of one bench; `close` ends them."""

    def __init__(self, brokers: int) -> None:
        self._brokers = [_AS_ACTOR(BareBroker).remote() for _ in range(brokers)]
        self._producer = _AS_ACTOR(BareProducer).remote()
        for broker in self._brokers:
            ray.get(broker.set_peers.remote([peer for peer in self._brokers if peer is not broker]))

    def replicate(self, partitions: int, size: int, in_flight: int, warm_up_s: float, for_s: float) -> CallLatencies:
        """Measures replicated calls; partition `n` is led by broker `n` modulo the number of brokers."""
        leaders = [self._brokers[number % len(self._brokers)] for number in range(partitions)]
        calls: CallLatencies = ray.get(self._producer.replicate.remote(leaders, size, in_flight, warm_up_s, for_s))
        return calls

    def round_trip(self, size: int, warm_up_s: float, for_s: float) -> CallLatencies:
        calls: CallLatencies = ray.get(self._producer.round_trip.remote(self._brokers[0], size, warm_up_s, for_s))
        return calls

    def exchange(self, calls_per_s: float, for_s: float, size: int) -> None:
        """Has the brokers make so many calls per second to each other, all together, and returns at once."""
        every_s = len(self._brokers) / calls_per_s
        for broker in self._brokers:
            broker.exchange.remote(every_s, for_s, size)

    def pids(self) -> list[int]:
        """The processes of all actors."""
        pids: list[int] = ray.get([actor.pid.remote() for actor in (*self._brokers, self._producer)])
        return pids

    def close(self) -> None:
        for actor in (*self._brokers, self._producer):
            ray.kill(actor)
