"""Numbers with intervals, a row each: the rates of the settings, and the differences between them.

The name of a row stands above it, so that a narrow window has room for the intervals. Where nothing was seen there is
no point, and the interval begins at the edge of the log axis, with an arrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from experiments.studies.estimation.pairs import Difference
from experiments.studies.report.charts.theme import (
    ROW,
    SERIES,
    Chart,
    ChartRow,
    axis,
    finished,
    floor_of,
    labels,
    scalable,
    spans,
    written,
)
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import (
    bound,
    capitalised,
    in_words,
    number,
    rounded,
    signed_number,
    time_unit,
    times,
)
from experiments.studies.trace.metrics import FRACTION, RATE, Metric

NAME_DY, MARK_DY = -9, 9
_TICK = f"(datum.value < 0 ? '−' : '') + {written('abs(datum.value)')}"


def scaling_of(metric: Metric, values: Sequence[float]) -> tuple[float, str, bool]:
    """From an estimate to the axis: the factor, the unit, and whether the number of partitions scales it. A share of
    time is in the unit that the text has for the largest of the `values`."""
    if metric.estimator is FRACTION:
        unit, size = time_unit(values)
        return 1.0 / size, f"{unit} a year", False
    return 1.0, "a year", metric.estimator is RATE


def estimates_chart(metric: Metric, groups: Sequence[Group]) -> Chart:
    """The metric of every setting, with its interval."""
    settings = [setting for group in groups for setting in group.settings]
    estimates = [setting.estimates.estimates[metric.name] for setting in settings]
    factor, unit, scaled = scaling_of(metric, [each.estimate or each.ci_high for each in estimates])
    rows = [_row(metric, setting, factor) for setting in settings]
    floor = floor_of([row["estimate"] for row in rows], [row["high"] for row in rows])
    logs = scaled or spans(row["estimate"] for row in rows)
    for index, row in enumerate(rows):
        row |= {"row": index, "low": max(row["low"], floor) if logs else row["low"]}
    base = scalable(rows, ("estimate", "low", "high"), scaled=scaled)
    x = axis(alt.X, "low:Q", f"{metric.title}, {unit}", alt.Scale(zero=True), logs=logs, nice=True)
    y = alt.Y("row:O", axis=None)
    colour = alt.Color(
        "best:N", scale=alt.Scale(domain=[True, False], range=["var(--best)", "var(--other)"]), legend=None
    )
    text = f"datum.seen ? {written('datum.estimate')} : 'none seen, at most ' + {written('datum.high')}"
    text = text if scaled else "datum.short"
    marks = {
        True: base.mark_point(filled=True, size=90, opacity=1, yOffset=MARK_DY).encode(x=alt.X("estimate:Q")),
        False: base.mark_point(shape="triangle-left", filled=True, size=70, opacity=1, yOffset=MARK_DY).encode(
            x=alt.X("low:Q")
        ),
    }
    layers = [
        base.mark_rule(strokeWidth=6, strokeCap="round", opacity=0.35, yOffset=MARK_DY).encode(
            x=x, x2="high:Q", y=y, color=colour
        ),
        *(
            marks[seen].transform_filter(alt.datum.seen == seen).encode(y=y, color=colour, tooltip=_tooltip())
            for seen in sorted({bool(row["seen"]) for row in rows})
        ),
        *_names(base, y, text),
    ]
    return finished(
        layers,
        ROW * len(rows),
        rows,
        name=metric.name,
        title=capitalised(metric.noun),
        note=f"{capitalised(metric.meaning)}: the point is the estimate, the bar its 95 % interval.",
        scaled=scaled,
    )


def _row(metric: Metric, setting: Setting, factor: float) -> ChartRow:
    value, text = setting.estimates.estimates[metric.name], in_words(metric)
    if metric.estimator is FRACTION:
        shown, limits = times(value.estimate, value.ci_low, value.ci_high)
    else:
        shown, limits = number(value.estimate), f"{number(value.ci_low)} to {number(value.ci_high)}"
    return {
        "name": setting.full_name,
        "estimate": value.estimate * factor,
        "low": value.ci_low * factor,
        "high": value.ci_high * factor,
        "seen": not value.is_bound,
        "best": setting.estimates.recommended,
        "words": bound(value, text) if value.is_bound else f"{shown}, interval {limits}",
        "short": bound(value, text) if value.is_bound else shown,
    }


def _names(base: alt.Chart, y: alt.Y, text: str) -> list[alt.Chart]:
    return labels(base, base.transform_calculate(whole=text), y, "datum.whole", NAME_DY)


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("name:N", title="setting"),
        *(alt.Tooltip(f"{name}:Q", title=title, format=".3~g") for name, title in
          (("estimate", "estimate"), ("low", "from"), ("high", "to"))),
    ]  # fmt: skip


def differences_chart(metric: Metric, group: Group, number_of_group: int) -> Chart | None:
    """The metric of every setting minus that of the reference of the group, with its interval; None without others."""
    compared = [setting.against_reference(metric.name) for setting in group.others]
    found = [rounded(each.difference) for each in compared]
    factor, unit, scaled = scaling_of(metric, [limit for each in found for limit in (each.ci_low, each.ci_high)])
    rows = [
        _difference_row(
            setting.name, difference, factor, is_time=metric.estimator is FRACTION, is_known=not each.degenerate
        )
        for setting, difference, each in zip(group.others, found, compared, strict=True)
    ]
    if not rows:
        return None
    where = f" · {group.name}" if group.name else ""
    for index, row in enumerate(rows):
        row["row"] = index
    base = scalable(rows, ("estimate", "low", "high"), scaled=scaled)
    y = alt.Y("row:O", axis=None)
    colour = alt.Color(
        "shown:N",
        scale=alt.Scale(domain=["more", "less", "neither"], range=[SERIES[1], SERIES[0], "var(--muted)"]),
        legend=None,
    )
    x = alt.X("low:Q", axis=alt.Axis(title=f"difference, {unit}", tickCount=4, labelExpr=_TICK, labelOverlap=True))
    text = (
        "datum.short"
        if not scaled
        else f"(datum.estimate < 0 ? '−' : datum.estimate > 0 ? '+' : '±') + {written('abs(datum.estimate)')}"
    )
    layers = [
        base.mark_rule(color="var(--ink)", strokeWidth=1, strokeDash=[3, 3], yOffset=2, y2Offset=-2).encode(
            x=alt.datum(0), y=alt.Y("row:O", axis=None, bandPosition=0.45), y2=alt.Y2("row:O", bandPosition=0.95)
        ),
        base.mark_rule(strokeWidth=6, strokeCap="round", opacity=0.4, yOffset=MARK_DY).encode(
            x=x, x2="high:Q", y=y, color=colour
        ),
        base.mark_point(filled=True, size=80, opacity=1, yOffset=MARK_DY).encode(
            x=alt.X("estimate:Q"), y=y, color=colour, tooltip=_tooltip()
        ),
        *_names(base, y, text),
    ]
    return finished(
        layers,
        ROW * len(rows),
        rows,
        name=f"difference-{metric.name}-{number_of_group}",
        title=f"{capitalised(metric.title)}{where}",
        scaled=scaled,
    )


def _difference_row(name: str, found: Difference, factor: float, *, is_time: bool, is_known: bool) -> ChartRow:
    value, limits = signed_number(found.estimate), f"{signed_number(found.ci_low)} to {signed_number(found.ci_high)}"
    if is_time:
        value, limits = times(found.estimate, found.ci_low, found.ci_high, signed=True)
    shown = "more" if found.ci_low > 0.0 else "less" if found.ci_high < 0.0 else "neither"
    if not is_known:
        name, shown = f"{name} (weights degenerate)", "neither"
    return {
        "name": name,
        "estimate": found.estimate * factor,
        "low": found.ci_low * factor,
        "high": found.ci_high * factor,
        "shown": shown,
        "short": value,
        "words": f"{value}, interval {limits}" if limits else value,
    }
