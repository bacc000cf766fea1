"""The tables of silver, of small traces by hand, and of drawn ones as DuckDB computes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.bench.pipeline_data import write_study
from experiments.bench.pipeline_duckdb import analyse as analyse_in_duckdb
from experiments.studies.design.study import MetricDeclaration
from experiments.studies.pipeline.records import counts, cuts, reads, records
from experiments.studies.pipeline.rows import Trace, TraceRows, read_batch
from experiments.studies.pipeline.schemas import METRIC_FIELDS, READS, SILVER, Columns, trial_columns
from experiments.studies.pipeline.silver import (
    catch_ups,
    elections,
    intervals,
    isr_changes,
    losses,
    measured,
    outages,
    recoveries,
    regressions,
)
from experiments.studies.pipeline.trials import per_trial
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.storage import Folder
from experiments.studies.sweeps.sweep import complete_batches
from experiments.studies.trace.metrics import METRICS
from experiments.studies.trace.schema import TRACE_SCHEMA, YEAR_MS, TraceRow

CELL = "0123456789abcdef"
METRIC_NAMES = tuple(metric.name for metric in METRICS)


def trace_of(*trials: Sequence[TraceRow], partitions: int = 1, first: int = 0) -> Trace:
    """A batch of trials, from the number `first` on, of a cell with acks=all."""
    rows = [(CELL, first + k, seq, *row) for k, trial in enumerate(trials) for seq, row in enumerate(trial)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    table = pa.table(columns, schema=TRACE_SCHEMA)
    lengths = [trial[-1].time_ms for trial in trials]
    custom = [[0.25, 2.0]] * len(trials)
    known = pa.table({"trial": range(first, first + len(trials)), "duration_ms": lengths, "custom": custom})
    for name in ("controls", "control_exposure", "control_exposure_mean"):
        known = known.append_column(name, pa.array([0] * len(trials)))
    for name in ("control", "control_mean"):
        known = known.append_column(name, pa.array([[]] * len(trials), pa.list_(pa.float64())))
    file = pa.BufferOutputStream()
    pq.write_table(table, file)
    return Trace(CELL, partitions, True, TraceRows.of_file(file.getvalue().to_pybytes()), known)


def state(time_ms: int, leader: int, epoch: int, isr: str, elr: str = "", serves: bool = True) -> TraceRow:
    size = isr.count(",") + 1 if leader >= 0 else 0
    row = TraceRow(time_ms, "state", 0, leader=leader, leader_serves=serves, isr_size=size, min_isr=2)
    return row._replace(epoch=epoch, isr=isr, elr=elr)


def rows_of(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in table.to_pylist()]


def acked(time_ms: int, offset: int) -> TraceRow:
    return TraceRow(time_ms, "produced", 0, value=5, detail="acked", offset=offset)


def elected(time_ms: int, epoch: int, offset: int) -> TraceRow:
    return TraceRow(time_ms, "elected", 0, 1, epoch=epoch, offset=offset)


CHANGES = (
    state(0, 0, 0, "0,1,2"),
    state(1_000, 1, 1, "0,1,2", serves=False),  # a handover: broker 0 had not failed
    state(1_004, 1, 1, "0,1,2"),
    TraceRow(2_000, "crash", node=1),
    state(2_000, 1, 1, "0,1,2", serves=False),
    state(2_000, 2, 2, "0,2", serves=False),  # detected at once: still a failover
    state(2_007, 2, 2, "0,2"),
    TraceRow(2_500, "start", node=1),
    state(3_000, 2, 2, "0,1,2"),
    state(4_000, -1, 3, "", "0,1"),
    state(5_000, 1, 4, "1"),
    state(6_000, -1, 5, "1"),
    state(7_000, 0, 6, "0"),
    TraceRow(9_000, "end"),
)


def test_handovers_are_no_failovers_and_elections_have_reasons() -> None:
    trace = trace_of(CHANGES, CHANGES, first=7)
    expected = [(1_000, 4, True, True), (2_000, 7, False, True)]
    expected += [(4_000, 1_000, False, True), (6_000, 1_000, False, True)]
    found = [(trial, *row) for trial in (7, 8) for row in expected]
    assert rows_of(outages(trace), "trial", "start_ms", "failover_ms", "handover", "ended") == found
    assert rows_of(elections(trace), "time_ms", "leader", "leader_before", "reason", "handover") == 2 * [
        (1_000, 1, 0, "isr", True),
        (2_000, 2, 1, "isr", False),
        (5_000, 1, -1, "elr", False),
        (7_000, 0, -1, "unclean", False),
    ]
    assert (3_000, ["1"], []) in rows_of(isr_changes(trace), "time_ms", "joined", "left")
    assert (2_000, [], ["1"]) in rows_of(isr_changes(trace), "time_ms", "joined", "left")
    assert rows_of(catch_ups(trace), "broker", "start_ms", "in_sync_ms") == 2 * [(1, 2_500, 3_000)]
    marks = [row["start_ms"] for row in intervals(trace).to_pylist() if row["refuses_begins"]]
    assert marks == [4_000, 4_000]


def test_an_outage_that_the_trial_ends_has_no_known_length() -> None:
    trace = trace_of([state(0, 0, 0, "0"), state(5, -1, 1, ""), TraceRow(9, "end")])
    assert rows_of(outages(trace), "start_ms", "end_ms", "ended") == [(5, 9, False)]


def test_intervals_of_a_partition_know_the_one_before() -> None:
    other = [state(0, 1, 0, "1,2")._replace(partition=1), state(30, -1, 1, "")._replace(partition=1)]
    rows = [state(0, 0, 0, "0,1"), other[0], state(10, 0, 0, "0"), other[1], TraceRow(50, "end")]
    columns = ("partition", "start_ms", "end_ms", "leader_before", "isr_before", "isr", "outage", "leader_failed")
    assert rows_of(intervals(trace_of(rows, partitions=2)), *columns) == [
        (0, 0, 10, None, None, "0,1", None, True),
        (0, 10, 50, 0, "0,1", "0", None, False),
        (1, 0, 30, None, None, "1,2", None, True),
        (1, 30, 50, 1, "1,2", "", 1, True),
    ]


def test_a_recovery_has_the_answers_that_were_decided_on_and_its_end() -> None:
    def recovering(time_ms: int, epoch: int, lasts: bool) -> TraceRow:
        return state(time_ms, 1, epoch, "1")._replace(recovering=lasts)

    def decided(time_ms: int, answers: str) -> TraceRow:
        return TraceRow(time_ms, "recovery", 0, 1, detail=answers)

    rows = [
        state(0, 0, 0, "0,1"),
        decided(100_000, "too early"),
        decided(190_000, "first"),
        decided(199_000, "last"),
        recovering(200_000, 1, True),
        TraceRow(200_000, "unclean_recovery", 0, 1),
        recovering(200_500, 1, False),
        recovering(300_000, 2, True),
        TraceRow(300_000, "unclean_recovery", 0, 1),
        TraceRow(400_000, "end"),
    ]
    assert rows_of(recoveries(trace_of(rows)), "time_ms", "leader", "recovered_ms", "answers") == [
        (200_000, 1, 200_500, "last"),
        (300_000, 1, None, None),
    ]


FATES = (
    state(0, 0, 0, "0,1,2"),
    acked(10, 0),
    acked(20, 1),
    elected(30, 1, 2),
    acked(40, 2),
    acked(50, 3),
    TraceRow(55, "produced", 0, value=5, detail="unknown"),
    elected(60, 2, 3),  # without record 3
    TraceRow(60, "loss", 0, 1, value=1),
    acked(70, 3),  # another record at that offset
    TraceRow(80, "checkpoint", 0, offset=3),
    acked(85, 4),
    elected(90, 3, 0),  # without all: the new 3 and 4 are followed
    TraceRow(90, "loss", 0, 1, value=2),
    TraceRow(100, "end"),
)


@pytest.mark.parametrize("first", [0, 3])
def test_a_record_is_lost_by_the_first_election_that_cuts_it_off(first: int) -> None:
    trace = trace_of(FATES, FATES, first=first)
    columns = ("offset", "acknowledged_ms", "visible_ms", "durable", "lost_ms", "lost_epoch")
    assert rows_of(records(trace), *columns) == 2 * [
        (0, 10, 10, True, None, None),
        (1, 20, 20, True, None, None),
        (2, 40, 40, True, None, None),
        (3, 50, 50, False, 60, 2),
        (-1, None, None, False, None, None),
        (3, 70, 70, False, 90, 3),
        (4, 85, 85, False, 90, 3),
    ]
    # A cut concerns the acknowledged records from the last one before the last checkpoint on.
    assert rows_of(cuts(trace), "trial", "seq", "time_ms", "epoch", "offset", "since") == [
        (trial, *cut) for trial in (first, first + 1) for cut in ((7, 60, 2, 3, 0), (12, 90, 3, 0, 9))
    ]
    assert rows_of(counts(trace), "trial", "partition", "records", "lost") == [(first, 0, 7, 3), (first + 1, 0, 7, 3)]


def test_fates_of_random_records_are_those_of_a_search_through_all_elections() -> None:
    random = np.random.default_rng(5)
    trials = []
    for _ in range(40):
        offset, rows = 0, [state(0, 0, 0, "0")]
        for at in range(1, int(random.integers(2, 60))):
            kind = random.choice(["acked", "acked", "acked", "elected", "checkpoint", "failed"])
            if kind == "acked":
                rows.append(acked(at, offset))
                offset += 1
            elif kind == "elected":
                cut = int(random.integers(max(0, offset - 4), offset + 2))
                rows.append(elected(at, at, cut))
                offset = min(offset, cut)
            elif kind == "checkpoint":
                rows.append(TraceRow(at, "checkpoint", 0, offset=offset - 1))
            else:
                rows.append(TraceRow(at, "produced", 0, detail="unknown"))
        trials.append([*rows, TraceRow(100, "end")])
    expected = [
        (number, row.time_ms, _lost(trial, seq)) for number, trial in enumerate(trials) for seq, row in _acked(trial)
    ]
    assert {lost is None for _, _, lost in expected} == {True, False}
    found = [row for row in records(trace_of(*trials)).to_pylist() if row["outcome"] == "acked"]
    assert [(row["trial"], row["acknowledged_ms"], row["lost_ms"]) for row in found] == expected


def _acked(trial: Sequence[TraceRow]) -> list[tuple[int, TraceRow]]:
    return [(seq, row) for seq, row in enumerate(trial) if row.kind == "produced" and row.detail == "acked"]


def _lost(trial: Sequence[TraceRow], record: int) -> int | None:
    """When the record in row `record` was lost, by the definition."""
    for seq in range(record + 1, len(trial)):
        cut = trial[seq]
        before = [each for each in _acked(trial) if each[0] < seq]
        if cut.kind != "elected" or not any(row.offset >= cut.offset for _, row in before):
            continue
        checkpoints = [k for k in range(seq) if trial[k].kind == "checkpoint"]
        dropped = [each for each, _ in before if checkpoints and each < checkpoints[-1]]
        if cut.offset <= trial[record].offset and record >= max(dropped, default=0):
            return cut.time_ms
    return None


def read(time_ms: int, offset: int, count: int, outcome: str = "fetched") -> TraceRow:
    return TraceRow(time_ms, "read", 0, 1, value=count, detail=outcome, offset=offset)


def test_a_read_is_undone_by_later_elections_that_cut_off_what_it_returned() -> None:
    rows = [
        state(0, 0, 0, "0,1,2"),
        read(10, 0, 3),
        read(20, 3, 2),
        elected(30, 1, 4),  # without record 4
        read(35, 4, 1, "diverged"),
        read(40, 4, 2),  # others at 4 and 5
        elected(50, 2, 1),
        read(55, 1, 1),
        TraceRow(60, "end"),
    ]
    columns = ("time_ms", "offset", "records", "outcome", "undone", "undone_ms")
    assert rows_of(reads(trace_of(rows, rows)), *columns) == 2 * [
        (10, 0, 3, "fetched", 2, 50),
        (20, 3, 2, "fetched", 2, 30),
        (35, 4, 1, "diverged", 0, None),
        (40, 4, 2, "fetched", 2, 50),
        (55, 1, 1, "fetched", 0, None),
    ]


def test_a_trial_adds_up_weighted_events_and_times() -> None:
    two = float(np.log(2.0))
    rows = [
        state(0, 0, 0, "0,1"),
        TraceRow(10, "loss", 0, value=3),
        state(20, -1, 1, ""),
        TraceRow(30, "loss", 0, value=2, log_weight=two),
        TraceRow(30, "loss", 0, value=1, log_weight=two),
        state(40, 0, 2, "0,1")._replace(log_weight=two),
        TraceRow(YEAR_MS, "end", log_weight=two),
    ]
    calm = [state(0, 0, 0, "0,1"), TraceRow(YEAR_MS, "end")]
    custom = [
        MetricDeclaration(name="mine", unit="fraction", meaning=""),
        MetricDeclaration(name="other", unit="rate", meaning=""),
    ]
    found, quiet = per_trial(trace_of(rows, calm), custom).to_pylist()
    assert found["states"] == 3
    assert found["exposure"] == pytest.approx((20 + 2.0 * (YEAR_MS - 20)) / YEAR_MS)
    expected = (9.0, 3, 5.0, 9.0, 2.0, 29.0, 4.0)
    assert found["lost_records_per_year"] == pytest.approx(dict(zip(METRIC_FIELDS, expected, strict=True)))
    offline = found["offline_fraction"]
    assert (offline["value"], offline["events"], offline["weight"]) == pytest.approx((2.0 * 20 / YEAR_MS, 1, 2.0))
    assert (quiet["exposure"], quiet["loss_rate"]["events"]) == (1.0, 0)
    assert (quiet["mine"]["value"], quiet["other"]["value"], quiet["other"]["events"]) == (0.25, 2.0, 2)


def test_tables_of_a_trial_without_events_have_their_columns() -> None:
    trace = trace_of([state(0, 0, 0, "0,1"), TraceRow(50, "end")])
    for function in (outages, elections, isr_changes, recoveries, catch_ups, regressions, records, losses, measured):
        table = function(trace)
        assert_columns(table, SILVER[function.__name__])
        assert table.num_rows == 0
    assert_columns(intervals(trace), SILVER["intervals"])
    assert_columns(reads(trace), READS)
    assert_columns(per_trial(trace), trial_columns(METRIC_NAMES))


def assert_columns(table: pa.Table, columns: Columns) -> None:
    types = {"int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
    assert table.schema.names == list(columns)
    for name, kind in columns.items():
        if name != "cell" and kind in types:
            assert table.schema.field(name).type == types[kind], name


def test_rows_are_those_of_duckdb(tmp_path: Path) -> None:
    out, target = tmp_path / "study", tmp_path / "duckdb"
    target.mkdir()
    write_study(out, 4_000)
    record, store = read_record(out), Folder(out)
    analyse_in_duckdb(out, record, target)
    cells = dict(zip(record.cells, (cell.parameters for cell in record.study.cells), strict=True))
    traces = [
        read_batch(store, batch, cells[batch.cell].partitions, cells[batch.cell].acks == "all")
        for batch in complete_batches(record, out)[0]
    ]
    keys = ["cell", "trial", "partition", "seq", "start_ms", "time_ms", "broker"]
    for function in (intervals, outages, elections, isr_changes, catch_ups, records, losses):
        name = function.__name__
        found = pa.concat_tables([function(trace) for trace in traces]).to_pandas()
        found["cell"] = found["cell"].map(record.cells.index)
        expected = pd.read_parquet(target / f"{name}.parquet")[list(found.columns)]
        order = [key for key in keys if key in found]
        both = [frame.sort_values(order).reset_index(drop=True) for frame in (found, expected)]
        pd.testing.assert_frame_equal(*both, check_dtype=False)
        assert len(found) > 0, name
