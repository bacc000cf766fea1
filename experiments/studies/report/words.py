"""What a study's numbers say, in words: names of cells, readable quantities, the answer and the trade-offs.

The answer is the cell with the lowest loss rate. Cells whose interval overlaps its interval are not told apart from
it by this study, and among those the one that is available most is recommended: its price decides, since its losses
do not. Overlap is a cautious criterion: intervals that do not overlap differ at the 5 % level, some that do overlap
would too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.studies.model import CellParameters, Distribution
from experiments.support.durations import format_duration

MINUTES_PER_YEAR = 365 * 24 * 60
Document = Mapping[str, Any]

_SHORT = {
    "generation": "{}",
    "min_insync_replicas": "min ISR {}",
    "replication_factor": "RF {}",
    "unclean_recovery_strategy": "{} recovery",
    "acks": "acks={}",
    "brokers": "{} brokers",
    "partitions": "{} partitions",
    "broker_mttf": "MTTF {}",
    "broker_mttr": "MTTR {}",
    "detection": "detection {}",
    "flush_interval": "flush {}",
    "unclean_probability": "unclean {}",
    "tail_loss_probability": "tail loss {}",
    "power_events_per_year": "{} power events/y",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """`best`: index of the recommended cell; `rivals`: cells that the study cannot tell apart from it by their
    losses."""

    best: int
    rivals: tuple[int, ...]
    headline: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TradeOff:
    """One other cell against the recommended one: what changes if it is chosen instead."""

    name: str
    losses: str
    offline: str
    refusing: str
    verdict: str


def cell_name(swept: Mapping[str, object]) -> str:
    """`kip-966 · min ISR 2`: the swept parameters in the order of the file."""
    parts = [_SHORT[name].format(shown(value)) for name, value in swept.items()]
    return " · ".join(parts) or "the one setting"


def shown(value: object) -> str:
    """A parameter's value as the file gives it, in a few words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return str(value)


def parameter_rows(parameters: CellParameters, swept: Sequence[str]) -> list[tuple[str, str]]:
    """The parameters that all cells share, by name, with durations as users write them."""
    rows = []
    for field, value in parameters:
        name = field.removesuffix("_ms")
        if name in swept:
            continue
        if isinstance(value, Distribution):
            shape = "" if value.shape is None else f", shape {value.shape:g}"
            text = f"{value.dist}, mean {format_duration(value.mean_ms)}{shape}"
        elif field.endswith("_ms"):
            nothing = {"detection": "instant", "flush_interval": "never"}
            text = nothing[name] if value is None else format_duration(value)
        else:
            text = str(value)
        rows.append((name, text))
    return rows


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


def unavailability(cell: Document) -> float:
    """The share of time in which acks=all writes are surely refused: the larger of no serving leader and too few in
    sync."""
    without_leader = cell["offline_fraction"]["estimate"] + cell["stall_fraction"]["estimate"]
    return float(max(without_leader, cell["reject_fraction"]["estimate"]))


def answer(names: Sequence[str], cells: Sequence[Document]) -> Answer:
    """The recommended cell and why. `names` and `cells` go together."""
    rates = [cell["loss_rate"] for cell in cells]
    least = min(range(len(cells)), key=lambda index: (rates[index]["estimate"], unavailability(cells[index])))
    alike = [index for index in range(len(cells)) if rates[index]["ci_low"] <= rates[least]["ci_high"]]
    best = min(alike, key=lambda index: (unavailability(cells[index]), rates[index]["estimate"]))
    rivals = tuple(index for index in alike if index != best)
    if len(cells) == 1:
        headline = f"{names[0]}: {loss_phrase(cells[0])}."
    elif len(alike) == len(cells):
        headline = "This study cannot tell the settings apart by their losses: every interval overlaps the lowest one."
    else:
        headline = f"Run {names[best]}: {loss_phrase(cells[best])}."
    return Answer(best, rivals, headline, tuple(_sentences(names, cells, best, rivals)))


def _sentences(names: Sequence[str], cells: Sequence[Document], best: int, rivals: Sequence[int]) -> list[str]:
    chosen = cells[best]
    sentences = [
        f"Its price: {minutes(chosen['reject_fraction']['estimate'])} per year in which acks=all writes are refused, "
        f"{minutes(chosen['offline_fraction']['estimate'])} of offline time."
    ]
    worst = max(range(len(cells)), key=lambda index: cells[index]["loss_rate"]["estimate"])
    if worst != best and worst not in rivals:
        sentences.append(
            f"The most is lost with {names[worst]}: {loss_phrase(cells[worst])}{_times(cells[worst], chosen)}."
        )
    if rivals:
        listed = ", ".join(names[index] for index in rivals)
        sentences.append(
            f"By its losses it is not told apart from {listed}; it is preferred because it is available longer."
        )
    return sentences


def loss_phrase(cell: Document) -> str:
    """`0.505 loss events per partition-year (95 % interval 0.411 to 0.614), about one in 2 years`."""
    loss = cell["loss_rate"]
    if loss["estimate"] == 0:
        seen, limit = number(cell["partition_years"]), number(loss["ci_high"])
        return f"no acknowledged record lost in {seen} partition-years (95 %: at most {limit} events a year)"
    interval = f"95 % interval {number(loss['ci_low'])} to {number(loss['ci_high'])}"
    often = f", about one in {1 / loss['estimate']:.0f} years" if loss["estimate"] < 0.7 else ""
    return f"{number(loss['estimate'])} loss events per partition-year ({interval}){often}"


def _times(cell: Document, against: Document) -> str:
    mine, other = cell["loss_rate"]["estimate"], against["loss_rate"]["estimate"]
    return f", {mine / other:.1f} times as many" if other > 0 and mine > 0 else ""


def trade_offs(names: Sequence[str], cells: Sequence[Document], result: Answer) -> list[TradeOff]:
    """Every other cell against the recommended one, fewest losses first."""
    others = [index for index in range(len(cells)) if index != result.best]
    others.sort(key=lambda index: cells[index]["loss_rate"]["estimate"])
    chosen = cells[result.best]
    return [_trade_off(names[index], cells[index], chosen, index in result.rivals) for index in others]


def _trade_off(name: str, cell: Document, chosen: Document, rival: bool) -> TradeOff:
    mine, other = cell["loss_rate"]["estimate"], chosen["loss_rate"]["estimate"]
    ratio = f" (× {mine / other:.2g})" if other > 0 else ""
    longer = unavailability(cell) - unavailability(chosen)
    if rival:
        verdict = "Losses alike within the intervals; available " + ("less." if longer > 0 else "as long.")
    else:
        verdict = "Loses more" + (
            " and is available less." if longer > 0 else f", in return for {minutes(-longer)} more availability a year."
        )
    return TradeOff(
        name,
        f"{mine - other:+.3g} a year{ratio}",
        _signed(cell["offline_fraction"]["estimate"] - chosen["offline_fraction"]["estimate"]),
        _signed(cell["reject_fraction"]["estimate"] - chosen["reject_fraction"]["estimate"]),
        verdict,
    )


def _signed(fraction: float) -> str:
    return "±0" if fraction == 0 else f"{'+' if fraction > 0 else '−'}{minutes(abs(fraction))}"
