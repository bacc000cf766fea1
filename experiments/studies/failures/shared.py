"""All outages of a cell that do not come from a broker's own renewal process, in time order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from experiments.studies.design.model import CellParameters
from experiments.studies.failures.calendar import restarts
from experiments.studies.failures.recorded import recorded_outages
from experiments.studies.failures.sources import Outage, poisson_outages, poisson_sources


def shared_outages(params: CellParameters, seed: int, begins_ms: int) -> Iterator[Outage]:
    """The outages of Poisson events, rolling restarts and recorded failures from `begins_ms` on, by time."""
    sources = [poisson_outages(source, seed, begins_ms) for source in poisson_sources(params)]
    return heapq.merge(*sources, *scheduled_outages(params, seed, begins_ms))


def scheduled_outages(params: CellParameters, seed: int, begins_ms: int) -> list[Iterator[Outage]]:
    """The outages that are no Poisson process: rolling restarts and recorded failures."""
    found = []
    if params.rolling_restart is not None:
        found.append(restarts(params.rolling_restart, params, seed, begins_ms))
    if params.failures is not None:
        found.append(recorded_outages(params.failures, seed, begins_ms))
    return found
