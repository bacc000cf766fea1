"""How brokers of a study fail: faults of the one schema (`experiments/faults/schema.py`), drawn from a cell's rates.

The time to failure is drawn when a broker comes up; the failure itself when that time has come: with
`unclean_probability` a `Crash`, which loses what is unflushed with `tail_loss_probability`, otherwise a `Restart`; its
duration is the time to repair. A power event is a `Crash` of every broker that runs. The dice are thrown in this order
and never more often than needed, so that a trial is a function of its seed.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from experiments.faults.kinds.processes import Crash, Restart
from experiments.studies.model import CellParameters
from protocol.ids import NodeId, TimeMs

Failure = Crash | Restart


def failure(params: CellParameters, random: Random, broker: NodeId, at_ms: TimeMs) -> Failure:
    """What happens to a broker whose time is up."""
    if random.random() < params.unclean_probability:
        loses = _loses(params, random)
        return Crash(at_ms=at_ms, duration_ms=params.broker_mttr.sample_ms(random), node=broker, loses=loses)
    return Restart(at_ms=at_ms, duration_ms=params.broker_mttr.sample_ms(random), node=broker)


def power_failure(
    params: CellParameters, random: Random, broker: NodeId, at_ms: TimeMs, repair_at_ms: TimeMs | None
) -> Crash:
    """What a power event does to a running broker; one that was to be repaired already is repaired at that time."""
    loses = _loses(params, random)
    duration_ms = params.broker_mttr.sample_ms(random) if repair_at_ms is None else max(1, repair_at_ms - at_ms)
    return Crash(at_ms=at_ms, duration_ms=duration_ms, node=broker, loses=loses)


def _loses(params: CellParameters, random: Random) -> Literal["nothing", "unflushed"]:
    return "unflushed" if random.random() < params.tail_loss_probability else "nothing"
