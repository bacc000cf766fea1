"""Every setting against the reference of its group: differences with intervals, what they show, and prices, in words.

More of the time in which writes fail is a price, less of it a gain. Neither is said where the interval of the
difference includes 0, and nothing where the weights of a setting degenerate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.pairs import Comparison, Difference
from experiments.studies.estimation.selection import are_equivalent
from experiments.studies.report.alike import are_alike
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import capitalised, rounded, times
from experiments.studies.trace.metrics import BY_NAME, UNWRITABLE

AVAILABILITY = ("offline_fraction", UNWRITABLE)


@dataclass(frozen=True, slots=True)
class TradeOff:
    """What changes if `setting` is run instead of the reference of its group. `ratio`: of the objective, None without a
    value; `gain`: by what factor pairing saved trials in the difference of the objective."""

    setting: Setting
    objective: Difference
    offline: Difference
    unwritable: Difference
    ratio: float | None
    verdict: str
    gain: float | None


def trade_offs(study: StudyPlan, group: Group) -> list[TradeOff]:
    """Every other setting against the reference, the lowest values of the objective first."""
    rows = []
    for setting in sorted(group.others, key=lambda setting: setting.estimates.value(study.objective)):
        found = setting.against_reference(study.objective)
        compared = (found, *map(setting.against_reference, AVAILABILITY))
        objective, offline, unwritable = (rounded(each.difference) for each in compared)
        verdict = f"{capitalised('; '.join(_words(study, group.reference, setting)))}."
        gain = found.pairing_gain
        rows.append(TradeOff(setting, objective, offline, unwritable, found.ratio.estimate, verdict, gain))
    return rows


def _words(study: StudyPlan, reference: Setting, setting: Setting) -> Iterator[str]:
    """What the intervals show, the objective first."""
    compared, noun = setting.against_reference(study.objective), BY_NAME[study.objective].noun
    shown = _shown(study.objective, compared)
    if compared.degenerate:
        yield f"{noun} not comparable, as weights degenerate"
    elif are_alike(reference, setting, study.objective):
        yield f"no difference in {noun}: the same failures cause them"
    elif shown is not None:
        yield shown
    elif are_equivalent(compared, study.equivalence_margin):
        yield f"equivalent within {100.0 * (study.equivalence_margin or 0.0):g} %"
    else:
        yield f"{noun} not told apart"
    metrics = (metric for metric in AVAILABILITY if metric != study.objective)
    found = [_shown(metric, setting.against_reference(metric)) for metric in metrics]
    yield from [words for words in found if words is not None] or ["no difference in availability shown"]


def _shown(metric: str, compared: Comparison) -> str | None:
    """What a comparison shows of the setting; None if its interval includes 0, or weights degenerate."""
    if compared.degenerate:
        return None
    if compared.difference.ci_low > 0.0:
        return BY_NAME[metric].more
    return BY_NAME[metric].less if compared.difference.ci_high < 0.0 else None


PRICES = ((UNWRITABLE, "writes fail"), ("offline_fraction", "the partition has no leader"))


class Price(NamedTuple):
    """What running the reference instead of another setting changes in one share of time. `kind`: more or less of it,
    none shown, not known; `clause`: of which time; `size`: by how much, empty below a millisecond a year."""

    kind: Literal["more", "less", "none", "unknown"]
    clause: str
    size: str

    def __str__(self) -> str:
        if self.kind == "unknown":
            return f"the difference in the time that {self.clause} is not known, as weights degenerate"
        if not self.size:
            return f"the time that {self.clause} differs by less than 1 ms a year"
        if self.kind == "none":
            return f"no difference is shown in the time that {self.clause} ({self.size} a year)"
        return f"{self.clause} for {self.size}"


def price(other: Setting, metric: str, clause: str) -> Price:
    """What running the reference instead of `other` changes in the time `metric`, in which `clause`."""
    compared = other.against_reference(metric)
    found = compared.difference
    low, high = sorted((-found.ci_low, -found.ci_high))
    if compared.degenerate:
        return Price("unknown", clause, "")
    if found.ci_low <= 0.0 <= found.ci_high:
        return Price("none", clause, times(-rounded(found).estimate, low, high, signed=True)[1])
    value, limits = times(abs(found.estimate), *sorted((abs(low), abs(high))))
    kind: Literal["more", "less"] = "more" if high > 0.0 else "less"
    return Price(kind, clause, f"{value} a year {kind} ({limits})" if limits else "")


def prices(other: Setting) -> str:
    """What running the reference instead of `other` changes in all of `PRICES`, in sentences."""
    found = [price(other, metric, clause) for metric, clause in PRICES]
    sentences = {
        begin: "; ".join(str(each) for each in found if each.kind == kind and each.size)
        for begin, kind in (("The price: ", "more"), ("The gain: ", "less"))
    }
    others = (str(each) for each in found if each.kind in ("none", "unknown") or not each.size)
    sentences[""] = capitalised("; ".join(others))
    return " ".join(f"{begin}{clauses}." for begin, clauses in sentences.items() if clauses)
