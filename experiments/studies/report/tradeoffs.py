"""Every setting against the reference of its group: differences with intervals, and what they show in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.pairs import Comparison, Difference
from experiments.studies.estimation.selection import are_equivalent
from experiments.studies.report.alike import are_alike
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import capitalised, rounded
from experiments.studies.trace.metrics import BY_NAME, UNWRITABLE

AVAILABILITY = ("offline_fraction", UNWRITABLE)


@dataclass(frozen=True, slots=True)
class TradeOff:
    """What changes if `setting` is run instead of the reference of its group. `objective`, `offline`, `unwritable`:
    differences; `ratio`: of the objective, None without a value; `gain`: by what factor pairing saved trials in the
    difference of the objective."""

    setting: Setting
    objective: Difference
    offline: Difference
    unwritable: Difference
    ratio: float | None
    verdict: str
    gain: float | None


def trade_offs(study: StudyPlan, group: Group) -> list[TradeOff]:
    """Every other setting against the reference, the lowest values of the objective first."""
    others = sorted(group.others, key=lambda setting: setting.estimates.value(study.objective))
    return [_trade_off(study, group.reference, setting) for setting in others]


def _trade_off(study: StudyPlan, reference: Setting, setting: Setting) -> TradeOff:
    found = setting.against_reference(study.objective)
    offline, unwritable = (rounded(setting.against_reference(metric).difference) for metric in AVAILABILITY)
    words = "; ".join(_words(study, reference, setting))
    verdict = f"{capitalised(words)}."
    return TradeOff(
        setting, rounded(found.difference), offline, unwritable, found.ratio.estimate, verdict, found.pairing_gain
    )


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
    metrics: Sequence[str] = [metric for metric in AVAILABILITY if metric != study.objective]
    found = [_shown(metric, setting.against_reference(metric)) for metric in metrics]
    yield from [words for words in found if words is not None] or ["no difference in availability shown"]


def _shown(metric: str, compared: Comparison) -> str | None:
    """What a comparison shows of the setting; None if its interval includes 0, or weights degenerate."""
    if compared.degenerate:
        return None
    if compared.difference.ci_low > 0.0:
        return BY_NAME[metric].more
    return BY_NAME[metric].less if compared.difference.ci_high < 0.0 else None
