"""The garbage collector during a simulated run.

A run makes some fifty objects per event, nearly all of which die by reference count; few are in cycles before the whole
cluster is given up. So the collector's usual pace, a look after every 700 objects that are still alive, finds nothing
and costs a tenth of the time. During a run it looks less often.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 200_000
"""So many more objects are there at the next look: those of a few clusters with the histories of their runs."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Within the block the collector looks seldom; then its pace is as it was."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], YOUNG_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
