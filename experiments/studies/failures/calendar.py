"""Rolling restarts on a calendar: an operator, or an upgrade, restarts every broker in turn.

A round begins every so often. In a round broker 0 is shut down in a controlled way, is started again after its down
time, and after a pause comes broker 1. A broker that is down when its turn comes is left out. With a stationary start
the phase of the calendar is uniform over a period; with a fresh start the first round begins one period after time 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from experiments.studies.design.mappings import RollingRestart
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.sources import Outage


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
