"""Shared causes of failure: outages that several brokers have in common, whatever state the brokers are in.

A source is an iterator of outages in time order. Each source draws from random streams of its own, so that a cell with
more sources has the same failures otherwise.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from random import Random
from typing import Literal, NamedTuple

from experiments.studies.design.model import YEAR_MS, CellParameters
from protocol.ids import NodeId

OutageKind = Literal["clean", "unclean", "lossy", "disk"]
"""`clean`: a controlled shutdown. `unclean`: the process dies, the page cache survives. `lossy`: the unflushed tail of
every log is lost. `disk`: the disk is replaced by an empty one."""


class Outage(NamedTuple):
    """A broker is down from `down_ms` until it is started at `up_ms`; times as in the timeline. `cause`: in words."""

    down_ms: int
    up_ms: int
    broker: NodeId
    kind: OutageKind
    cause: str


def shared_outages(params: CellParameters, seed: int, begins_ms: int) -> Iterator[Outage]:
    """The outages of all shared causes from `begins_ms` on, in time order, without end."""
    return heapq.merge(power_outages(params, seed, begins_ms))


def power_outages(params: CellParameters, seed: int, begins_ms: int) -> Iterator[Outage]:
    """Power events of the cluster: a Poisson process; each ends all brokers unclean at once, and each loses its
    unflushed tail with `tail_loss_probability`, and has a repair time of its own."""
    if params.power_events_per_year == 0:
        return
    gaps = Random(f"{seed}/cluster/power")
    draws = [Random(f"{seed}/broker/{broker}/power") for broker in range(params.brokers)]
    at_ms = begins_ms
    while True:
        at_ms += round(gaps.expovariate(params.power_events_per_year / YEAR_MS)) + 1
        for broker, random in enumerate(draws):
            kind: OutageKind = "lossy" if random.random() < params.tail_loss_probability else "unclean"
            yield Outage(at_ms, at_ms + params.broker_mttr.sample_ms(random), broker, kind, "cluster power")
