"""The coverage curve of a campaign as a table and as a chart: what was reached after how many seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import altair as alt
import vl_convert

from experiments.hunt.campaign.folder import CurvePoint

_DRAWN = {"features": "features reached", "kept": "plans kept"}
_COLOURS = ("#0072B2", "#D55E00")
"""Of Okabe and Ito, 2008."""


def table(curve: Sequence[CurvePoint]) -> str:
    """The curve as CSV, a row for each round."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(CurvePoint.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(point.model_dump() for point in curve)
    return text.getvalue()


def drawing(curve: Sequence[CurvePoint]) -> str:
    """The curve as SVG."""
    rows = [{"seeds": 0, "what": name, "count": 0} for name in _DRAWN.values()]
    rows += [
        {"seeds": point.seeds, "what": name, "count": getattr(point, field)}
        for point in curve
        for field, name in _DRAWN.items()
    ]
    colours = alt.Scale(domain=list(_DRAWN.values()), range=list(_COLOURS))
    chart = alt.Chart(alt.InlineData(rows)).mark_line(interpolate="monotone")
    chart = chart.encode(
        x=alt.X("seeds:Q", title="seeds"),
        y=alt.Y("count:Q", title=None),
        color=alt.Color("what:N", scale=colours, legend=alt.Legend(title=None, orient="bottom")),
    )
    return vl_convert.vegalite_to_svg(chart.properties(width=640, height=280, background="white").to_dict())
