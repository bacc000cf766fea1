"""What a study advises: the recommended setting with its cost, and every other setting against it.

Every statement about two settings rests on the differences of their paired trials, with intervals that hold together
for all settings (`estimation/selection.py`): "loses more" is said where the interval of the difference excludes 0,
"equivalent" only where the study names a margin and the interval of the ratio lies within it. Otherwise the two are
"not distinguished", which says nothing about their being equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.studies.estimation.estimates import CellEstimates
from experiments.studies.estimation.pairs import Comparison, Difference
from experiments.studies.estimation.selection import LOSS_RATE, unavailability
from experiments.studies.report.words import interval, minutes, number, signed_minutes, signed_number

NOT_DISTINGUISHED = "Loss rates not distinguished"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`best`: index of the recommended cell; `rivals`: the other cells that may lose least, as far as the study
    shows."""

    best: int
    rivals: tuple[int, ...]
    headline: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TradeOff:
    """What changes if another cell is chosen instead of the recommended one: differences, each with its interval.
    `gain`: by what factor pairing saved trials in the difference of the loss rates."""

    name: str
    losses: tuple[str, str]
    offline: tuple[str, str]
    rejecting: tuple[str, str]
    verdict: str
    gain: float | None


def recommend(names: Sequence[str], cells: Sequence[CellEstimates]) -> Recommendation:
    """The recommended cell and the reasons; `names[i]` is the name of `cells[i]`."""
    best = next(index for index, cell in enumerate(cells) if cell.recommended)
    rivals = tuple(index for index, cell in enumerate(cells) if cell.may_lose_least and index != best)
    if len(cells) == 1:
        headline = f"{names[0]}: {loss_phrase(cells[0])}."
    elif len(rivals) == len(cells) - 1:
        headline = "This study cannot tell which setting loses least."
    else:
        headline = f"Run {names[best]}: {loss_phrase(cells[best])}."
    return Recommendation(best, rivals, headline, tuple(_sentences(names, cells, best, rivals)))


def _sentences(names: Sequence[str], cells: Sequence[CellEstimates], best: int, rivals: Sequence[int]) -> list[str]:
    chosen = cells[best]
    rejecting, offline = (_time(chosen, name) for name in ("reject_fraction", "offline_fraction"))
    sentences = [
        f"Cost of {names[best]}: acks=all writes are rejected for {rejecting} a year; the partition has no leader for "
        f"{offline} a year."
    ]
    worst = max(range(len(cells)), key=lambda index: cells[index].value(LOSS_RATE))
    if worst != best and worst not in rivals:
        sentences.append(f"{names[worst]} loses most: {loss_phrase(cells[worst])}{_times(cells[worst])}.")
    if rivals:
        listed = ", ".join(names[index] for index in rivals)
        sentences.append(
            f"Any of {names[best]}, {listed} may lose least (with 95 % confidence the best is among them); "
            "availability decides."
        )
    return sentences


def _times(cell: CellEstimates) -> str:
    """How many times as much as the recommended cell it loses; empty without a number."""
    ratio = cell.compared_with_recommended[LOSS_RATE].ratio
    if not ratio.estimate or ratio.ci_high is None:
        return ""
    return f", {number(ratio.estimate)} times as many ({number(ratio.ci_low)} to {number(ratio.ci_high)})"


def _time(cell: CellEstimates, metric: str) -> str:
    value = cell.estimates[metric]
    return f"at most {minutes(value.ci_high)}" if value.one_sided else minutes(value.estimate)


def loss_phrase(cell: CellEstimates) -> str:
    """`0.505 loss events per partition-year (95 % interval 0.411 to 0.614), about one in 2 years`."""
    loss = cell.estimates[LOSS_RATE]
    if loss.one_sided:
        seen, limit = number(cell.partition_years), number(loss.ci_high)
        return f"no acknowledged record lost in {seen} partition-years (one-sided 95 %: at most {limit} events a year)"
    if loss.degenerate:
        return f"{number(loss.estimate)} loss events per partition-year, but {interval(loss, number)}"
    limits = f"95 % interval {number(loss.ci_low)} to {number(loss.ci_high)}"
    often = f", about one in {1 / loss.estimate:,.0f} years" if loss.estimate < 0.7 else ""
    return f"{number(loss.estimate)} loss events per partition-year ({limits}){often}"


def trade_offs(
    names: Sequence[str], cells: Sequence[CellEstimates], recommendation: Recommendation, margin: float | None
) -> list[TradeOff]:
    """Every other cell against the recommended one, fewest losses first. `margin`: the relative difference of loss
    rates up to which they count as equal, if the study names one."""
    others = [index for index in range(len(cells)) if index != recommendation.best]
    others.sort(key=lambda index: cells[index].value(LOSS_RATE))
    chosen = cells[recommendation.best]
    return [_trade_off(names[index], cells[index], chosen, margin) for index in others]


def _trade_off(name: str, cell: CellEstimates, chosen: CellEstimates, margin: float | None) -> TradeOff:
    compared = cell.compared_with_recommended
    losses, gain = compared[LOSS_RATE], compared[LOSS_RATE].pairing_gain
    ratio = f" (× {losses.ratio.estimate:.2g})" if losses.ratio.estimate is not None else ""
    change, limits = _difference(losses.difference, signed_number)
    ratios = ({metric: found.estimate for metric, found in each.estimates.items()} for each in (cell, chosen))
    mine, its = (unavailability(found) for found in ratios)
    less_or_more = f"{minutes(abs(mine - its))} {'less' if mine > its else 'more'} availability a year"
    availability = less_or_more if mine != its else "the same availability"
    return TradeOff(
        name,
        (f"{change} a year{ratio}", limits),
        _difference(compared["offline_fraction"].difference, signed_minutes),
        _difference(compared["reject_fraction"].difference, signed_minutes),
        f"{loss_verdict(losses, margin)}; {availability}.",
        gain,
    )


def _difference(difference: Difference, text: Callable[[float], str]) -> tuple[str, str]:
    return text(difference.estimate), f"{text(difference.ci_low)} to {text(difference.ci_high)}"


def loss_verdict(losses: Comparison, margin: float | None) -> str:
    """What the comparison of loss rates shows, in words."""
    if losses.difference.ci_low > 0.0:
        return "Loses more"
    if losses.difference.ci_high < 0.0:
        return "Loses less"
    ratio = losses.ratio
    if margin is None or ratio.ci_high is None:
        return NOT_DISTINGUISHED
    if 1.0 / (1.0 + margin) <= ratio.ci_low and ratio.ci_high <= 1.0 + margin:
        return f"Loss rates equivalent within {100.0 * margin:g} %"
    return NOT_DISTINGUISHED
