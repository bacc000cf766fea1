"""Trials without a simulator: study directories of any size, for the benchmark of the pipeline.

Each trial is a sequence of failure cycles (`_CYCLE`) at random times; in one cycle of `LOSS_EVERY` the new leader lacks
the last record. The rows keep the rules of a trace (`experiments/studies/trace/kinds.py`); they are drawn as arrays, a
batch at a time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from experiments.studies.design.loader import study_from
from experiments.studies.sweeps.batches import commit
from experiments.studies.sweeps.identity import cell_digests
from experiments.studies.sweeps.output import claim
from experiments.studies.sweeps.storage import Folder
from experiments.studies.trace.metrics import METRICS
from experiments.studies.trace.schema import TRACE_SCHEMA, YEAR_MS, Values
from experiments.studies.trials.batch import TRIALS_SCHEMA, Batch, trial_seed

CELLS = 4
CYCLES = 24
"""Failures of a leader per trial of a year."""
LOSS_EVERY = 16
_CYCLE: tuple[tuple[str, int, int, bool, str, str], ...] = (
    ("crash", 0, -1, False, "", ""),
    ("state", 0, 0, False, "0,1,2", ""),
    ("state", 9_000, -1, False, "", "1,2"),
    ("state", 9_005, 1, False, "1,2", ""),
    ("elected", 9_009, -1, False, "", ""),
    ("loss", 9_009, -1, False, "", ""),
    ("state", 9_009, 1, True, "1,2", ""),
    ("produced", 9_020, -1, False, "", ""),
    ("failover", 9_020, -1, False, "", ""),
    ("start", 900_000, -1, False, "", ""),
    ("state", 905_000, 1, True, "0,1,2", ""),
    ("produced", 905_020, -1, False, "", ""),
    ("state", 910_000, 0, False, "0,1,2", ""),
    ("state", 910_004, 0, True, "0,1,2", ""),
)
"""Kind, time after the crash, leader, whether it answers, ISR, ELR. The outage lasts up to 1 s longer. The last rows
are the handover to the preferred leader."""
TRIAL_ROWS = 2 + CYCLES * len(_CYCLE)
BATCH_TRIALS = 1_000


def write_study(out: Path, events: int) -> int:
    """Writes the sweep of a study with about so many rows of trace into `out`; returns their number."""
    trials = max(2, events // (CELLS * TRIAL_ROWS))
    raw = {"name": "pipeline", "trials": trials, "sweep": {"min_insync_replicas": [1, 2], "acks": ["all", "1"]}}
    study = study_from(raw, "pipeline.yaml")
    cells = cell_digests(study, "rows of experiments/bench/pipeline_data.py")
    store = Folder(out)
    claim(store, study, cells)
    for index, cell in enumerate(cells):
        for first in range(0, trials, BATCH_TRIALS):
            batch = Batch(cell, first, min(first + BATCH_TRIALS, trials))
            seeds = [trial_seed(study.seed, trial) for trial in range(batch.first, batch.stop)]
            min_isr = study.cells[index].parameters.min_insync_replicas
            loss = "loss" if study.cells[index].parameters.acks == "all" else "acks_1_loss"
            commit(store, batch, _trace(batch, seeds[0], min_isr, loss), _trials(batch, seeds))
    return CELLS * trials * TRIAL_ROWS


def _trace(batch: Batch, seed: int, min_isr: int, loss: str) -> pa.Table:
    count, per_cycle = batch.stop - batch.first, len(_CYCLE)
    random = np.random.default_rng(seed)
    length = YEAR_MS // (CYCLES + 1)
    crashes = np.arange(CYCLES) * length + random.integers(1, length // 2, (count, CYCLES))
    after = np.array([row[1] for row in _CYCLE]) + np.zeros((count, CYCLES, per_cycle), np.int64)
    after[:, :, 3:9] += random.integers(0, 1_000, (count, CYCLES, 1))
    times = crashes[:, :, None] + after
    drawn = random.integers(0, LOSS_EVERY, (count, CYCLES)) == 0
    drawn[:, 0] = False  # nothing was acknowledged before

    def rows(begin: object, column: int, end: object, kind: str) -> Values:
        one = np.concatenate([[begin], np.tile(np.array([row[column] for row in _CYCLE], kind), CYCLES), [end]])
        return np.tile(one.astype(kind), count)

    def by_cycle(values: Values) -> Values:
        """A value per cycle as a value per row."""
        return np.pad(np.repeat(values, per_cycle, axis=1), ((0, 0), (1, 1))).ravel()

    kinds = rows("state", 0, "end", "U12")
    cycle, lost = by_cycle(np.tile(np.arange(CYCLES), (count, 1))), by_cycle(drawn)
    kinds = np.where(kinds == "loss", np.where(lost, loss, "acknowledged"), kinds)
    states, produced, elected = (kinds == kind for kind in ("state", "produced", "elected"))
    isr, elr = rows("0,1,2", 4, "", "U8"), rows("", 5, "", "U8")
    number = (produced.reshape(count, -1).cumsum(axis=1) - 1).ravel()
    offset = np.where(produced, number, np.where(elected, 2 * cycle - lost, -1))
    columns = {
        "cell": pa.array([batch.cell]).take(pa.array(np.zeros(len(kinds), np.int32))),
        "trial": np.repeat(np.arange(batch.first, batch.stop, dtype=np.int32), TRIAL_ROWS),
        "seq": np.tile(np.arange(TRIAL_ROWS, dtype=np.int32), count),
        "time_ms": np.concatenate(
            [np.zeros((count, 1), np.int64), times.reshape(count, -1), np.full((count, 1), YEAR_MS)], axis=1
        ).ravel(),
        "kind": kinds,
        "partition": np.where(np.isin(kinds, ("crash", "start", "end")), -1, 0).astype(np.int32),
        "node": np.where(states | produced | (kinds == "end"), -1, 0).astype(np.int32),
        "leader": rows(0, 2, -1, "i4"),
        "leader_serves": rows(True, 3, False, "?"),
        "stalls": np.zeros(len(kinds), bool),
        "expired": np.zeros(len(kinds), bool),
        "cause": np.where(kinds == "crash", "broker", ""),
        "isr_size": np.where(states & (isr != ""), np.char.count(isr, ",") + 1, 0).astype(np.int32),
        "elr_size": np.where(elr != "", 2, 0).astype(np.int32),
        "min_isr": np.where(states, min_isr, 0).astype(np.int32),
        "value": np.select(
            [kinds == "failover", produced, elected, np.isin(kinds, ("loss", "acks_1_loss", "acknowledged"))],
            [9_020, 11, offset, 1],
            0,
        ),
        "detail": np.select([kinds == "crash", produced], ["unclean", "acked"], ""),
        "log_weight": np.zeros(len(kinds)),
        "epoch": np.where(states | elected, _epochs(count), -1).astype(np.int32),
        "isr": isr,
        "elr": elr,
        "recovering": np.zeros(len(kinds), bool),
        "offset": offset,
        "why": np.zeros(len(kinds), "U1"),
    }
    return pa.table([columns[name] for name in TRACE_SCHEMA.names], schema=TRACE_SCHEMA)


def _epochs(count: int) -> Values:
    """The leader epochs of the rows: a crash begins two, the handover a third."""
    within = np.array([0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3])
    cycles = (np.arange(CYCLES)[:, None] * 3 + within).ravel()
    return np.tile(np.concatenate([[0], cycles, [-1]]), count)


def _trials(batch: Batch, seeds: list[int]) -> pa.Table:
    """The rows of `trials/`. What a worker would have measured is 0: the pipeline does not read it."""
    count = batch.stop - batch.first
    same: dict[str, object] = {"cell": batch.cell, "trace_rows": TRIAL_ROWS, "trace_hash": "", "custom": []}
    same |= {"controls": 0, "control_exposure": 0.0, "control_exposure_mean": 0.0, "control": [], "control_mean": []}
    same |= {"duration_ms": YEAR_MS, "partitions": 1, "exposure": 1.0, "events": 0}
    same |= {name: 0.0 for metric in METRICS for name in (metric.column, f"{metric.column}_events")}
    columns = {name: [value] * count for name, value in same.items()}
    columns["trial"], columns["seed"] = [*range(batch.first, batch.stop)], [*seeds]
    return pa.table(
        [pa.array(columns[name], TRIALS_SCHEMA.field(name).type) for name in TRIALS_SCHEMA.names], schema=TRIALS_SCHEMA
    )
