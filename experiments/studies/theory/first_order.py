"""Loss rates by hand, to the first order in the share of time for which a replica is absent.

They cover what the Markov chain (`model.py`) does not: shared causes, and the time for which a replica starts and
catches up. A partition has n replicas on brokers of their own, in as many racks, and min ISR 1; the leader is elected
from the ISR, so the last member of the ISR is waited for. Writes are continuous, and crashes are noticed at once.

A *cause* strikes one broker at rate r. It takes the tail of the broker's log with probability q, and the broker is out
of the ISR for a time of mean T: down, starting, catching up. A replica is absent for the share u of time, which is the
sum of r T over all causes. The last member of the ISR loses acknowledged records at the rate

    n u^(n-1) (sum of r q)

An event that strikes all replicas at once, at rate R, loses with probability q: the replica that was fenced last is
waited for. One that strikes two of two replicas adds R T to the share u of each.
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import racks_of
from experiments.studies.failures.sources import kinds_of


class _Cause(NamedTuple):
    """`rate`: strikes of one broker a year. `absent_ms`: T. `losing`: q. `alone`: whether it strikes one replica."""

    rate: float
    absent_ms: float
    losing: float
    alone: bool = True


def loss_rate(params: CellParameters) -> float | None:
    """Loss events per partition-year; None for a cell that this module does not cover."""
    is_covered = (
        params.generation == "kip-497"
        and params.min_insync_replicas == 1
        and params.replication_factor == params.brokers == params.racks
        and params.detection_ms is None
        and params.rolling_restart is None
        and params.slow is None
        and params.failures is None
        and (params.burst is None or params.burst.size == params.brokers == 2)
    )
    if not is_covered:
        return None
    causes = list(_causes(params))
    n = params.replication_factor
    absent = sum(cause.rate * cause.absent_ms / YEAR_MS for cause in causes)
    single = sum(cause.rate * cause.losing for cause in causes if cause.alone)
    together = sum(cause.rate * cause.losing for cause in causes if not cause.alone)
    return float(n * absent ** (n - 1) * single + together)


def _causes(params: CellParameters) -> list[_Cause]:
    kinds = kinds_of(params)
    lost_disk, losing = kinds["disk"], kinds["disk"] + kinds["lossy"]
    power = params.tail_loss_probability if params.power_loss_probability is None else params.power_loss_probability
    mttr, mttf, burst = params.broker_mttr, params.broker_mttf, params.burst
    rows = [
        (0.0 if mttf is None else YEAR_MS / mttf.mean_ms, mttr, lost_disk, losing, True),
        (params.rack_power_events_per_year, params.rack_power_mttr or mttr, 0.0, power, True),
        (params.power_events_per_year, params.power_mttr or mttr, 0.0, power, False),
    ]
    if burst is not None:
        rate = burst.events_per_year([len(rack) for rack in racks_of(params)])
        rows.append((rate, burst.down or mttr, lost_disk, losing, False))
    return [_Cause(rate, _absent_ms(params, down, disk), q, alone) for rate, down, disk, q, alone in rows if rate]


def _absent_ms(params: CellParameters, down: Distribution, lost_disk: float) -> float:
    """The mean time out of the ISR: `down`, the start of the process, and the catch-up."""
    away_ms = down.mean_ms + params.restart_time_ms
    catch_up = params.catch_up
    if catch_up is None:
        return away_ms
    missing = away_ms * catch_up.write_rate + lost_disk * catch_up.backlog * 1_000.0
    return away_ms + missing / catch_up.rate
