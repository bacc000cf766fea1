"""Damaged requests on connections to a simulated cluster, so that controllers carry out what is whole among them:
`python -m tests.sim.cluster_fuzz 2000 1`, with a number of frames and a seed.

The requests are those of `kafka_fuzz.py`, from an application in virtual time. What must hold: no node fails, no
invariant is violated, and a connection that was open all the time is answered in the end by a broker that was sent
frames. Whole requests may take the topic or the quorum's voters away, which is what an administrator may do; so each
cluster gets `FRAMES_PER_CLUSTER` frames only.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from random import Random

from experiments.virtual.connections import PORT
from experiments.virtual.simulation import SimulatedKafka
from tests.unit.protocol.kafka.kafka_bench import KafkaBench, frame
from tests.unit.protocol.kafka.kafka_fuzz import damaged, request, served

FRAMES_PER_CLUSTER = 250
PAUSE_S = 0.02
QUESTION = frame(18, 0, 1, {})


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(QUESTION)
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def send_frames(servers: str, count: int, seed: int) -> Counter[str]:
    """Sends frames, each on a connection of its own."""
    random, outcomes = Random(seed), Counter[str]()
    ranges = served(KafkaBench())
    hosts = [server.partition(":")[0] for server in servers.split(",")]
    healthy = [await asyncio.open_connection(host, PORT) for host in hosts]
    answers = [await _ask(*connection) for connection in healthy]
    for _ in range(count):
        reader, writer = await asyncio.open_connection(random.choice(hosts), PORT)
        writer.write(damaged(random, request(random, ranges)))
        whole = asyncio.ensure_future(reader.read())
        closed, _ = await asyncio.wait([whole], timeout=PAUSE_S)
        outcomes["closed" if closed else "open"] += 1
        whole.cancel()
        writer.close()
    assert [await _ask(*connection) for connection in healthy] == answers
    return outcomes


def fuzz_cluster(count: int, seed: int) -> Counter[str]:
    """Sends frames to as many clusters as they need."""
    outcomes: Counter[str] = Counter()
    for number in range(-(-count // FRAMES_PER_CLUSTER)):
        frames = min(FRAMES_PER_CLUSTER, count - number * FRAMES_PER_CLUSTER)
        kafka = SimulatedKafka(seed + number, cluster={"controllers": 3}, topics={"t": 2})
        result = kafka.run(send_frames, frames, seed + number)
        assert (result.violations, result.unhandled) == ([], []), seed + number
        outcomes += result.value
    return outcomes


if __name__ == "__main__":
    wanted, first = int(sys.argv[1]), int(sys.argv[2])
    started = time.process_time()
    found = fuzz_cluster(wanted, first)
    print(f"{wanted} frames, {time.process_time() - started:.0f} s: {dict(found)}")
