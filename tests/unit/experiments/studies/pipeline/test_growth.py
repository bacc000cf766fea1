"""What the failures of each cause had to do with harms: a trial by hand, and trials at twice the rate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from experiments.studies.estimation.growth import Cause
from experiments.studies.pipeline.growth import Model, group_of, harms, model_of, reweighting_of
from experiments.studies.pipeline.rows import Trace
from experiments.studies.trace.schema import YEAR_MS, TraceRow
from tests.synthetic_studies import study_of
from tests.unit.experiments.studies.pipeline.test_silver import CELL, state, trace_of

PER_MS = Cause("", 1e-3 * YEAR_MS, 0.0)
"""An event per second."""


def crash(time_ms: int, broker: int, cause: str) -> TraceRow:
    return TraceRow(time_ms, "crash", node=broker, detail="unclean", cause=cause)


def start(time_ms: int, broker: int) -> TraceRow:
    return TraceRow(time_ms, "start", node=broker)


TRIAL = (
    state(0, 0, 1, "0,1,2"),
    crash(1_000, 1, "broker"),
    state(1_500, 0, 1, "0,2"),
    crash(1_800, 0, "rack 0 power"),
    crash(1_800, 2, "rack 0 power"),
    state(1_900, -1, 2, ""),
    state(2_000, -1, 2, "")._replace(expired=True),
    start(3_000, 1),
    start(3_100, 0),
    start(3_100, 2),
    TraceRow(3_500, "acknowledged_loss", 0, 1, value=1),
    state(4_000, 1, 3, "0,1,2"),
    crash(5_000, 0, "broker"),
    start(5_200, 0),
    TraceRow(6_000, "end"),
)


def table_of(trace: Trace, window_ms: int = 0) -> pa.Table:
    causes = {name: replace(PER_MS, name=name) for name in ("broker", "rack power", "burst")}
    return harms({CELL: Model(causes, 3, {"burst": window_ms})}, trace)


def test_harms_have_the_events_since_the_cluster_was_last_whole() -> None:
    """A cycle from 1.0 to 4.0 s and one from 5.0 to 5.2 s. Broker 1 is down for 2.0 s, brokers 0 and 2 for 1.3 s,
    broker 0 for another 0.2 s, in which a third of the own failures is not expected. Both trials are the same."""
    rows = table_of(trace_of(TRIAL, TRIAL, first=7)).to_pylist()
    found = {(row["cause"], row["what"], row["trial"], row["events"]): row["expected"] for row in rows}
    own, at_end = 2.5 - 4.6 / 3, 3.0 - 4.6 / 3
    assert own < at_end
    expected = {
        ("broker", "cycle", 7, 1): 0.2 - 0.2 / 3,
        ("rack power", "cycle", 7, 1): 3.0,
        ("rack power", "cycle", 7, 0): 0.2,
        ("burst", "cycle", 7, 0): 0.2,
    }
    for trial in (7, 8):
        expected |= {
            ("broker", "loss", trial, 1): own,
            ("broker", "unwritable", trial, 1): 1.0 - 1.4 / 3,
            ("rack power", "loss", trial, 1): 2.5,
            ("rack power", "unwritable", trial, 1): 1.0,
            ("burst", "loss", trial, 0): 2.5,
            ("burst", "unwritable", trial, 0): 1.0,
        }
    assert found == pytest.approx(expected)
    values = {row["what"]: (row["value"], row["weight"]) for row in rows}
    assert values["loss"] == (1.0, 1.0)
    assert values["unwritable"] == (2_000 / YEAR_MS, 1.0)


def test_crashes_of_one_burst_are_one_event() -> None:
    crashes = (crash(1_000, 0, "burst"), crash(1_050, 1, "burst"), crash(1_300, 2, "burst"))
    trial = (
        state(0, 0, 1, "0,1,2"),
        *crashes,
        TraceRow(1_400, "acknowledged_loss", 0, 1, value=1),
        TraceRow(2_000, "end"),
    )
    for window_ms, events in ((0, 3), (100, 2), (300, 1)):
        rows = table_of(trace_of(trial), window_ms).to_pylist()
        assert [row["events"] for row in rows if (row["cause"], row["what"]) == ("burst", "loss")] == [events]


def test_bursts_of_two_causes_are_events_of_their_own_each_within_its_window() -> None:
    """Two crashes of each cause, 50 and 200 ms apart; the windows are 100 and 300 ms."""
    causes = ("burst", "burst 3 east")
    crashes = [crash(at_ms, broker, causes[broker % 2]) for broker, at_ms in enumerate((1_000, 1_010, 1_050, 1_210))]
    trial = (state(0, 0, 1, "0,1,2,3"), *crashes, TraceRow(1_400, "acknowledged_loss", 0, 1, value=1))
    model = Model({name: replace(PER_MS, name=name) for name in causes}, 4, {causes[0]: 100, causes[1]: 300})
    rows = harms({CELL: model}, trace_of((*trial, TraceRow(2_000, "end")))).to_pylist()
    assert {row["cause"]: row["events"] for row in rows if row["what"] == "loss"} == dict.fromkeys(causes, 1)


def test_impairments_begin_cycles_and_are_events_of_their_cause() -> None:
    """Two brokers of a rack are cut off for 0.5 s: one event, one cycle."""
    named = {"detail": "isolated", "cause": "rack 1 switch"}
    trial = (
        state(0, 0, 1, "0,1,2"),
        *(TraceRow(1_000, "impaired", node=broker, **named) for broker in (1, 2)),
        TraceRow(1_300, "acknowledged_loss", 0, 1, value=1),
        *(TraceRow(1_500, "restored", node=broker, **named) for broker in (1, 2)),
        TraceRow(2_000, "end"),
    )
    models = {CELL: Model({"rack switch": replace(PER_MS, name="rack switch")}, 3, {})}
    rows = harms(models, trace_of(trial)).to_pylist()
    assert [(row["what"], row["events"], row["expected"]) for row in rows] == [("loss", 1, 0.3), ("cycle", 1, 0.5)]


def test_trial_without_failures_has_no_rows() -> None:
    assert len(table_of(trace_of((state(0, 0, 1, "0,1,2"), TraceRow(9, "end"))))) == 0


def test_causes_are_those_with_a_constant_rate() -> None:
    """Three brokers that fail every 73 days on average: 15 times a year; two racks with an event every other year. A
    pause keeps a broker out of sync for its own time and the detection, and comes while any of 15 + 1 + 2 + 4 other
    events a year does so for longer."""
    bursts = [{"per_year": 2, "size": 2}, {"name": "deploys", "per_year": 4, "size": 2, "window": "10m"}]
    base = {"broker_mttf": "73d", "racks": 2, "rack_power_events_per_year": 0.5, "burst": bursts}
    model = model_of(study_of(base=base).cells[0].parameters)
    assert {name: cause.events_per_year for name, cause in model.causes.items()} == pytest.approx(
        {"broker": 15.0, "rack power": 1.0, "burst": 2.0, "burst deploys": 4.0}
    )
    assert model.windows_ms == {"burst": 120_000, "burst deploys": 600_000}
    pause = {"name": "gc", "per_year": 2, "duration": "876s"}
    detection, paused = 9 / 31_536_000, model_of(study_of(base=base | {"paused": pause}).cells[0].parameters).causes
    gc, own = paused["broker gc"], paused["broker"]
    assert (gc.events_per_year, gc.others_per_year) == pytest.approx((6.0, 22.0))
    assert (gc.absence_years, gc.others_years) == pytest.approx((876 / 31_536_000 + detection, own.absence_years))
    weibull = {"broker_mttf": {"dist": "weibull", "mean": "73d", "shape": 0.7}}
    assert not model_of(study_of(base=weibull).cells[0].parameters).causes
    assert (group_of("rack 12 power"), group_of("broker"), group_of("cluster power")) == (
        *("rack power", "broker", "cluster power"),
    )


def test_cells_of_splitting_are_not_reweighted() -> None:
    study = study_of(base={"broker_mttf": "73d"}, sweep={"estimator": ["plain", "splitting"]})
    none = table_of(trace_of(TRIAL)).set_column(0, "cell", pa.array([0] * 10, pa.int32()))
    plain, splitting = reweighting_of(study, none)
    assert splitting is None
    assert plain is not None
    assert set(plain.causes) == {"broker"}
    (loss,) = plain.harms["incidents"]["broker"].ratios(2.0)
    assert loss == pytest.approx(2.0 * math.exp(-(2.5 - 4.6 / 3)))
    assert np.array_equal(plain.harms["incidents"]["broker"].trial, [0])
    assert {each.weight for each in plain.harms["incidents"]["broker"].cycles.values()} == {None}
