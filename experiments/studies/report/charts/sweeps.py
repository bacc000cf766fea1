"""Charts over swept parameters: heat maps over two of them, curves along one that is a number.

A heat map has the values of two parameters in the order of the file; if more are swept there is one map per
combination of the others. A curve has a logarithmic scale wherever the values span more than a factor of 30. The
failure rate is drawn as failures per broker and year, so that harsher is further right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import altair as alt

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import PARAMETERS, YEAR_MS
from experiments.studies.report.charts.forest import scaling_of
from experiments.studies.report.charts.theme import (
    PARTITIONS,
    Chart,
    ChartRow,
    axis,
    by_name,
    finished,
    floor_of,
    scalable,
    spans,
    written,
)
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import bound, capitalised, cell_name, in_words, number, shown
from experiments.studies.trace.metrics import Metric

HEIGHT = 320
MAPS_AT_MOST = 6
POINTS_AT_LEAST = 3
TILE = 52


def _all(groups: Sequence[Group]) -> list[Setting]:
    return sorted((setting for group in groups for setting in group.settings), key=lambda setting: setting.index)


def _swept(setting: Setting) -> dict[str, object]:
    return setting.decided | setting.assumed


def _values(settings: Sequence[Setting], name: str) -> list[str]:
    """The different values of a swept parameter as the file gives them, in the order of the file."""
    return list(dict.fromkeys(shown(_swept(setting)[name]) for setting in settings))


def heat_maps(metric: Metric, groups: Sequence[Group]) -> Iterator[Chart]:
    """The metric over the two swept parameters with the most values, for each combination of the others."""
    settings = _all(groups)
    counts = {name: len(_values(settings, name)) for name in _swept(settings[0])}
    names = sorted((name for name in counts if counts[name] > 1), key=lambda name: -counts[name])
    if len(names) < 2:
        return
    others: dict[str, list[Setting]] = {}
    for setting in settings:
        rest = {name: value for name, value in _swept(setting).items() if name in names[2:]}
        others.setdefault(cell_name(rest) if rest else "", []).append(setting)
    for index, (title, found) in enumerate(list(others.items())[:MAPS_AT_MOST]):
        if len(found) > 2:
            yield _heat_map(metric, found, (names[0], names[1]), title, index)


def _heat_map(metric: Metric, settings: Sequence[Setting], names: tuple[str, str], title: str, index: int) -> Chart:
    across, down = names
    factor, unit, scaled = scaling_of(metric, [setting.estimates.value(metric.name) for setting in settings])
    text = in_words(metric)
    rows: list[ChartRow] = []
    for setting in settings:
        value = setting.estimates.estimates[metric.name]
        rows.append({
            "across": shown(_swept(setting)[across]),
            "down": shown(_swept(setting)[down]),
            "name": setting.full_name,
            "value": (value.ci_high if value.is_bound else value.estimate) * factor,
            "seen": not value.is_bound,
            "words": bound(value, text) if value.is_bound else text(value.estimate),
        })  # fmt: skip
    shades = sorted(row["value"] for row in rows)
    lowest, highest = shades[0], max(shades[-1], shades[0] * 10.0)
    for row in rows:
        row["shade"] = _shade(row["value"], lowest, highest) if row["seen"] else 0.0
    base = alt.Chart(alt.InlineData(rows)).encode(
        x=alt.X("across:N", sort=_values(settings, across), axis=_tile_axis(across, "bottom")),
        y=alt.Y("down:N", sort=_values(settings, down), axis=_tile_axis(down, "left")),
    )
    label = f"(datum.seen ? '' : '< ') + {written(f'(datum.value * {PARTITIONS})')}" if scaled else "datum.words"
    ink = alt.condition("datum.shade > 0.55", alt.value("var(--card)"), alt.value("var(--ink)"))
    layers = [
        base.mark_rect(fill="var(--heat)", stroke="var(--card)", strokeWidth=3, cornerRadius=4).encode(
            fillOpacity=alt.FillOpacity("shade:Q", scale=alt.Scale(domain=[0, 1], range=[0.06, 1]), legend=None),
            tooltip=[alt.Tooltip("name:N", title="setting"), alt.Tooltip("words:N", title=f"{metric.title}, {unit}")],
        ),
        base.transform_calculate(text=label).mark_text(fontSize=13).encode(text="text:N", fill=ink),
    ]
    height = TILE * len({row["down"] for row in rows})
    return finished(layers, height, rows, name=f"map-{index}", title=title, scaled=scaled)


def _shade(value: float, lowest: float, highest: float) -> float:
    """Where a value is between the lowest and the highest, by ratios: 0.15 to 1."""
    if lowest <= 0.0 or value <= 0.0:
        return value / highest if highest > 0.0 else 0.0
    position = math.log10(value / lowest) / math.log10(highest / lowest)
    return 0.15 + 0.85 * min(1.0, max(0.0, position))


def _tile_axis(name: str, orient: Literal["bottom", "left"]) -> alt.Axis:
    title = name.replace("_", " ")
    return alt.Axis(title=title, orient=orient, labelAngle=0, domain=False, ticks=False, labelLimit=150, grid=False)


def curves(metric: Metric, groups: Sequence[Group]) -> Iterator[Chart]:
    """The metric along each swept parameter that is a number and has enough values."""
    settings = _all(groups)
    for name in _swept(settings[0]):
        points = [(found, setting) for setting in settings if (found := _number(name, setting)) is not None]
        if len({found for found, _ in points}) >= POINTS_AT_LEAST:
            yield _curve(metric, name, points)


def _number(name: str, setting: Setting) -> float | None:
    """The value of a parameter on an axis; None if it is no number, such as `never`."""
    value = getattr(setting.parameters, PARAMETERS[name].field)
    if isinstance(value, Distribution):
        return YEAR_MS / value.mean_ms if name == "broker_mttf" else value.mean_ms / 1000.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value / 1000.0 if PARAMETERS[name].field.endswith("_ms") else float(value)


def _axis_title(name: str) -> str:
    if name == "broker_mttf":
        return "failures per broker and year"
    item = PARAMETERS[name]
    unit = "s" if item.field.endswith(("_ms", "_mttr")) else item.unit
    return item.name.replace("_", " ") + (f", {unit}" if unit else "")


def _curve(metric: Metric, name: str, points: Sequence[tuple[float, Setting]]) -> Chart:
    factor, unit, scaled = scaling_of(metric, [setting.estimates.value(metric.name) for _, setting in points])
    rows: list[ChartRow] = []
    for x_value, setting in points:
        value = setting.estimates.estimates[metric.name]
        rest = {key: part for key, part in _swept(setting).items() if key != name}
        rows.append({
            "x": x_value,
            "line": cell_name(rest) if rest else metric.title,
            "estimate": value.estimate * factor,
            "low": value.ci_low * factor,
            "high": value.ci_high * factor,
            "seen": not value.is_bound,
        })  # fmt: skip
    lines = list(dict.fromkeys(row["line"] for row in rows))
    log_y = scaled or spans(row["estimate"] for row in rows)
    floor = floor_of([row["estimate"] for row in rows], [row["high"] for row in rows]) if log_y else 0.0
    for row in rows:
        row["low"] = max(row["low"], floor)
    base = scalable(rows, ("estimate", "low", "high"), scaled=scaled)
    title = f"{metric.title}, {unit}"
    x = axis(alt.X, "x:Q", _axis_title(name), alt.Scale(zero=False), 6, logs=spans(row["x"] for row in rows))
    y = axis(alt.Y, "low:Q", title, alt.Scale(type="linear"), logs=log_y)
    colours, shapes = by_name(lines)
    colour, fill = alt.Color("line:N", scale=colours, title=None), alt.Fill("line:N", scale=colours, legend=None)
    shape = alt.Shape("line:N", scale=shapes, title=None)
    seen = base.transform_filter("datum.seen")
    layers = [
        base.mark_area(opacity=0.14).encode(x=x, y=y, y2="high:Q", fill=fill),
        base.mark_rule(opacity=0.5, strokeWidth=2).encode(x="x:Q", y="low:Q", y2="high:Q", color=colour),
        seen.mark_line(strokeWidth=2).encode(x="x:Q", y="estimate:Q", color=colour),
        seen.mark_point(size=80, filled=True, opacity=1).encode(
            x="x:Q", y="estimate:Q", color=colour, shape=shape,
            tooltip=[alt.Tooltip("line:N", title="setting"), alt.Tooltip("x:Q", title=_axis_title(name), format=".3~g"),
                     alt.Tooltip("estimate:Q", title=title, format=".3~g")],
        ),
    ]  # fmt: skip
    return finished(
        layers,
        HEIGHT,
        name=f"curve-{name}",
        title=f"{capitalised(metric.title)} against {_axis_title(name)}",
        label=" ".join(f"{row['line']} at {number(row['x'])}: {number(row['estimate'])}." for row in rows),
        scaled=scaled,
    )
