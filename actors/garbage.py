"""When Python's garbage collector runs in the process of a node: while the node has nothing to do.

A collection stops the process while it walks the objects that were made since the last one, and every twentieth those
of the last twenty. A failover of 10,000 partitions makes more than 100,000 objects in each broker; with a threshold of
50,000 the collections took a third of the time until the first partition was served (docs/benchmarks.md). Nearly all
objects of a node are freed without the collector, as they are in no cycle. So Python's own collections are rare, and
the collector runs once a node has made `MANY_OBJECTS` and no input waits.
"""

from __future__ import annotations

import asyncio
import gc

from actors.host import NodeHost

THRESHOLDS = (1_000_000, 20, 20)
MANY_OBJECTS = 20_000
"""Objects with references to others, made and not freed since the last collection."""
OLD_AFTER = 20
"""After so many collections of the young objects all objects are walked."""
COLLECT_EVERY_S = 5.0


def collect_when_idle(host: NodeHost) -> None:
    """Collects now if the host has nothing to do, and so every `COLLECT_EVERY_S` on the running loop, until the host
    halts.
    """
    if host.is_halted:
        return
    young, collections, _ = gc.get_count()
    if young >= MANY_OBJECTS and host.is_idle:
        gc.collect(2 if collections >= OLD_AFTER else 0)
    asyncio.get_running_loop().call_later(COLLECT_EVERY_S, collect_when_idle, host)
