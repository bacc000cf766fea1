"""Every pair of settings that differ in one decision, and the effect of a decision in all combinations of the others.

A *main effect* is stated where each of its comparisons shows it: "spread loses less than together with either min ISR".
It needs no best setting, and holds with the confidence of all pairs of a group together. Otherwise the sentence says
for each combination which of several answers it is: a difference, the same events (`alike.py`), equality within the
margin of the study, no difference shown, or not known as weights degenerate. The last three are not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.moments import LEAST_EFFECTIVE_SAMPLE_SIZE
from experiments.studies.estimation.pairs import Comparison
from experiments.studies.estimation.selection import are_equivalent
from experiments.studies.report.alike import changed_in
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import capitalised, cell_name, listed
from experiments.studies.trace.metrics import BY_NAME, UNWRITABLE, Metric

Outcome = Literal["less", "more", "same", "equivalent", "not shown", "unknown"]


@dataclass(frozen=True, slots=True)
class Effect:
    """What one decision does to a metric: `outcomes` of `first` against `second`, by the name of the combination of the
    other decisions. `is_main`: the same difference in two combinations or more, which are all."""

    metric: Metric
    first: str
    second: str
    outcomes: Mapping[str, Outcome]
    sentence: str
    is_main: bool


def effects(study: StudyPlan, group: Group) -> list[Effect]:
    """The effects of each pair of values of each decision, on the objective and on the time that writes fail."""
    found: dict[tuple[str, str, str], dict[str, Outcome]] = {}
    for name in dict.fromkeys((study.objective, UNWRITABLE)):
        for first, second, compared in _pairs(group):
            changed = changed_in((first, second))
            values = [cell_name({key: each.decided[key] for key in changed}) for each in (first, second)]
            context = cell_name({key: value for key, value in first.decided.items() if key not in changed})
            outcome = _outcome(compared[name], first, name, study.equivalence_margin)
            found.setdefault((name, values[0], values[1]), {})[context] = outcome
    return [_effect(study, BY_NAME[name], first, second, of) for (name, first, second), of in found.items()]


def _pairs(group: Group) -> Iterator[tuple[Setting, Setting, Mapping[str, Comparison]]]:
    """The pairs, the setting that comes later in the study first."""
    by_index = {setting.index: setting for setting in group.settings}
    for setting in group.settings:
        for other, compared in setting.estimates.compared_with_neighbours.items():
            yield setting, by_index[other], compared


def _outcome(compared: Comparison, first: Setting, metric: str, margin: float | None) -> Outcome:
    seen = first.estimates.estimates[metric].effective_sample_size
    if compared.degenerate:
        return "unknown"
    if compared.identical and seen >= LEAST_EFFECTIVE_SAMPLE_SIZE:
        return "same"
    if compared.difference.ci_low > 0.0:
        return "more"
    if compared.difference.ci_high < 0.0:
        return "less"
    return "equivalent" if are_equivalent(compared, margin) else "not shown"


def _effect(study: StudyPlan, metric: Metric, first: str, second: str, of: Mapping[str, Outcome]) -> Effect:
    if "more" in of.values() and "less" not in of.values():
        turned: dict[Outcome, Outcome] = {"more": "less"}
        first, second, of = second, first, {key: turned.get(each, each) for key, each in of.items()}
    by_outcome: dict[Outcome, list[str]] = {}
    for context, outcome in of.items():
        by_outcome.setdefault(outcome, []).append(context)
    parts = []
    for outcome, contexts in by_outcome.items():
        comma = "," * (outcome in ("same", "unknown") and len(of) > 1)
        parts.append(
            f"{_words(metric, outcome, first, second, study.equivalence_margin)}{comma}{_with(contexts, len(of))}"
        )
    is_main = len(of) > 1 and list(by_outcome) == ["less"]
    return Effect(metric, first, second, of, f"{capitalised('; '.join(parts))}.", is_main)


def _with(contexts: list[str], of: int) -> str:
    """In which combinations of the other decisions; empty where there is one only."""
    if of == 1:
        return ""
    if len(contexts) < of or of > 3:
        return f" with {listed(contexts)}" if len(contexts) < of else f" with each of the {of} combinations of the rest"
    names = [context.rpartition(" ")[0] for context in contexts]
    if of == 2 and len(set(names)) == 1 and names[0]:
        return f" with either {names[0]}"
    return f" with {'either' if of == 2 else 'any'} of {listed(contexts)}"


def _words(metric: Metric, outcome: Outcome, first: str, second: str, margin: float | None) -> str:
    noun = metric.noun or metric.title
    if outcome in ("less", "more"):
        low, high = (first, second) if outcome == "less" else (second, first)
        if metric.name == UNWRITABLE:
            return f"writes fail for less time with {low} than with {high}"
        if metric.less.startswith("loses"):
            return f"{low} {metric.less} than {high}"
        return f"{noun}: less with {low} than with {high}"
    words = {
        "same": f"{first} and {second} have the same {noun.removeprefix('the ')}, by the same failures",
        "equivalent": f"{first} and {second} are equal in {noun} within {100.0 * (margin or 0.0):g} %",
        "not shown": f"no difference in {noun} is shown between {first} and {second}",
        "unknown": f"the difference in {noun} between {first} and {second} is not known, as weights degenerate",
    }
    return words[outcome]
