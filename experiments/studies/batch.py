"""One batch: consecutive trials of one cell, run where there is a CPU, handed back as two Arrow tables.

A trial's seed is a hash of the study's seed, the cell's parameters and the trial's number. It does not depend on which
worker runs the trial, in which batch, or in which order; two cells share no random numbers, and a cell keeps its trials
when other cells are added to the study.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from experiments.studies.model import CellParameters
from experiments.studies.trace_schema import (
    HW_REGRESSION,
    LOSS,
    TRACE_SCHEMA,
    TRIALS_SCHEMA,
    UNCLEAN_RECOVERY,
    TraceRow,
    TrialResult,
    check_trace,
)

Trial = Callable[[CellParameters, int], TrialResult]
"""A pure function of a cell's parameters and a seed."""


class Batch(NamedTuple):
    """Trials `first` up to, not including, `stop` of the cell with that index."""

    cell: int
    first: int
    stop: int


class TrialFailed(RuntimeError):
    """A trial raised; the message names the cell, the trial and the seed that repeat it."""


def trial_seed(study_seed: int, parameters: CellParameters, trial: int) -> int:
    """The seed of one trial: 63 bits of BLAKE2b over the study's seed, the parameters as JSON, and the trial's
    number."""
    text = f"{study_seed}\n{parameters.model_dump_json()}\n{trial}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def run_batch(trial: Trial, parameters: CellParameters, batch: Batch, study_seed: int) -> tuple[pa.Table, pa.Table]:
    """Runs the trials of `batch`; answers the tables for `trace/` and `trials/` (schemas in `trace_schema.py`).

    Raises TrialFailed if a trial raises or breaks the rules of a trace.
    """
    trace: list[tuple[object, ...]] = []
    trials: list[tuple[object, ...]] = []
    for number in range(batch.first, batch.stop):
        seed = trial_seed(study_seed, parameters, number)
        try:
            result = trial(parameters, seed)
            check_trace(result.rows, parameters.partitions, parameters.duration_ms)
        except Exception as error:
            raise TrialFailed(f"trial {number} of cell {batch.cell}, seed {seed}, {parameters!r}: {error}") from error
        trace.extend((batch.cell, number, seq, *row) for seq, row in enumerate(result.rows))
        trials.append(_trial_row(batch.cell, number, seed, parameters, result))
    return _table(trace, TRACE_SCHEMA), _table(trials, TRIALS_SCHEMA)


def _trial_row(
    cell: int, number: int, seed: int, parameters: CellParameters, result: TrialResult
) -> tuple[object, ...]:
    rows = result.rows
    return (
        cell,
        number,
        seed,
        parameters.duration_ms,
        parameters.partitions,
        result.events,
        result.trace_hash,
        len(rows),
        _count(rows, LOSS),
        sum(row.value for row in rows if row.kind == LOSS),
        _count(rows, UNCLEAN_RECOVERY),
        _count(rows, HW_REGRESSION),
    )


def _count(rows: list[TraceRow], kind: str) -> int:
    return sum(1 for row in rows if row.kind == kind)


def _table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
