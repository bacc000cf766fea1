"""Time compression: a trial in which failures come faster than the study says, by a factor F.

The times of the timeline and the length of the trial are divided by F; timeouts of the protocol and the network are
not. The trace's times are multiplied by F afterwards, so that rates and fractions refer to the study's time. So a trial
with F is one without compression in which the timeouts last F times as long. Measured values are in
real time.
"""

from __future__ import annotations

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.timeline import Event, Timeline
from experiments.studies.trace.kinds import End, Stamped


def compressed(params: CellParameters) -> CellParameters:
    """The parameters of the trial that runs: its length, and the down time that its warm-up follows from, are divided
    by the factor. Its failures are those of a timeline, so the parameters have no shared causes."""
    factor = params.time_compression
    return params.model_copy(
        update={
            "duration_ms": _divided(params.duration_ms, factor),
            "broker_mttr": Distribution(dist="constant", mean_ms=_divided(params.longest_repair_ms, factor)),
            "power_events_per_year": 0.0,
            "rack_power_events_per_year": 0.0,
            "burst": None,
        }
    )


def _divided(time_ms: int, factor: float) -> int:
    return max(1, round(time_ms / factor))


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


def stretched(rows: list[Stamped], params: CellParameters) -> list[Stamped]:
    """The rows of a trial of `compressed(params)` in the study's time."""

    def time_ms(row: Stamped) -> int:
        return min(params.duration_ms, round(row.time_ms * params.time_compression))

    *before, last = rows
    assert isinstance(last.what, End)
    return [*(row._replace(time_ms=time_ms(row)) for row in before), last._replace(time_ms=params.duration_ms)]
