"""Every setting against the reference of its group: differences with intervals, and what they show in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.pairs import Difference
from experiments.studies.estimation.selection import are_equivalent
from experiments.studies.report.objectives import OBJECTIVES
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import rounded

AVAILABILITY = ("offline_fraction", "reject_fraction")


@dataclass(frozen=True, slots=True)
class TradeOff:
    """What changes if `setting` is run instead of the reference of its group. `objective`, `offline`, `rejecting`:
    differences; `ratio`: of the objective, None without a value; `gain`: by what factor pairing saved trials in the
    difference of the objective."""

    setting: Setting
    objective: Difference
    offline: Difference
    rejecting: Difference
    ratio: float | None
    verdict: str
    gain: float | None


def trade_offs(study: StudyPlan, group: Group) -> list[TradeOff]:
    """Every other setting against the reference, the lowest values of the objective first."""
    others = sorted(group.others, key=lambda setting: setting.estimates.value(study.objective))
    return [_trade_off(study, setting) for setting in others]


def _trade_off(study: StudyPlan, setting: Setting) -> TradeOff:
    found = setting.against_reference(study.objective)
    offline, rejecting = (rounded(setting.against_reference(metric).difference) for metric in AVAILABILITY)
    words = "; ".join(_words(study, setting))
    verdict = f"{words[0].upper()}{words[1:]}."
    return TradeOff(
        setting, rounded(found.difference), offline, rejecting, found.ratio.estimate, verdict, found.pairing_gain
    )


def _words(study: StudyPlan, setting: Setting) -> Iterator[str]:
    """What the intervals show, the objective first."""
    compared = setting.against_reference(study.objective)
    shown = _shown(study.objective, compared.difference)
    if shown is not None:
        yield shown
    elif are_equivalent(compared, study.equivalence_margin):
        yield f"equivalent within {100.0 * (study.equivalence_margin or 0.0):g} %"
    else:
        yield f"{OBJECTIVES[study.objective].noun} not told apart"
    metrics: Sequence[str] = [metric for metric in AVAILABILITY if metric != study.objective]
    found = [_shown(metric, setting.against_reference(metric).difference) for metric in metrics]
    yield from [words for words in found if words is not None] or ["no difference in availability shown"]


def _shown(metric: str, difference: Difference) -> str | None:
    """What a difference shows of the setting; None if its interval includes 0."""
    if difference.ci_low > 0.0:
        return OBJECTIVES[metric].more
    return OBJECTIVES[metric].less if difference.ci_high < 0.0 else None
