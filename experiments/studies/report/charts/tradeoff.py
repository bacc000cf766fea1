"""Durability against availability: one point per setting, with both intervals, and the frontier.

A setting is on the frontier if no other one under the same assumptions has fewer losses without being less available.
That is a statement about estimates: the intervals show how sure it is. A setting whose weights degenerate has no
estimate of its losses, and is drawn at its upper limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from experiments.studies.estimation.pairs import ROUNDING
from experiments.studies.report.charts.theme import (
    Chart,
    ChartRow,
    axis,
    by_name,
    finished,
    floor_of,
    log_axis,
    scalable,
    spans,
    written,
)
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import bound, minutes, number, time_unit
from experiments.studies.trace.metrics import ACKNOWLEDGED_LOSS_RATE, UNWRITABLE

HEIGHT = 320
LOSSES = ACKNOWLEDGED_LOSS_RATE


def frontier(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """The settings that no other one beats: with fewer losses, and no longer without writes. Equal losses are a tie,
    whatever the availability: they may be equal because nothing in the study separates the settings."""
    points = {setting.index: _point(setting) for setting in settings}

    def is_beaten(losses: float, unwritable: float) -> bool:
        return any(other < losses * (1.0 - ROUNDING) and time <= unwritable for other, time in points.values())

    return tuple(setting for setting in settings if not is_beaten(*points[setting.index]))


def _point(setting: Setting) -> tuple[float, float]:
    losses = setting.estimates.estimates[LOSSES]
    return losses.ci_high if losses.degenerate else losses.estimate, setting.estimates.value(UNWRITABLE)


def tradeoff_chart(group: Group, number_of_group: int) -> Chart | None:
    """Loss events against the time that is not writable, for the settings of one group; None for a single setting."""
    if len(group.settings) < 2:
        return None
    best = frontier(group.settings)
    unit, size = time_unit([setting.estimates.value(UNWRITABLE) for setting in group.settings])
    rows = [_row(setting, setting in best, size) for setting in group.settings]
    floor = floor_of([row["y"] for row in rows], [row["y_high"] for row in rows])
    log_x = spans([row["x"] for row in rows])
    x_floor = floor_of([row["x"] for row in rows], [row["x_high"] for row in rows]) if log_x else 0.0
    for row in rows:
        least = {"y": floor, "y_low": floor, "x": x_floor, "x_low": x_floor}
        row |= {name: max(row[name], value) for name, value in least.items()}
    base = scalable(rows, ("y", "y_low", "y_high"), scaled=True)
    names = [row["name"] for row in rows]
    colours, shapes = by_name(names)
    colour, shape = alt.Color("name:N", scale=colours, title=None), alt.Shape("name:N", scale=shapes, title=None)
    x = axis(alt.X, "x:Q", f"not writable, {unit} a year", alt.Scale(zero=True), logs=log_x)
    y = alt.Y("y:Q", scale=alt.Scale(type="log"), axis=log_axis("loss events a year (log scale)"))
    layers = [
        base.transform_filter("datum.frontier").mark_line(
            color="var(--best)", strokeDash=[5, 4], strokeWidth=1.5, interpolate="step-after"
        ).encode(x=x, y=y, order="x:Q"),
        base.mark_rule(strokeWidth=2, opacity=0.45).encode(x=alt.X("x_low:Q"), x2="x_high:Q", y="y:Q", color=colour),
        base.mark_rule(strokeWidth=2, opacity=0.45).encode(x="x:Q", y=alt.Y("y_low:Q"), y2="y_high:Q", color=colour),
        base.mark_point(size=150, opacity=1, strokeWidth=2, filled=True).encode(
            x="x:Q", y="y:Q", color=colour, shape=shape,
            tooltip=[
                alt.Tooltip("name:N", title="setting"),
                alt.Tooltip("losses:N", title="loss events a year"),
                alt.Tooltip("unwritable:N", title="not writable"),
            ],
        ),
    ]  # fmt: skip
    layers[3] = layers[3].transform_calculate(
        losses=f"datum.seen ? {written('datum.y')} : datum.bound + ', at most ' + {written('datum.y_high')}"
    )
    note = f"On the frontier: {', '.join(setting.name for setting in best)}."
    return finished(layers, HEIGHT, rows, name=f"tradeoff-{number_of_group}", title=group.name, note=note, scaled=True)


def _row(setting: Setting, on_frontier: bool, unit: float) -> ChartRow:
    losses, unwritable = (setting.estimates.estimates[metric] for metric in (LOSSES, UNWRITABLE))
    shown = bound(losses, number) if losses.degenerate else number(losses.estimate)
    return {
        "name": setting.name,
        "y": _point(setting)[0],
        "y_low": losses.ci_low,
        "y_high": losses.ci_high,
        "seen": not losses.is_bound,
        "bound": "weights degenerate" if losses.degenerate else "none seen",
        "x": unwritable.estimate / unit,
        "x_low": unwritable.ci_low / unit,
        "x_high": unwritable.ci_high / unit,
        "unwritable": f"{minutes(unwritable.estimate)} a year",
        "frontier": on_frontier,
        "words": f"{shown} loss events a year, not writable {minutes(unwritable.estimate)} a year",
    }
