"""The result of a benchmark, a JSON document and a table of the same figures, and the statistics that benches share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import linear_regression, median
from time import perf_counter
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BenchReport:
    """`document` is JSON; `rows` are the cells under `columns` as text; `notes` are lines below the table."""

    title: str
    document: Mapping[str, object]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def measure_ms(work: Callable[[], Result], clock: Callable[[], float] = perf_counter) -> tuple[float, Result]:
    """(milliseconds by the clock, result) of the work, after a collection of earlier garbage."""
    gc.collect()
    started = clock()
    result = work()
    return (clock() - started) * 1_000, result


def median_ms(times_ms: Sequence[float]) -> float:
    """The median, rounded to microseconds."""
    return round(median(times_ms), 3)


def medians_ms(runs: Sequence[Sequence[float]]) -> list[float]:
    """The median of each measurement over the runs, which have the same measurements in the same order."""
    return [median_ms(times_ms) for times_ms in zip(*runs, strict=True)]


def median_run(runs: Sequence[Result], figure: Callable[[Result], float]) -> Result:
    """The run with the median figure, the lower of two middle ones."""
    return sorted(runs, key=figure)[(len(runs) - 1) // 2]


def growth(sizes: Sequence[int], times_ms: Sequence[float]) -> float | None:
    """The exponent `k` of time = c * size ** k: the least-squares slope of log time over log size. 1 is linear, 2
    quadratic; None for fewer than two different sizes.
    """
    if len(set(sizes)) < 2:
        return None
    slope = linear_regression([log(size) for size in sizes], [log(time) for time in times_ms]).slope
    return round(slope, 3)
