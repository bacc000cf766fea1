"""How large an event or an episode is assumed to be where too few were seen to say so.

The bound of a total of which nothing was seen is the bound of the rate of its events times the mean size of an event
(`rates.py`, `fractions.py`), which is assumed:

- *stalled*: until the controller fences the silent broker and a leader answers: `detection`, and a second.
- *offline*, *rejecting*, *not writable*: until replicas return. Even if all replicas are down and all of them are
  waited for, that is the longest of `replication_factor` times to repair: (1 + 1/2 + ... + 1/RF) mean down times if
  they are exponential (Renyi, 1953). Detection and a second come on top.
- *lost records*: all records that a trial writes to the partition, one for each change of its state at most.
- other counts: an event counts as one.

Overlapping repairs that keep extending an episode, repair times with a heavy tail and manual recovery may last longer.
"""

from __future__ import annotations

from experiments.studies.design.model import CellParameters
from experiments.studies.trace.metrics import FRACTIONS, METRICS
from experiments.studies.trace.schema import YEAR_MS

ELECTION_MS = 1_000


def assumed_sizes(parameters: CellParameters, records: float = 1.0) -> dict[str, float]:
    """The assumed mean size of an event or episode, by the columns of the metrics; of an episode its length in years.
    `records`: written to a partition in a trial."""
    detection_ms = (parameters.detection_ms or 0) + ELECTION_MS
    longest = sum(1.0 / down for down in range(1, parameters.replication_factor + 1))
    repair_ms = longest * parameters.longest_absence_ms + detection_ms
    years = dict.fromkeys((share.column for share in FRACTIONS.values()), repair_ms / YEAR_MS)
    years["stalled"] = detection_ms / YEAR_MS
    return dict.fromkeys((metric.column for metric in METRICS), 1.0) | years | {"lost_records": records}
