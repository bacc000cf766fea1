"""Time compression: a trial in which failures come faster than the study says, by a factor F.

The times of the timeline and the length of the trial are divided by F; timeouts of the protocol and the network are
not. The trace's times are multiplied by F afterwards, so that rates and fractions refer to the study's time. So a trial
with F is one without compression in which the timeouts last F times as long. Measured values are in real time.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.timeline import Event, Timeline
from experiments.studies.trace.kinds import End, TrialResult


def compressed(params: CellParameters) -> CellParameters:
    """The parameters of the trial that runs: its length, and the down time that its warm-up follows from, are divided
    by the factor. Its failures are those of a timeline, so the parameters have no shared causes."""
    duration_ms, repair_ms = (
        max(1, round(time_ms / params.time_compression)) for time_ms in (params.duration_ms, params.longest_repair_ms)
    )
    return params.model_copy(
        update={
            "duration_ms": duration_ms,
            "broker_mttr": Distribution(dist="constant", mean_ms=repair_ms),
            "power_events_per_year": 0.0,
            "rack_power_events_per_year": 0.0,
            "burst": None,
        }
    )


class CompressedTimeline:
    """`timeline` with its times divided by `factor`."""

    def __init__(self, timeline: Timeline, factor: float) -> None:
        self._timeline = timeline
        self._factor = factor

    def next_event(self) -> Event | None:
        event = self._timeline.next_event()
        return None if event is None else event._replace(time_ms=round(event.time_ms / self._factor))

    def log_weight(self, at_ms: int) -> float:
        return self._timeline.log_weight(round(at_ms * self._factor))

    def regenerate(self, at_ms: int) -> bool:
        return self._timeline.regenerate(round(at_ms * self._factor))


def stretched(found: TrialResult, params: CellParameters) -> TrialResult:
    """The result of a trial of `compressed(params)` in the study's time."""
    *before, last = found.rows
    assert isinstance(last.what, End)
    times_ms = (min(params.duration_ms, round(row.time_ms * params.time_compression)) for row in before)
    rows = [row._replace(time_ms=time_ms) for row, time_ms in zip(before, times_ms, strict=True)]
    return replace(found, rows=[*rows, last._replace(time_ms=params.duration_ms)])
