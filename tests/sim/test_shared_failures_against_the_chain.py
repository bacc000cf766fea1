"""Power events and bursts: simulated trials against the Markov chain, which knows who was fenced last and who is back.

`tests/unit/experiments/studies/theory/test_theory_model.py` has the chain against values by hand.
"""

from __future__ import annotations

from functools import partial

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst
from experiments.studies.design.model import CellParameters
from experiments.studies.theory.validation import ValidationCell, validate
from tests.synthetic_studies import cell_like

HOUR_MS = 3_600_000
HOURS = CellParameters(
    broker_mttf=Distribution(mean_ms=10 * HOUR_MS),
    broker_mttr=Distribution(mean_ms=HOUR_MS),
    detection_ms=None,
    writeback_ms=None,
    duration_ms=60 * HOUR_MS,
    estimator="plain",
)
_cell = partial(cell_like, HOURS)


@pytest.mark.parametrize(
    "cell",
    [
        _cell(
            generation="kip-497",
            min_insync_replicas=1,
            power_events_per_year=600.0,
            power_loss_probability=0.9,
            flush_interval_ms=HOUR_MS,
        ),
        _cell(
            generation="kip-966",
            power_events_per_year=600.0,
            power_loss_probability=0.9,
            power_mttr=Distribution(mean_ms=HOUR_MS // 2),
        ),
        _cell(min_insync_replicas=1, tail_loss_probability=0.9, burst=(Burst(per_year=2_000, size=2, window_ms=0),)),
    ],
    ids=["repaired one by one", "back with the power", "bursts of two of three"],
)
def test_brokers_that_fail_together_lose_what_the_chain_says(cell: CellParameters) -> None:
    found = {each.metric: each for each in validate([ValidationCell({}, cell, 24)], jobs=1)}
    assert {"loss_rate", "offline_fraction", "reject_fraction"} <= set(found)
    assert all(each.agrees for each in found.values()), found
