"""The two plots, as SVG that takes its colours from the page.

matplotlib draws with placeholder colours, which CSS variables then replace, so that one drawing serves light mode, dark
mode and paper. Text stays text. Each drawing has a label with its numbers for screen readers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from experiments.studies.estimation.estimates import CellEstimates
from experiments.studies.estimation.moments import Estimate
from experiments.studies.report.words import MINUTES_PER_YEAR, number
from experiments.studies.trace.metrics import FRACTIONS, RATES

INK, MUTED, GRID, BEST, OTHER, OFFLINE, REJECTING = (f"#0{digit}0{digit}0{digit}" for digit in range(1, 8))
_CSS = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    BEST: "var(--best)",
    OTHER: "var(--other)",
    OFFLINE: "var(--offline)",
    REJECTING: "var(--rejecting)",
}
_STYLE: dict[RcKeyType, str | float] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}
WIDTH_IN = 9.2


def loss_plot(names: Sequence[str], cells: Sequence[CellEstimates], best: int) -> str:
    """Loss events per partition-year by cell: a point and its interval, on a log axis.

    A cell without losses has no point on a log axis; an arrow points down from its upper limit.
    """
    loss = RATES["loss_rate"]
    rates = [cell.estimates[loss.name] for cell in cells]
    shown = [value for rate in rates for value in (rate.estimate, rate.ci_low, rate.ci_high) if value > 0]
    floor = 10 ** math.floor(math.log10(min(shown))) if shown else 0.001

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_xlim(floor, max(shown) * 3.0)
        for row, rate in enumerate(rates):
            _loss_row(axes, row, rate, BEST if row == best else OTHER, floor)
        _rows(axes, names, best)
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel(f"{loss.title} {loss.estimator.unit}, 95 % interval (log scale; left is better)")

    label = f"{loss.title} {loss.estimator.unit}. " + " ".join(
        f"{name}: {number(rate.estimate)}, interval {number(rate.ci_low)} to {number(rate.ci_high)}."
        for name, rate in zip(names, rates, strict=True)
    )
    return _svg("loss", len(cells), draw, label)


def _loss_row(axes: Axes, row: int, rate: Estimate, colour: str, floor: float) -> None:
    high = rate.ci_high
    if rate.estimate > 0:
        axes.plot(
            [max(rate.ci_low, floor), high], [row, row], color=colour, linewidth=5, alpha=0.35, solid_capstyle="round"
        )
        axes.plot([rate.estimate], [row], "o", color=colour, markersize=9)
        text = number(rate.estimate)
    else:
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 2}
        axes.annotate("", xy=(floor * 1.02, row), xytext=(high, row), arrowprops=style)
        axes.plot([high], [row], "|", color=colour, markersize=14, markeredgewidth=2)
        text = f"none seen (one-sided: at most {number(high)})"
    axes.annotate(text, (high, row), xytext=(9, 0), textcoords="offset points", va="center", color=INK)


def availability_plot(names: Sequence[str], cells: Sequence[CellEstimates], best: int) -> str:
    """Minutes per year offline and rejecting acks=all by cell, side by side, each on its own scale from zero."""
    sides = ((FRACTIONS["offline_fraction"], OFFLINE), (FRACTIONS["reject_fraction"], REJECTING))

    def draw(figure: Figure) -> None:
        for axes, (metric, colour) in zip(figure.subplots(1, 2, sharey=True), sides, strict=True):
            _bars(axes, [cell.estimates[metric.name] for cell in cells], colour)
            _rows(axes, names, best)
            axes.set_title(metric.title, loc="left", fontsize=11, color=INK)
            axes.set_xlabel("minutes per year, 95 % interval")

    label = "Minutes per year. " + " ".join(
        f"{name}: offline {number(cell.value('offline_fraction') * MINUTES_PER_YEAR)}, "
        f"rejecting acks=all {number(cell.value('reject_fraction') * MINUTES_PER_YEAR)}."
        for name, cell in zip(names, cells, strict=True)
    )
    return _svg("availability", len(cells), draw, label)


def _bars(axes: Axes, estimates: Sequence[Estimate], colour: str) -> None:
    """Bars with whiskers. An estimate of 0 has neither; its upper limit is in the table."""
    year = MINUTES_PER_YEAR
    per_year = [Estimate(each.estimate * year, each.ci_low * year, each.ci_high * year) for each in estimates]
    seen = [row for row in per_year if row.estimate > 0]
    axes.barh(range(len(per_year)), [row.estimate for row in per_year], height=0.5, color=colour, alpha=0.85)
    for index, row in enumerate(per_year):
        reach = 0.0
        if row.estimate > 0:
            axes.plot([row.ci_low, row.ci_high], [index, index], color=INK, linewidth=1.4)
            reach = row.ci_high
        text = number(row.estimate) if row.estimate > 0 else "none seen"
        axes.annotate(text, (reach, index), xytext=(7, 0), textcoords="offset points", va="center", color=INK)
    axes.set_xlim(0, 1.3 * max((row.ci_high for row in seen), default=1.0))
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.locator_params(axis="x", nbins=5)


def _rows(axes: Axes, names: Sequence[str], best: int) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for index, label in enumerate(axes.get_yticklabels()):
        label.set_fontweight("bold" if index == best else "normal")


def _svg(name: str, rows: int, draw: Callable[[Figure], None], label: str) -> str:
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH_IN, 1.25 + 0.5 * rows), layout="constrained")
        draw(figure)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    for reference in ('id="', 'href="#', "url(#"):
        svg = svg.replace(reference, f"{reference}{name}-")
    for stand_in, colour in _CSS.items():
        svg = svg.replace(stand_in, colour)
    return svg
