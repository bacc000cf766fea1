"""How long partitions are without a leader that answers: median, 99 % quantile and longest, by setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from experiments.studies.report.charts.forest import MARK_DY, NAME_DY
from experiments.studies.report.charts.theme import ROW, SERIES, Chart, finished
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import milliseconds

_TICKS_MS = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000, 8_640_000_000]
_LABEL = (
    "datum.value < 1000 ? format(datum.value, '~r') + ' ms' : datum.value < 60000 ? format(datum.value/1000, '~r') + "
    "' s' : datum.value < 3600000 ? format(datum.value/60000, '~r') + ' min' : datum.value < 86400000 ? "
    "format(datum.value/3600000, '~r') + ' h' : format(datum.value/86400000, '~r') + ' d'"
)


def failover_chart(groups: Sequence[Group]) -> Chart | None:
    """The quantiles of the failover times of every setting that had outages which ended; None if none had."""
    found = [_row(setting) for group in groups for setting in group.settings if setting.estimates.failover_ms.p50]
    if not found:
        return None
    rows = [row | {"row": index} for index, row in enumerate(found)]
    base = alt.Chart(alt.InlineData(rows))
    y = alt.Y("row:O", axis=None)
    x = alt.X(
        "p50:Q",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(title="time (log scale)", values=_TICKS_MS, labelExpr=_LABEL, labelOverlap=True),
    )

    tooltip = [alt.Tooltip("name:N", title="setting"), alt.Tooltip("words:N", title="failover")]

    layers = [
        base.mark_rule(strokeWidth=1.5, color="var(--muted)", yOffset=MARK_DY).encode(x=x, x2="max:Q", y=y),
        _limits(rows, "p50", SERIES[0]),
        _limits(rows, "p99", SERIES[1]),
        *(
            base.mark_point(shape=shape, filled=True, size=90, opacity=1, color=colour, yOffset=MARK_DY).encode(
                x=alt.X(f"{name}:Q"), y=y, tooltip=tooltip
            )
            for name, shape, colour in (
                ("max", "stroke", "var(--muted)"),
                ("p50", "circle", SERIES[0]),
                ("p99", "diamond", SERIES[1]),
            )
        ),
        base.mark_text(align="left", baseline="middle", yOffset=NAME_DY, fontWeight=600).encode(
            x=alt.value(0), y=y, text="name:N"
        ),
        base.mark_text(align="right", baseline="middle", yOffset=NAME_DY).encode(
            x=alt.value("width"), y=y, text="short:N"
        ),
    ]
    return finished(
        layers,
        ROW * len(rows),
        name="failover",
        title="How long a failover takes",
        note="Over the outages that ended within their trial: the median (circle), the 99 % quantile (diamond) and the "
        "longest; the bars are 95 % intervals, which end at the longest outage where there is no upper limit.",
        label=" ".join(f"{row['name']}: {row['words']}." for row in rows),
    )


def _limits(rows: Sequence[dict[str, Any]], name: str, colour: str) -> alt.Chart:
    """The intervals of one quantile, for the rows that have them."""
    limited = [row for row in rows if row[f"{name}_low"] is not None]
    mark = alt.Chart(alt.InlineData(limited)).mark_rule(
        strokeWidth=7, opacity=0.35, strokeCap="round", color=colour, yOffset=MARK_DY
    )
    found: alt.Chart = mark.encode(x=alt.X(f"{name}_low:Q"), x2=f"{name}_high:Q", y=alt.Y("row:O", axis=None))
    return found


def _row(setting: Setting) -> dict[str, Any]:
    times = setting.estimates.failover_ms
    p50, p99, longest = (max(1.0, float(value or 0.0)) for value in (times.p50, times.p99, times.max))
    limited = {
        "p50_low": times.p50_ci_low,
        "p50_high": times.p50_ci_high if times.p50_ci_high is not None else longest,
        "p99_low": times.p99_ci_low,
        "p99_high": times.p99_ci_high if times.p99_ci_high is not None else longest,
    }
    short = f"{milliseconds(times.p50)} · {milliseconds(times.p99)}"
    return {
        "name": setting.full_name,
        "p50": p50,
        "p99": p99,
        "max": longest,
        "short": short,
        "words": f"median {milliseconds(times.p50)}, 99 % within {milliseconds(times.p99)}, longest "
        f"{milliseconds(times.max)}, {times.outages:,} outages",
        **{name: None if value is None else max(1.0, float(value)) for name, value in limited.items()},
    }
