"""The rows that follow the single records show the losses that the simulator counts by payloads."""

from __future__ import annotations

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.trace.kinds import ACKED, Checkpoint, Elected, Loss, Produced
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.estimators import run_cell_trial
from experiments.studies.trials.observer import Lineage, shared_end
from tests.trace_rows import as_rows

pytestmark = pytest.mark.slow

HARSH = {"tail_loss_probability": 0.5, "min_insync_replicas": 1, "partitions": 2}
CELLS = {
    "plain": {"estimator": "plain", "broker_mttf": "12d", "broker_mttr": "3d", "generation": "kip-497"},
    "v3": {
        "estimator": "plain",
        "broker_mttf": "12d",
        "broker_mttr": "3d",
        "generation": "v3",
        "network_latency": "200ms",
    },
    "importance": {"estimator": "importance", "broker_mttf": "130d", "broker_mttr": "15m"},
}


def lost_records(rows: list[TraceRow]) -> int:
    """The acknowledged records that an election cuts off while they are followed."""
    followed: dict[int, list[int]] = {}
    lost = 0
    for row in rows:
        offsets = followed.setdefault(row.partition, [])
        if row.kind == Produced.KIND and row.detail == ACKED:
            offsets.append(row.offset)
        elif row.kind == Checkpoint.KIND:
            del offsets[:-1]
        elif row.kind == Elected.KIND:
            kept = [offset for offset in offsets if offset < row.offset]
            lost += len(offsets) - len(kept)
            followed[row.partition] = kept
    return lost


@pytest.mark.parametrize("cell", CELLS)
def test_rows_of_records_and_elections_show_the_counted_losses(cell: str) -> None:
    """What one election has lost the next one does not lose again."""
    raw = {"name": "s", "trials": 1, "duration": "60d", "base": {**HARSH, **CELLS[cell]}}
    parameters = study_from(raw, "s.yaml").cells[0].parameters
    counted = 0
    for seed in range(8):
        rows = as_rows(run_cell_trial(parameters, seed).rows)
        in_trial = sum(row.value for row in rows if row.kind == Loss.KIND)
        assert lost_records(rows) == in_trial
        counted += in_trial
    assert counted > 0


@pytest.mark.parametrize(
    ("before", "lineage", "log_end", "expected"),
    [
        (None, [(0, 0)], 7, 7),
        ([(0, 0), (1, 5)], [(0, 0), (1, 5)], 9, 9),  # has fetched up to 9 of the last epoch
        ([(0, 0), (1, 5)], [(0, 0)], 3, 3),  # stopped within epoch 0
        ([(0, 0), (2, 5)], [(0, 0), (1, 5)], 8, 5),  # epoch 1 is not in the leader's log
        ([(0, 0), (1, 0)], [], 0, 0),  # an empty log
        ([(0, 0), (2, 5)], [(0, 0)], 8, 5),  # more of epoch 0 than the leader had
    ],
)
def test_logs_share_records_up_to_the_end_of_their_newest_common_epoch(
    before: Lineage | None, lineage: Lineage, log_end: int, expected: int
) -> None:
    assert shared_end(before, lineage, log_end) == expected
