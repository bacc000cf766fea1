"""The garbage collector during a simulated run.

Nearly all objects of a run are freed by reference counting; few are in cycles before the whole cluster is dropped. A
collection after every 700 new objects, the default, finds nothing and costs a tenth of the time, so collections are
rarer during a run. They exempt the objects that the process had before its first run, modules and classes for the most
part, a hundred times as many as a short trial leaves behind.
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
    gc.collect()
    gc.freeze()
