"""What all charts have in common: colours, fonts, how numbers are written, scales; and their two forms on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, TypeVar

import altair as alt
import vl_convert

from experiments.studies.report.words import TIMES_TEN
from experiments.support.declared import declared

ChartRow = dict[str, Any]
"""A row of a chart's data, or an object of its specification: names and values of JSON."""

_CONFIG = declared(ChartRow, __file__, "theme.yaml")
PARTITIONS = "partitions"
SERIES = tuple(f"var(--series-{index})" for index in range(1, 7))
"""Six colours that readers with any colour vision tell apart (Okabe and Ito, 2008), as the page's variables."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
ROW = 46
_DIGITS = "['⁰','¹','²','³','⁴','⁵','⁶','⁷','⁸','⁹']"

Channel = TypeVar("Channel", alt.X, alt.Y)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its place on the page. `name`: unique in the page; `title`, `note`: above it; `label`: its content
    in words for those who cannot see it; `scaled`: whether its rates follow the number of partitions."""

    name: str
    title: str
    note: str
    label: str
    spec: ChartRow
    svg: str
    scaled: bool


def finished(
    layers: Sequence[alt.Chart],
    height: int,
    rows: Iterable[ChartRow] = (),
    *,
    name: str,
    title: str,
    note: str = "",
    label: str = "",
    scaled: bool = False,
) -> Chart:
    """One chart of that `height` in pixels, in both forms. `name`: also in the identifiers of the drawing, so that
    they are unique in the page; `label`: in words, by default those of the `rows`."""
    label = label or " ".join(f"{row['name']}: {row['words']}." for row in rows)
    chart = alt.LayerChart(layer=list(layers)).properties(height=height)
    if scaled:
        chart = chart.add_params(alt.param(name=PARTITIONS, value=1))
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    spec = chart.properties(width="container", autosize=fit).configure(**_CONFIG).to_dict()
    spec.pop("$schema", None)
    svg = vl_convert.vegalite_to_svg(spec | {"width": 760})
    for reference in ('id="', 'href="#', "url(#"):
        svg = svg.replace(reference, f"{reference}{name}-")
    svg = re.sub('width="[^"]*" height="[^"]*" ', "", svg, count=1)
    return Chart(name, title, note, label, spec, svg, scaled)


def scalable(rows: Sequence[ChartRow], names: Sequence[str], *, scaled: bool) -> alt.Chart:
    """The rows as data, in which the fields of these names are multiplied by the number of partitions if `scaled`; Vega
    evaluates the products whenever the number changes."""
    one = [row | {f"one_{name}": row[name] for name in names} for row in rows]
    times = f" * {PARTITIONS}" if scaled else ""
    return alt.Chart(alt.InlineData(one)).transform_calculate(**{name: f"datum.one_{name}{times}" for name in names})


def _superscript(exponent: str) -> str:
    """A Vega expression: a positive exponent below 100, as superscript."""
    return f"(({exponent} >= 10 ? {_DIGITS}[floor({exponent}/10)] : '') + {_DIGITS}[{exponent}%10])"


def written(value: str) -> str:
    """A Vega expression: the number that the expression `value` gives, as `words.number` writes it."""
    exponent = f"(-floor(log({value})/LN10 + 1e-9))"
    power = f"format({value}*pow(10,{exponent}),'.3~r') + '{TIMES_TEN}⁻' + {_superscript(exponent)}"
    plain = f"{value} >= 1000 ? format({value},',.0f') : format({value},'.3~r')"
    return f"({value} === 0 ? '0' : {value} < 1e-4 ? {power} : {plain})"


_EXPONENT = "round(log(datum.value)/LN10)"
_IS_POWER = f"abs(log(datum.value)/LN10 - {_EXPONENT}) < 1e-6"
_POWER = f"'10' + (datum.value < 1 ? '⁻' : '') + {_superscript(f'abs({_EXPONENT})')}"


def log_axis(title: str | None) -> alt.Axis:
    """The axis of a log scale: lines and labels at powers of ten."""
    label = f"{_IS_POWER} ? (datum.value < 1e-4 || datum.value > 1e5 ? {_POWER} : format(datum.value, ',~r')) : ''"
    at_powers = alt.condition(_IS_POWER, alt.value(1), alt.value(0))
    return alt.Axis(title=title, labelExpr=label, labelOverlap=True, gridOpacity=at_powers, tickOpacity=at_powers)


def axis(
    channel: type[Channel], name: str, title: str, linear: alt.Scale, ticks: int = 5, *, logs: bool, nice: bool = False
) -> Channel:
    """The field of that name on a log scale if `logs`, otherwise on the scale `linear` with about so many `ticks`."""
    if not logs:
        return channel(name, scale=linear, axis=alt.Axis(title=title, tickCount=ticks))
    return channel(name, scale=alt.Scale(type="log", nice=nice or alt.Undefined), axis=log_axis(f"{title} (log scale)"))


def by_name(names: Sequence[str]) -> tuple[alt.Scale, alt.Scale]:
    """The scales that give each name a colour and a shape."""
    colours, shapes = (list(islice(cycle(each), len(names))) for each in (SERIES, SHAPES))
    return alt.Scale(domain=names, range=colours), alt.Scale(domain=names, range=shapes)


def labels(
    names: alt.Chart, values: alt.Chart, y: alt.Y, text: str, offset: int | alt.UndefinedType = alt.Undefined
) -> list[alt.Chart]:
    """The name of each row at the left; the Vega expression `text` at the right, if the chart has room for both."""
    fitting = f"7.6 * length(datum.name) + 7 * length({text}) < width ? {text} : ''"
    name = names.mark_text(align="left", baseline="middle", fontWeight=600, limit=alt.expr("width"), yOffset=offset)
    value = values.transform_calculate(text=fitting).mark_text(align="right", baseline="middle", yOffset=offset)
    return [name.encode(x=alt.value(0), y=y, text="name:N"), value.encode(x=alt.value("width"), y=y, text="text:N")]


def spans(values: Iterable[float]) -> bool:
    """Whether positive values differ so much, by a factor of 30, that they need a log axis."""
    found = [value for value in values if value > 0.0]
    return bool(found) and max(found) / min(found) >= 30.0


def floor_of(estimates: Sequence[float], limits: Sequence[float]) -> float:
    """Where a log axis begins: below all estimates, and the limits of those that are 0."""
    found = [value / 4.0 for value in estimates if value > 0.0] + [value / 10.0 for value in limits if value > 0.0]
    return 10.0 ** math.floor(math.log10(min(found))) if found else 1e-3
