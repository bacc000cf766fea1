"""One batch: consecutive trials of one cell, which a Ray worker runs into two Arrow tables.

A trial's seed is a hash of the study's seed and the trial's number, whichever worker runs the trial. Trial k of every
cell has the same seed, and so the same failures as far as their failure models agree (`failures/timeline.py`): the
trials of two cells are pairs. Without pairing the cell's parameters are in the hash too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from experiments.engines.sim.memory import rare_collections
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.kinds import ControlResult, TraceError, TrialResult
from experiments.studies.trace.metrics import METRICS, measure
from experiments.studies.trace.rules import broken_rule
from experiments.studies.trace.schema import TRACE_SCHEMA, columns
from experiments.support.errors import InputError

NO_CONTROLS = ControlResult(0, 0.0, 0.0, (), ())
Trial = Callable[[CellParameters, int], TrialResult]
"""A pure function of a cell's parameters and a seed."""

TRIALS_SCHEMA = columns(
    ("cell", pa.string()),
    ("trial", pa.int32()),
    ("seed", pa.int64()),
    ("duration_ms", pa.int64()),
    ("partitions", pa.int32()),
    ("events", pa.int64()),
    ("trace_hash", pa.string()),
    ("trace_rows", pa.int32()),
    ("exposure", pa.float64()),
    *((metric.column, pa.float64()) for metric in METRICS),
    *((f"{metric.column}_events", pa.int32()) for metric in METRICS),
    ("custom", pa.list_(pa.float64())),
    ("controls", pa.int32()),
    ("control_exposure", pa.float64()),
    ("control_exposure_mean", pa.float64()),
    ("control", pa.list_(pa.float64())),
    ("control_mean", pa.list_(pa.float64())),
)
"""`trials/`: one row per trial. `partitions`: those of its trace. `trace_rows` is the number of its rows in `trace/`.
`exposure` and a value and a number of events per metric are its measures (`trace/metrics.py`), for the sweep's stopping
rule. `custom` holds the values of a script's metrics, in their order. In multi-fidelity estimation `control` holds the
values of the trial's control by `CONTROLLED`, `control_mean` their means over `controls` others; other trials have no
controls and empty lists."""


class Batch(NamedTuple):
    """The trials from `first` up to, not including, `stop` of the cell with that digest."""

    cell: str
    first: int
    stop: int


class TrialFailed(RuntimeError):
    """A trial raised; the message names the cell, the trial and the seed that repeat it."""


class FunctionFailed(TrialFailed):
    """A function of the study's script raised, or returned what it must not; the message is one line."""


def trial_seed(study_seed: int, trial: int, unpaired: CellParameters | None = None) -> int:
    """The seed of a trial: 63 bits of BLAKE2b over the study's seed and the trial's number. `unpaired`: parameters of
    the cell that the hash covers, too, as JSON."""
    text = f"{study_seed}\n{trial}" + (f"\n{unpaired.model_dump_json()}" if unpaired is not None else "")
    return hashed_seed(text)


def hashed_seed(text: str) -> int:
    """63 bits of BLAKE2b over a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def run_batch(
    trial: Trial, parameters: CellParameters, batch: Batch, study_seed: int, pairing: bool = True
) -> tuple[pa.Table, pa.Table]:
    """Runs the trials of `batch`; returns the tables for `trace/` and `trials/`. `pairing`: whether trials of one
    number have one seed in all cells.

    Raises TrialFailed if a trial raises or breaks the rules of a trace, FunctionFailed if a function of a script does.
    """
    trace: list[tuple[object, ...]] = []
    trials: list[tuple[object, ...]] = []
    counts = parameters.counts
    with rare_collections():
        for number in range(batch.first, batch.stop):
            seed = trial_seed(study_seed, number, None if pairing else parameters)
            try:
                result = trial(parameters, seed)
                end_ms = result.rows[-1].time_ms if result.rows else -1
                if end_ms < parameters.duration_ms:
                    raise TraceError(f"the last row must be at {parameters.duration_ms} ms or later; found {end_ms} ms")
            except Exception as error:
                where = f"trial {number} of cell {batch.cell}, seed {seed}"
                if isinstance(error, InputError):
                    raise FunctionFailed(f"{error} ({where})") from error
                raise TrialFailed(f"{where}, {parameters!r}: {error}") from error
            trace.extend((batch.cell, number, seq, *row.row()) for seq, row in enumerate(result.rows))
            known = (end_ms, len(counts), result.events, result.trace_hash, len(result.rows))
            exposure, values, events = measure(result.rows, counts)
            controls = result.controls or NO_CONTROLS
            measures = (exposure, *values.values(), *events.values(), list(result.custom), *controls)
            trials.append((batch.cell, number, seed, *known, *measures))
    tables = _table(trace, TRACE_SCHEMA), _table(trials, TRIALS_SCHEMA)
    broken = broken_rule(*tables)
    if broken is not None:
        raise TrialFailed(f"trials of cell {batch.cell}, {parameters!r}: {InputError('trace', *broken)}")
    return tables


def _table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
