"""Distributions of times: how long failovers, handovers, unclean recoveries and catch-ups take, a row per setting.

A row has bars on a log axis, of equal ratio and as high as the share of times in them, and below them the median and
the 99 % quantile with their limits, and the longest time. Each row has a scale of its own: rows are compared by where
their bars are. A distribution of a few distinct times, such as a session timeout, stays visible as such: the bars are
finer than a tenth of the axis, and at most twice as coarse as the buckets of `gold/distributions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from experiments.studies.estimation.estimates import FailoverTimes
from experiments.studies.estimation.times import KINDS, Times
from experiments.studies.report.charts.theme import SERIES, Chart, ChartRow, finished, labels
from experiments.studies.report.settings import Group
from experiments.studies.report.words import milliseconds
from experiments.support.declared import declared

ROW, NAME_Y, BARS_Y, BARS, MARKS_Y = 76, 10, 54, 32, 64
"""Pixels of a row, and where in it the name, the foot of the bars, their height and the quantiles are."""
BINS = 64
FINEST = 1.02
"""The ratio of two neighbouring bars at least: twice that of the buckets."""
TICKS_AT_MOST = 9
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_TICKS_MS = [
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * value for value in (1, 2, 5, 10, 20, 30)),
    *(_MINUTE * value for value in (1, 2, 5, 10, 20, 30)),
    *(_HOUR * value for value in (1, 2, 6, 12)),
    *(_DAY * value for value in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
]
_COARSE_MS = [1, 10, 100, _SECOND, 10 * _SECOND, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR]
_COARSE_MS += [_DAY, 10 * _DAY, 100 * _DAY, 1000 * _DAY]
_LABEL = (
    "datum.value < 1000 ? format(datum.value, '~r') + ' ms' : datum.value < 60000 ? format(datum.value/1000, '~r') + "
    "' s' : datum.value < 3600000 ? format(datum.value/60000, '~r') + ' min' : datum.value < 86400000 ? "
    "format(datum.value/3600000, '~r') + ' h' : format(datum.value/86400000, '~r') + ' d'"
)


@dataclass(frozen=True, slots=True)
class _Words:
    """What a chart says: its title, what its times are, and what one of them is called."""

    title: str
    meaning: str
    noun: str


WORDS = declared(dict[str, _Words], __file__, "times.yaml")
assert set(WORDS) == set(KINDS)


def times_charts(groups: Sequence[Group], times: Sequence[Mapping[str, Times]]) -> Iterator[Chart]:
    """One chart for each kind of times that a setting has any of. `times`: by the indexes of the settings."""
    settings = [setting for group in groups for setting in group.settings]
    for kind in KINDS:
        found = [(each.full_name, times[each.index][kind]) for each in settings if kind in times[each.index]]
        if found:
            yield _chart(kind, found)


def _chart(kind: str, found: Sequence[tuple[str, Times]]) -> Chart:
    words, domain = WORDS[kind], _domain(found)
    rows = [_row(position, name, times.quantiles, words.noun) for position, (name, times) in enumerate(found)]
    bars = [bar for position, (_, times) in enumerate(found) for bar in _bars(position, times, domain)]
    ticks = [tick for tick in _TICKS_MS if domain[0] <= tick <= domain[1]]
    if len(ticks) > TICKS_AT_MOST:
        ticks = [tick for tick in _COARSE_MS if domain[0] <= tick <= domain[1]]
    height = ROW * len(rows)
    x = alt.X(
        "left:Q",
        scale=alt.Scale(type="log", domain=list(domain), nice=False),
        axis=alt.Axis(title="time (log scale)", values=ticks, labelExpr=_LABEL, labelOverlap=True, labelFlush=True),
    )
    y = alt.Y("foot:Q", scale=alt.Scale(domain=[0, height], reverse=True, nice=False, zero=False), axis=None)
    names = alt.Chart(alt.InlineData(rows))
    layers = [
        alt.Chart(alt.InlineData(bars)).mark_rect(fill="var(--other)", opacity=0.75).encode(
            x=x, x2="right:Q", y=y, y2="top:Q", tooltip=[alt.Tooltip("words:N", title=words.noun)]
        ),
        *_marks(rows),
        *labels(names, names, alt.Y("name_y:Q", axis=None), "datum.short"),
    ]  # fmt: skip
    return finished(layers, height, rows, name=f"times-{kind}", title=words.title, note=words.meaning)


def _domain(found: Sequence[tuple[str, Times]]) -> tuple[float, float]:
    """From a tick not above the shortest time to one not below the longest."""
    every = [max(1.0, up_to) for _, times in found for up_to, _ in times.buckets]
    low = max((tick for tick in _TICKS_MS if tick < min(every)), default=_TICKS_MS[0])
    high = min((tick for tick in _TICKS_MS if tick > max(every)), default=2.0 * max(every))
    return float(low), float(high)


def _bars(position: int, times: Times, domain: tuple[float, float]) -> Iterator[ChartRow]:
    """The bars of a row, from left to right, without empty ones."""
    low, high = domain
    ratio = max(FINEST, (high / low) ** (1.0 / BINS))
    shares: dict[int, float] = {}
    before = 0.0
    for up_to, share in times.buckets:
        place = math.floor(math.log(max(1.0, up_to) / low, ratio) + 1e-9)
        shares[place] = shares.get(place, 0.0) + share - before
        before = share
    most, foot = max(shares.values()), ROW * position + BARS_Y
    for place, share in shares.items():
        left, right = low * ratio**place, min(high, low * ratio ** (place + 1))
        yield {
            "left": left,
            "right": right,
            "foot": foot,
            "top": foot - max(1.0, BARS * share / most),
            "words": f"{100.0 * share:.3g} % take {milliseconds(left)} to {milliseconds(right)}",
        }


def _row(position: int, name: str, times: FailoverTimes, noun: str) -> ChartRow:
    p50, p99, longest = (max(1.0, float(value or 0.0)) for value in (times.p50, times.p99, times.max))
    limits = {
        "p50_low": times.p50_ci_low,
        "p50_high": times.p50_ci_high if times.p50_ci_high is not None else longest,
        "p99_low": times.p99_ci_low,
        "p99_high": times.p99_ci_high if times.p99_ci_high is not None else longest,
    }
    return {
        "name": name,
        "p50": p50,
        "p99": p99,
        "max": longest,
        "short": f"{milliseconds(times.p50)} · {milliseconds(times.p99)}",
        "words": f"median {milliseconds(times.p50)}, 99 % within {milliseconds(times.p99)}, longest "
        f"{milliseconds(times.max)}, {times.outages:,} {noun}",
        "name_y": ROW * position + NAME_Y,
        "marks_y": ROW * position + MARKS_Y,
        **{name: None if value is None else max(1.0, float(value)) for name, value in limits.items()},
    }


def _marks(rows: Sequence[ChartRow]) -> list[alt.Chart]:
    """The quantiles of each row with their intervals, and the longest time."""
    base, y = alt.Chart(alt.InlineData(rows)), alt.Y("marks_y:Q", axis=None)
    tooltip = [alt.Tooltip("name:N", title="setting"), alt.Tooltip("words:N", title="times")]
    points = (("max", "stroke", "var(--muted)"), ("p50", "circle", SERIES[0]), ("p99", "diamond", SERIES[1]))
    return [
        base.mark_rule(strokeWidth=1.5, color="var(--muted)").encode(x=alt.X("p50:Q"), x2="max:Q", y=y),
        *(
            alt.Chart(alt.InlineData([row for row in rows if row[f"{name}_low"] is not None]))
            .mark_rule(strokeWidth=7, opacity=0.35, strokeCap="round", color=colour)
            .encode(x=alt.X(f"{name}_low:Q"), x2=f"{name}_high:Q", y=y)
            for name, _, colour in points[1:]
        ),
        *(
            base.mark_point(shape=shape, filled=True, size=90, opacity=1, color=colour).encode(
                x=alt.X(f"{name}:Q"), y=y, tooltip=tooltip
            )
            for name, shape, colour in points
        ),
    ]
