"""Time compression: failures come faster, by the factor and in no other way; the trace is in the study's time."""

from __future__ import annotations

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.trace.kinds import Crash, End, Failover, Start, TrialResult
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.trial import CompressedTimeline, compressed, run_trial, stretched
from tests.trace_rows import as_rows, check_trace, typed

PARAMETERS = CellParameters(
    start="fresh",
    broker_mttf=Distribution(mean_ms=40_000),
    broker_mttr=Distribution(mean_ms=20_000),
    detection_ms=2_000,
    duration_ms=300_000,
    time_compression=3.0,
)


def test_a_compressed_timeline_has_the_same_failures_earlier() -> None:
    plain, fast = DrawnTimeline(PARAMETERS, 1), CompressedTimeline(DrawnTimeline(PARAMETERS, 1), 3.0)
    for _ in range(20):
        event = plain.next_event()
        assert event is not None
        assert fast.next_event() == event._replace(time_ms=round(event.time_ms / 3))


def test_rows_are_stretched_and_measured_values_are_not() -> None:
    assert compressed(PARAMETERS).duration_ms == 100_000
    rows = [TraceRow(10, Failover.KIND, 0, 1, value=7), TraceRow(100_000, Crash.KIND), TraceRow(100_000, End.KIND)]
    found = as_rows(stretched(TrialResult(typed(rows), "", 0), PARAMETERS).rows)
    assert [(row.time_ms, row.value) for row in found] == [(30, 7), (300_000, 0), (300_000, 0)]


def test_a_simulated_trial_with_compression_has_the_failures_of_its_timeline() -> None:
    def happened(parameters: CellParameters) -> list[TraceRow]:
        rows = as_rows(run_trial(parameters, 1).rows)
        check_trace(rows, 1, parameters.duration_ms)
        return [row for row in rows if row.kind in (Crash.KIND, Start.KIND)]

    fast, plain = happened(PARAMETERS), happened(PARAMETERS.model_copy(update={"time_compression": 1.0}))
    assert [(row.kind, row.node) for row in fast] == [(row.kind, row.node) for row in plain]
    assert all(abs(one.time_ms - other.time_ms) <= 3 for one, other in zip(fast, plain, strict=True))
