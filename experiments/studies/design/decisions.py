"""Which parameters an operator decides, and which describe the world that the decision is for.

A study compares settings under the same assumptions. Cells that differ in an assumption (how often machines fail, how
large the cluster is, how trials are sampled) are answers to different questions: none of them is better than another,
since an operator does not choose how machines fail. So cells are compared within groups that share all assumptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from experiments.studies.design.study import Cell

DECISIONS = frozenset(
    {"generation", "replication_factor", "min_insync_replicas", "unclean_recovery_strategy", "acks", "detection"}
    | {"flush_interval", "placement", "rolling_restart", "delivery_timeout"}
)
"""The parameters, by their names in study files, that are settings of a cluster; all others are assumptions."""


def decided(swept: Mapping[str, object]) -> dict[str, object]:
    """The swept parameters that are decisions, in the order of the file."""
    return {name: value for name, value in swept.items() if name in DECISIONS}


def assumed(swept: Mapping[str, object]) -> dict[str, object]:
    """The swept parameters that are assumptions, in the order of the file."""
    return {name: value for name, value in swept.items() if name not in DECISIONS}


def groups_of(cells: Sequence[Cell]) -> tuple[tuple[int, ...], ...]:
    """The positions of the cells that share all assumptions, group by group, in the order of their first cells."""
    groups: dict[str, list[int]] = {}
    for position, cell in enumerate(cells):
        groups.setdefault(json.dumps(assumed(cell.swept), sort_keys=True, default=str), []).append(position)
    return tuple(tuple(group) for group in groups.values())
