"""The failures of a study's brokers: faults (`experiments/faults/schema.py`), drawn from a cell's rates.

The trial draws the time to failure when a broker starts. At that time the failure itself is drawn here: with
`unclean_probability` a `Crash`, which loses the unflushed tail with `tail_loss_probability`, otherwise a `Restart`; its
duration is the time to repair. A power event is a `Crash` of every running broker. The draws are made in this order and
only if needed: another order would change the numbers of every study.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from experiments.faults.kinds.processes import Crash, Restart
from experiments.studies.design.model import CellParameters
from protocol.ids import NodeId, TimeMs

Failure = Crash | Restart


def failure(params: CellParameters, random: Random, broker: NodeId, at_ms: TimeMs) -> Failure:
    """The failure of a broker at the end of its time to failure."""
    if random.random() < params.unclean_probability:
        loses = _loses(params, random)
        return Crash(at_ms=at_ms, duration_ms=params.broker_mttr.sample_ms(random), node=broker, loses=loses)
    return Restart(at_ms=at_ms, duration_ms=params.broker_mttr.sample_ms(random), node=broker)


def power_failure(
    params: CellParameters, random: Random, broker: NodeId, at_ms: TimeMs, repair_at_ms: TimeMs | None
) -> Crash:
    """The crash of a running broker by a power event. A repair that is already due at `repair_at_ms` keeps its time."""
    loses = _loses(params, random)
    duration_ms = params.broker_mttr.sample_ms(random) if repair_at_ms is None else max(1, repair_at_ms - at_ms)
    return Crash(at_ms=at_ms, duration_ms=duration_ms, node=broker, loses=loses)


def _loses(params: CellParameters, random: Random) -> Literal["nothing", "unflushed"]:
    return "unflushed" if random.random() < params.tail_loss_probability else "nothing"
