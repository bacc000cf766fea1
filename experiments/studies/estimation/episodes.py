"""How long an episode is assumed to last where too few were seen to say so.

The bound of a share of time that was never seen is the bound of the rate of its episodes times the mean length of an
episode (`fractions.py`), which is assumed from the cell's parameters:

- *stalled*: until the controller fences the silent leader and the next one answers: `detection`, and a second.
- *offline*, *rejecting*: until replicas return. Even if all replicas are down and all of them are waited for, that is
  the longest of `replication_factor` times to repair: (1 + 1/2 + ... + 1/RF) mean repair times if they are exponential
  (Renyi, 1953). Detection and a second come on top.

Overlapping repairs that keep extending an episode, repair times with a heavy tail and manual recovery may last longer.
"""

from __future__ import annotations

from experiments.studies.design.model import CellParameters
from experiments.studies.trace.schema import YEAR_MS

ELECTION_MS = 1_000


def assumed_episode_years(parameters: CellParameters) -> dict[str, float]:
    """The assumed mean length of an episode in years, by the columns of the shares of time."""
    detection_ms = (parameters.detection_ms or 0) + ELECTION_MS
    longest = sum(1.0 / down for down in range(1, parameters.replication_factor + 1))
    repair_ms = longest * parameters.broker_mttr.mean_ms + detection_ms
    return {"stalled": detection_ms / YEAR_MS, "offline": repair_ms / YEAR_MS, "refuses": repair_ms / YEAR_MS}
