"""The garbage collector during a simulated run.

A run creates some fifty objects per event, nearly all of which are freed by reference counting; few are in cycles
before the whole cluster is dropped. A collection after every 700 new objects, the default, therefore finds nothing and
costs a tenth of the time. During a run collections are rarer. The objects that the process had before its first run are
modules and classes for the most part, a hundred times as many as a short trial leaves behind: no collection looks at
them again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

YOUNG_OBJECTS = 200_000
"""New objects between two collections: as many as a few clusters with the histories of their runs have."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Raises the collector's first threshold to `YOUNG_OBJECTS` for the block."""
    _exempt_present_objects()
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], YOUNG_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@cache
def _exempt_present_objects() -> None:
    """Once in a process: removes garbage, and exempts all other objects from collections."""
    gc.collect()
    gc.freeze()
