"""The garbage collector during a simulated run.

A run creates some fifty objects per event, nearly all of which are freed by reference counting; few are in cycles
before the whole cluster is dropped. A collection after every 700 new objects, the default, therefore finds nothing and
costs a tenth of the time. During a run collections are rarer.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 200_000
"""New objects between two collections: as many as a few clusters with the histories of their runs have."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Raises the collector's first threshold to `YOUNG_OBJECTS` for the block."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], YOUNG_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
