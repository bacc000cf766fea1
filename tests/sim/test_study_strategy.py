"""What `unclean_recovery_strategy` does in each generation of a study, on failures that are written down."""

from __future__ import annotations

from itertools import pairwise

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.trace.kinds import Loss, State
from experiments.studies.trials.trial import Trial
from experiments.support.errors import InputError
from tests.trace_rows import as_rows

HOUR_MS = 3_600_000
OUTAGES = (
    Outage(1 * HOUR_MS, 3 * HOUR_MS, 1, "unclean", "test"),
    Outage(2 * HOUR_MS, 5 * HOUR_MS, 0, "unclean", "test"),
)
"""Broker 1 is down for hours 1 to 3, so that broker 0 alone has what is written then; broker 0 for hours 2 to 5."""


@pytest.mark.parametrize(
    ("generation", "strategy", "hours", "losses"),
    [
        ("kip-497", "balanced", 3, 0),
        ("kip-497", "proactive", 1, 1),
        ("kip-966-elr", "balanced", 3, 0),
        ("kip-966-elr", "proactive", 1, 1),
        ("kip-966", "balanced", 3, 0),
        ("kip-966", "manual", 22, 0),
    ],
)
def test_strategy_decides_who_leads_after_the_last_replica(
    generation: str, strategy: str, hours: int, losses: int
) -> None:
    """Broker 1, which lacks what broker 0 has acknowledged alone, leads from its return at hour 3 on if unclean
    election is enabled, and loses that; otherwise broker 0 leads from hour 5 on, or after a user's request."""
    cell = CellParameters.model_validate(
        {
            "generation": generation,
            "unclean_recovery_strategy": strategy,
            "brokers": 2,
            "replication_factor": 2,
            "min_insync_replicas": 1,
            "broker_mttf": None,
            "duration_ms": DAY_MS,
            "start": "fresh",
            "detection_ms": None,
        }
    )
    rows = as_rows(Trial(cell, 1, DrawnTimeline(cell, 1, outages=OUTAGES, own_failures=False)).run().rows)
    states = [row for row in rows if row.kind == State.KIND or row is rows[-1]]
    offline_ms = sum(after.time_ms - row.time_ms for row, after in pairwise(states) if row.leader == -1)
    assert offline_ms / HOUR_MS == pytest.approx(hours, abs=0.01)
    assert sum(row.kind == Loss.KIND for row in rows) == losses


@pytest.mark.parametrize("generation", ["v3", "kip-497", "kip-966-elr"])
def test_manual_recovery_is_refused_where_there_is_none(generation: str) -> None:
    study = {"name": "s", "trials": 1, "base": {"generation": generation, "unclean_recovery_strategy": "manual"}}
    with pytest.raises(InputError) as caught:
        study_from(study, "s.yaml")
    assert str(caught.value) == (
        "s.yaml: base.unclean_recovery_strategy: found 'manual'; allowed: proactive or balanced in "
        f"{generation}: only kip-966 has manual recovery"
    )
