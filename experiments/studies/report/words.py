"""A study's numbers in words: names of cells, readable quantities, the recommendation and the trade-offs.

The study does not distinguish the cell with the lowest loss rate from cells whose interval overlaps its interval; among
those, the one with the highest availability is recommended. Overlap is a conservative criterion: rates whose intervals
do not overlap differ at the 5 % level, and so do some whose intervals overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.studies.design.model import PARAMETERS, CellParameters
from experiments.studies.estimation.estimates import CellEstimates

MINUTES_PER_YEAR = 365 * 24 * 60


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`best`: index of the recommended cell; `rivals`: the cells whose loss rates the study does not distinguish from
    its loss rate."""

    best: int
    rivals: tuple[int, ...]
    headline: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TradeOff:
    """What changes if another cell is chosen instead of the recommended one."""

    name: str
    losses: str
    offline: str
    rejecting: str
    verdict: str


def cell_name(swept: Mapping[str, object]) -> str:
    """`kip-966 · min ISR 2`: the swept parameters in the order of the file."""
    parts = [PARAMETERS[name].words.format(shown(value)) for name, value in swept.items()]
    return " · ".join(parts) or "the one setting"


def shown(value: object) -> str:
    """A parameter's value as the file gives it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return str(value)


def parameter_rows(cells: Sequence[CellParameters]) -> list[tuple[str, str, str]]:
    """Name, value and description of the parameters that are the same in all cells."""
    shared = ((name, item, {getattr(cell, item.field) for cell in cells}) for name, item in PARAMETERS.items())
    return [
        (name, item.notation.write(next(iter(values))), item.description)
        for name, item, values in shared
        if len(values) == 1
    ]


def number(value: float) -> str:
    """Three significant digits, never in scientific notation above a millionth."""
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}"
    if value < 1e-6:
        return f"{value:.1e}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.8f}".rstrip("0")


def minutes(fraction: float) -> str:
    """A share of time as time per year: `12.3 min`, `5.1 h`, `2.2 d`."""
    per_year = fraction * MINUTES_PER_YEAR
    for unit, size in (("d", 1440.0), ("h", 60.0), ("min", 1.0)):
        if per_year >= 2.0 * size:
            return f"{number(per_year / size)} {unit}"
    return f"{number(per_year)} min" if per_year >= 0.1 else f"{number(per_year * 60.0)} s"


def milliseconds(value: float | None) -> str:
    """A length of time in its natural unit; a dash where there was none."""
    if value is None:
        return "–"
    for unit, size in (("d", 86_400_000.0), ("h", 3_600_000.0), ("min", 60_000.0), ("s", 1000.0)):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value)} ms"


def unavailability(cell: CellEstimates) -> float:
    """A lower bound of the share of time in which acks=all writes fail: the larger of the time without a leader that
    answers and the time with fewer than min ISR replicas in sync."""
    return max(cell.value("offline_fraction") + cell.value("stall_fraction"), cell.value("reject_fraction"))


def recommend(names: Sequence[str], cells: Sequence[CellEstimates]) -> Recommendation:
    """The recommended cell and the reasons; `names[i]` is the name of `cells[i]`."""
    rates = [cell.estimates["loss_rate"] for cell in cells]
    least = min(range(len(cells)), key=lambda index: (rates[index].estimate, unavailability(cells[index])))
    alike = [index for index in range(len(cells)) if rates[index].ci_low <= rates[least].ci_high]
    best = min(alike, key=lambda index: (unavailability(cells[index]), rates[index].estimate))
    rivals = tuple(index for index in alike if index != best)
    if len(cells) == 1:
        headline = f"{names[0]}: {loss_phrase(cells[0])}."
    elif len(alike) == len(cells):
        headline = "This study cannot tell which setting loses least: the intervals of all loss rates overlap."
    else:
        headline = f"Run {names[best]}: {loss_phrase(cells[best])}."
    return Recommendation(best, rivals, headline, tuple(_sentences(names, cells, best, rivals)))


def _sentences(names: Sequence[str], cells: Sequence[CellEstimates], best: int, rivals: Sequence[int]) -> list[str]:
    chosen = cells[best]
    rejecting, offline = (minutes(chosen.value(name)) for name in ("reject_fraction", "offline_fraction"))
    sentences = [
        f"Cost of {names[best]}: acks=all writes are rejected for {rejecting} a year; the partition has no leader for "
        f"{offline} a year."
    ]
    worst = max(range(len(cells)), key=lambda index: cells[index].value("loss_rate"))
    if worst != best and worst not in rivals:
        most, least = (cell.value("loss_rate") for cell in (cells[worst], chosen))
        times = f", {most / least:.1f} times as many" if least > 0 and most > 0 else ""
        sentences.append(f"{names[worst]} loses most: {loss_phrase(cells[worst])}{times}.")
    if rivals:
        listed = ", ".join(names[index] for index in rivals)
        sentences.append(
            f"The loss rate of {names[best]} is not distinguished from that of {listed}; availability decides."
        )
    return sentences


def loss_phrase(cell: CellEstimates) -> str:
    """`0.505 loss events per partition-year (95 % interval 0.411 to 0.614), about one in 2 years`."""
    loss = cell.estimates["loss_rate"]
    if loss.estimate == 0:
        seen, limit = number(cell.partition_years), number(loss.ci_high)
        return f"no acknowledged record lost in {seen} partition-years (95 %: at most {limit} events a year)"
    interval = f"95 % interval {number(loss.ci_low)} to {number(loss.ci_high)}"
    often = f", about one in {1 / loss.estimate:.0f} years" if loss.estimate < 0.7 else ""
    return f"{number(loss.estimate)} loss events per partition-year ({interval}){often}"


def trade_offs(names: Sequence[str], cells: Sequence[CellEstimates], recommendation: Recommendation) -> list[TradeOff]:
    """Every other cell against the recommended one, fewest losses first."""
    others = [index for index in range(len(cells)) if index != recommendation.best]
    others.sort(key=lambda index: cells[index].value("loss_rate"))
    chosen = cells[recommendation.best]
    return [_trade_off(names[index], cells[index], chosen, index in recommendation.rivals) for index in others]


def _trade_off(name: str, cell: CellEstimates, chosen: CellEstimates, rival: bool) -> TradeOff:
    mine, other = cell.value("loss_rate"), chosen.value("loss_rate")
    ratio = f" (× {mine / other:.2g})" if other > 0 else ""
    longer = unavailability(cell) - unavailability(chosen)
    less_or_more = f"{minutes(abs(longer))} {'less' if longer > 0 else 'more'} availability a year"
    availability = less_or_more if longer else "the same availability"
    verdict = f"{'Loss rates not distinguished' if rival else 'Loses more'}; {availability}."
    return TradeOff(
        name,
        f"{mine - other:+.3g} a year{ratio}",
        _signed(cell.value("offline_fraction") - chosen.value("offline_fraction")),
        _signed(cell.value("reject_fraction") - chosen.value("reject_fraction")),
        verdict,
    )


def _signed(fraction: float) -> str:
    return "±0" if fraction == 0 else f"{'+' if fraction > 0 else '−'}{minutes(abs(fraction))}"
