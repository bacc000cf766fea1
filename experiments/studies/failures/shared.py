"""The outages of a cell that do not come from a broker's own renewal process, by time.

Poisson events are declared in `sources.py`. The others are scheduled (docs/failure-models.md):

- *Rolling restarts*: with a stationary start the phase of the rounds is uniform over a period; with a fresh start the
  first round begins one period after time 0. A broker that is down when its turn comes is left out.
- *Recorded failures*: replayed from time 0, so every trial has the same ones, or drawn in blocks by the circular block
  bootstrap (Politis and Romano, A circular block-resampling procedure for stationary data, 1992): a trial is a sequence
  of blocks, each of which begins at a uniform random time of the record, joined end to start, and has the outages of
  all brokers that begin in it. An outage keeps its length, also beyond the end of its block.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from random import Random

from experiments.studies.design.mappings import RollingRestart
from experiments.studies.design.model import CellParameters
from experiments.studies.design.recorded import RecordedFailures
from experiments.studies.failures.sources import (
    Branch,
    Outage,
    impairment_sources,
    in_order,
    poisson_outages,
    poisson_sources,
)


def shared_outages(
    params: CellParameters, seed: int, begins_ms: int, branches: Sequence[Branch] = ()
) -> Iterator[Outage]:
    """All outages with shared or scheduled causes from `begins_ms` on, by time; branches share the scheduled."""
    sources = [*poisson_sources(params), *impairment_sources(params)]
    found = [poisson_outages(source, seed, begins_ms, branches) for source in sources]
    if params.rolling_restart is not None:
        found.append(restarts(params.rolling_restart, params, seed, begins_ms))
    if params.failures is not None:
        found.append(recorded_outages(params.failures, seed, begins_ms))
    return heapq.merge(*found, key=in_order)


def restarts(rolling: RollingRestart, params: CellParameters, seed: int, begins_ms: int) -> Iterator[Outage]:
    """The outages of all rounds from `begins_ms` on, by time, without end."""
    phase = Random(f"{seed}/cluster/restarts").random() if params.start == "stationary" else 1.0
    first_ms = round(phase * rolling.every_ms)
    rounds_before = 0 if params.start == "fresh" else (first_ms - begins_ms) // rolling.every_ms + 1
    for number in itertools.count(-rounds_before):
        for turn in range(params.brokers):
            at_ms = first_ms + number * rolling.every_ms + turn * (rolling.down_ms + rolling.pause_ms)
            if at_ms >= begins_ms:
                yield Outage(at_ms, at_ms + rolling.down_ms, turn, "clean", "rolling restart")


def recorded_outages(record: RecordedFailures, seed: int, begins_ms: int) -> Iterator[Outage]:
    """The outages from `begins_ms` on, by time: those of the file, or of blocks of it without end."""
    if record.mode == "replay":
        return (Outage(down, up, node, kind, "recorded") for node, down, up, kind in record.outages)
    return itertools.dropwhile(lambda outage: outage.down_ms < begins_ms, _blocks(record, seed, begins_ms))


def _blocks(record: RecordedFailures, seed: int, begins_ms: int) -> Iterator[Outage]:
    """The outages of blocks, one of which begins at time 0; those from then on do not depend on `begins_ms`."""
    past, draws = Random(f"{seed}/cluster/blocks/past"), Random(f"{seed}/cluster/blocks")
    for number in itertools.count(begins_ms // record.block_ms):
        start_ms = (past if number < 0 else draws).randrange(record.length_ms)
        at_ms = number * record.block_ms
        found = [
            Outage(at_ms + after_ms, at_ms + after_ms + up_ms - down_ms, node, kind, "recorded")
            for node, down_ms, up_ms, kind in record.outages
            if (after_ms := (down_ms - start_ms) % record.length_ms) < record.block_ms
        ]
        yield from sorted(found, key=in_order)
