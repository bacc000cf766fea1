"""Recorded failures on the timeline: replayed, or resampled in blocks.

*Replay* takes the record as it is from time 0, so every trial has the same failures.

*Blocks* is the circular block bootstrap (Politis and Romano, A circular block-resampling procedure for stationary data,
1992), a moving-block bootstrap on the record joined end to start, in which every moment of the record is drawn equally
often. A trial is a sequence of blocks, each of which begins at a uniform random time of the record. A block has the
outages of all brokers that begin in it, so that the correlation between brokers is kept, and that over times shorter
than a block. An outage keeps its length, also beyond the end of its block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from experiments.studies.design.recorded import RecordedFailures
from experiments.studies.failures.sources import Outage

CAUSE = "recorded"


def recorded_outages(record: RecordedFailures, seed: int, begins_ms: int) -> Iterator[Outage]:
    """The outages from `begins_ms` on, by time: those of the file, or of blocks of it without end."""
    if record.mode == "replay":
        return (Outage(down, up, node, kind, CAUSE) for node, down, up, kind in record.outages)
    return itertools.dropwhile(lambda outage: outage.down_ms < begins_ms, _blocks(record, seed, begins_ms))


def _blocks(record: RecordedFailures, seed: int, begins_ms: int) -> Iterator[Outage]:
    """The outages of blocks, one of which begins at time 0; those from then on do not depend on `begins_ms`."""
    past, draws = Random(f"{seed}/cluster/blocks/past"), Random(f"{seed}/cluster/blocks")
    for number in itertools.count(begins_ms // record.block_ms):
        start_ms = (past if number < 0 else draws).randrange(record.length_ms)
        yield from sorted(_block(record, start_ms, number * record.block_ms))


def _block(record: RecordedFailures, start_ms: int, at_ms: int) -> Iterator[Outage]:
    """The outages of the block that begins at `start_ms` of the record, as from `at_ms` on."""
    for node, down_ms, up_ms, kind in record.outages:
        after_ms = (down_ms - start_ms) % record.length_ms
        if after_ms < record.block_ms:
            yield Outage(at_ms + after_ms, at_ms + after_ms + up_ms - down_ms, node, kind, CAUSE)
