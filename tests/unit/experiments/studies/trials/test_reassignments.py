"""Moves of replicas: when they come, and where they lead."""

from __future__ import annotations

from itertools import islice

import pytest

from experiments.studies.design.mappings import Reassignments
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.trials.reassignments import Move, drawn_moves, target_of


@pytest.mark.parametrize(
    ("running", "leaving", "joining", "target"),
    [
        ((0, 1, 2, 3), 0.0, 0.0, (3, 1, 2)),
        ((0, 1, 2, 3), 0.99, 0.99, (0, 1, 3)),
        ((1, 2, 3, 4), 0.4, 0.5, (0, 4, 2)),
        ((1, 2, 3, 4), 0.4, 0.49, (0, 3, 2)),
        ((0, 1), 0.4, 0.5, None),
    ],
)
def test_a_move_replaces_a_replica_by_a_running_broker_without_one(
    running: tuple[int, ...], leaving: float, joining: float, target: tuple[int, ...] | None
) -> None:
    assert target_of((0, 1, 2), 3, running, Move(0, 0, leaving, joining)) == target


def test_moves_of_each_partition_come_at_the_rate_and_do_not_depend_on_other_partitions() -> None:
    one, two = (
        CellParameters(brokers=4, partitions=partitions, reassignments=Reassignments(per_year=100.0))
        for partitions in (1, 2)
    )
    begins_ms = -YEAR_MS
    alone, both = (list(islice(drawn_moves(cell, 7, begins_ms), 4_000)) for cell in (one, two))
    years = (both[-1].at_ms - begins_ms) / YEAR_MS
    assert len(both) / years / 2 == pytest.approx(100.0, rel=0.05)
    first = [move for move in both if move.partition == 0]
    assert first == alone[: len(first)]
    assert sum(move.leaving for move in both) / len(both) == pytest.approx(0.5, abs=0.02)
    assert list(drawn_moves(CellParameters(), 7, begins_ms)) == []
