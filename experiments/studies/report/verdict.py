"""The answer to a study's question, in words that claim what the trials show and nothing more.

Three kinds of answer. *Decided*: one setting is shown to be the best under its assumptions (`estimation/selection.py`);
the answer names it, the effect of each decision by pairs of trials, and its price in availability. *Undecided*: several
settings may be the best; the answer says so first, and how many trials would tell, and recommends none of them, since a
small study would else recommend whichever is available longest. *Described*: the study has one setting and nothing to
choose.

Every statement about two settings rests on the interval of their difference: "more" or "less" is said where it excludes
0, "equivalent" where the study names a margin and the interval of the ratio lies within it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.moments import Estimate
from experiments.studies.estimation.pairs import Comparison, Difference
from experiments.studies.report.kafka import release
from experiments.studies.report.objectives import OBJECTIVES, Objective
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import (
    PER_PARTITION,
    Rate,
    Sentence,
    Unit,
    cell_name,
    counted,
    listed,
    minutes,
    number,
    rounded,
    times,
)
from experiments.studies.trace.metrics import FRACTION, METRICS, Metric

Kind = Literal["decided", "undecided", "described"]
NAMED_AT_MOST = 4
EFFECTS_AT_MOST = 3
MANY_TRIALS = 10_000_000
PRICES = (
    ("reject_fraction", "acks=all writes are rejected"),
    ("offline_fraction", "the partition has no leader"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a study, or one group of it, answers: a headline, and the sentences that support it."""

    kind: Kind
    headline: Sentence
    sentences: tuple[Sentence, ...]


def judge(study: StudyPlan, groups: Sequence[Group]) -> Verdict:
    """The answer of the whole study."""
    verdicts = [judge_group(study, group) for group in groups]
    if len(groups) == 1:
        return verdicts[0]
    kinds = {verdict.kind for verdict in verdicts}
    if kinds == {"described"}:
        return Verdict("described", _range(study, groups), ())
    lines = tuple((f"{group.name}: ", *_brief(study, group)) for group in groups)
    if len(groups) > NAMED_AT_MOST:
        lines = (("The answer under each of them is in the table of assumptions below.",),)
    recommended = Counter(group.recommended.name for group in groups if group.recommended is not None)
    objective = OBJECTIVES[study.objective]
    if not recommended:
        headline = f"This study cannot tell which setting {objective.best}, under any of its {len(groups)} assumptions."
        return Verdict("undecided", (headline,), lines)
    if len(recommended) == 1 and kinds == {"decided"}:
        (name,) = recommended
        headline = f"Run {name}: it {objective.best} under each of the {len(groups)} assumptions."
    else:
        headline = f"It depends on the assumptions: {_listed_by_assumption(groups)}."
    return Verdict("decided" if kinds == {"decided"} else "undecided", (headline,), lines)


def _listed_by_assumption(groups: Sequence[Group]) -> str:
    by_name: dict[str, list[str]] = {}
    for group in groups:
        best = group.recommended
        by_name.setdefault("" if best is None else f"run {best.name}", []).append(group.name)
    return "; ".join(
        f"{name or 'the study cannot tell'} with {listed(worlds, 'or')}" for name, worlds in sorted(by_name.items())
    )


def judge_group(study: StudyPlan, group: Group) -> Verdict:
    """The answer under the assumptions of one group."""
    objective, metric = OBJECTIVES[study.objective], metric_of(study)
    if len(group.settings) == 1:
        (only,) = group.settings
        value = _quantity(metric, only.estimates.estimates[metric.name])
        return Verdict("described", (f"{only.full_name}: ", *value, "."), (_cost(only),))
    best = group.recommended
    effects = tuple(_effects(study, group))
    if best is not None:
        value = _quantity(metric, best.estimates.estimates[metric.name])
        headline = (f"Run {best.name}: it {objective.best}: ", *value, ".", *_shown_price(study, group))
        return Verdict("decided", headline, ((release(best.parameters),), *effects, _cost(best)))
    headline = (*_undecided(objective, group), " ", *_trials_needed(study, group))
    return Verdict("undecided", headline, effects)


def cautions(study: StudyPlan) -> list[str]:
    """What speaks against settings of the study and is not in its model, so that no number shows it."""
    cells = [cell.parameters for cell in study.cells]
    if len({cell.detection_ms for cell in cells}) > 1 and all(cell.slow is None for cell in cells):
        return [
            "No broker is slow or paused in this study, so a session never ends without a failure: what a short "
            "session timeout costs is not in these numbers. To see it, add `slow`."
        ]
    return []


def _shown_price(study: StudyPlan, group: Group) -> Sentence:
    """What the reference costs against the setting that is second best, as far as the study shows it; empty otherwise:
    a headline that names a gain names its price.
    """
    second = min(group.others, key=lambda setting: setting.estimates.value(study.objective))
    for metric, clause in PRICES:
        if metric != study.objective and second.against_reference(metric).difference.ci_high < 0.0:
            return (f" The price: {_price(second, metric, clause)}, against {second.name}.",)
    return ()


def metric_of(study: StudyPlan) -> Metric:
    """The metric that the study's question is about."""
    return next(metric for metric in METRICS if metric.name == study.objective)


def _undecided(objective: Objective, group: Group) -> Sentence:
    names = [setting.name for setting in group.undecided]
    ruled_out = [setting.name for setting in group.settings if setting not in group.undecided]
    which = (
        f"which of {counted(len(names), 'setting')}" if len(names) > NAMED_AT_MOST else f"whether {listed(names, 'or')}"
    )
    if not ruled_out:
        which = f"which of its {counted(len(names), 'setting')}"
    headline = f"This study cannot tell {which} {objective.best}."
    if ruled_out and len(ruled_out) <= NAMED_AT_MOST:
        headline += f" It rules out {listed(ruled_out)}."
    return (headline,)


def _trials_needed(study: StudyPlan, group: Group) -> Sentence:
    """How many trials would tell the settings apart which the study does not, as far as the trials show that."""
    metric = metric_of(study)
    values = [setting.estimates.estimates[metric.name] for setting in group.undecided]
    needed = [found for setting in group.undecided if (found := setting.estimates.trials_to_distinguish) is not None]
    trials = max(setting.estimates.trials for setting in group.undecided)
    if all(value.one_sided for value in values):
        years = min(setting.estimates.partition_years for setting in group.undecided)
        limit = max(values, key=lambda value: value.ci_high)
        return (
            f"None was seen in {number(years)} partition-years of each (", *_limit(metric, limit),
            "); ten times the trials would lower this limit to a tenth.",
        )  # fmt: skip
    if not needed:
        return ("The estimates are equal, so they do not say how many trials would tell the settings apart.",)
    if max(needed) > MANY_TRIALS:
        return (
            f"The estimates are so close that even {MANY_TRIALS:,} trials of each would not tell; it has {trials:,}.",
        )
    return (f"About {max(needed):,} trials of each would tell, if the estimates are right; it has {trials:,}.",)


def _effects(study: StudyPlan, group: Group) -> Iterator[Sentence]:
    """What the reference changes against settings that differ from it in one decision, or else against the first one;
    each with the change in availability."""
    reference = group.reference
    near = [other for other in group.others if len(_changed(reference, other)) == 1]
    for other in (near or group.others)[:EFFECTS_AT_MOST]:
        prices = "; ".join(_price(other, metric, clause) for metric, clause in PRICES)
        yield (*_effect(study, reference, other), f" The price: {prices}.")


def _changed(one: Setting, other: Setting) -> list[str]:
    return [name for name, value in one.decided.items() if other.decided.get(name) != value]


def _effect(study: StudyPlan, reference: Setting, other: Setting) -> Sentence:
    """`With min ISR 2, kip-966 instead of kip-497 lowers loss events from ... to ...: ratio ...`."""
    metric, noun = metric_of(study), OBJECTIVES[study.objective].noun
    changed = _changed(reference, other)
    shared = {name: value for name, value in reference.decided.items() if name not in changed}
    context = f"With {cell_name(shared)}, " if shared else ""
    mine, its = (cell_name({name: each.decided[name] for name in changed}) for each in (reference, other))
    ours, theirs = (_value(metric, each.estimates.estimates[metric.name]) for each in (reference, other))
    compared = other.against_reference(metric.name)
    verb = _direction(compared.difference)
    unit = _unit(metric)
    if verb is None:
        limits = _difference(metric, rounded(compared.difference))
        return (
            f"{context}{mine} and {its} are not told apart: ",
            *ours,
            " and ",
            *theirs,
            *unit,
            "; difference ",
            *limits,
            ".",
        )
    ratio = _inverse_ratio(compared, paired=study.pairing)
    return (f"{context}{mine} instead of {its} {verb} {noun} from ", *theirs, " to ", *ours, *unit, f"; {ratio}.")


def _direction(difference: Difference) -> str | None:
    """Whether the reference has less than the other setting, of which this is the difference; None if not shown."""
    if difference.ci_low > 0.0:
        return "lowers"
    return "raises" if difference.ci_high < 0.0 else None


def _inverse_ratio(compared: Comparison, *, paired: bool) -> str:
    """The reference divided by the other setting, in words."""
    ratio, how = compared.ratio, "paired" if paired else "not paired"
    high = None if ratio.ci_low <= 0.0 else 1.0 / ratio.ci_low
    if not ratio.estimate:
        return "ratio not known" if high is None else f"ratio at most {number(high)} (95 %, {how})"
    low = 0.0 if ratio.ci_high is None else 1.0 / ratio.ci_high
    upper = "no upper limit" if high is None else number(high)
    return f"ratio {number(1.0 / ratio.estimate)} (95 % interval {number(low)} to {upper}, {how})"


def _price(other: Setting, metric: str, clause: str) -> str:
    """What running the reference instead changes in one share of time, in words."""
    found = other.against_reference(metric).difference
    low, high = sorted((-found.ci_low, -found.ci_high))
    if _direction(found) is None:
        limits = times(-rounded(found).estimate, low, high, signed=True)[1]
        shown = f"{limits} a year" if limits else "less than 1 ms a year"
        return f"no difference is shown in the time that {clause} ({shown})"
    value, limits = times(abs(found.estimate), *sorted((abs(low), abs(high))))
    if not limits:
        return f"the time that {clause} differs by less than 1 ms a year"
    return f"{clause} for {value} a year {'more' if high > 0.0 else 'less'} ({limits})"


def _cost(setting: Setting) -> Sentence:
    """The shares of time of one setting."""
    costs = (f"{clause} for {_time(setting.estimates.estimates[metric])} a year" for metric, clause in PRICES)
    return (f"With {setting.full_name}, ", " and ".join(costs), ".")


def _time(value: Estimate) -> str:
    return f"at most {minutes(value.ci_high)}" if value.one_sided else _with_limits(value)


def _with_limits(value: Estimate | Difference, *, signed: bool = False) -> str:
    """`6.85 s (5.49 to 8.63 s)`."""
    shown, limits = times(value.estimate, value.ci_low, value.ci_high, signed=signed)
    return f"{shown} ({limits})" if limits else shown


def _brief(study: StudyPlan, group: Group) -> Sentence:
    """The answer of a group in short: the settings with their values, what would tell them apart, and the price of the
    reference against the setting beside it."""
    metric, best = metric_of(study), group.recommended
    named = group.undecided[:NAMED_AT_MOST] if best is None else (best, *group.others)[:NAMED_AT_MOST]
    begin = "not told apart: " if best is None else f"{best.name} {OBJECTIVES[study.objective].best}: "
    parts: list[str | Rate | Unit] = [begin]
    for index, setting in enumerate(named):
        parts += ["; " if index else "", f"{setting.name} ", *_value(metric, setting.estimates.estimates[metric.name])]
    needed = () if best is not None else (" ", *_trials_needed(study, group))
    return (*parts, *_unit(metric), ".", *needed, *_brief_price(group))


def _brief_price(group: Group) -> Sentence:
    if not group.others:
        return ()
    reference, other = group.reference, group.others[0]
    clause = _price(other, *PRICES[0])
    return (f" With {reference.name} instead of {other.name}, {clause}.",)


def _range(study: StudyPlan, groups: Sequence[Group]) -> Sentence:
    """A study without decisions: the range of its values over the assumptions."""
    metric = metric_of(study)
    ordered = sorted(groups, key=lambda group: group.reference.estimates.value(metric.name))
    low, high = (
        _value(metric, group.reference.estimates.estimates[metric.name]) for group in (ordered[0], ordered[-1])
    )
    noun = OBJECTIVES[study.objective].noun
    return (
        f"{noun[0].upper()}{noun[1:]}: from ", *low, f" with {ordered[0].name} to ", *high, f" with {ordered[-1].name}",
        *_unit(metric), ".",
    )  # fmt: skip


def _quantity(metric: Metric, value: Estimate) -> Sentence:
    if metric.estimator is FRACTION:
        return (*_value(metric, value), *_unit(metric))
    noun = OBJECTIVES[metric.name].noun
    if value.one_sided:
        return (f"no {noun} seen (", *_limit(metric, value), ")")
    return (*_value(metric, value), f" {noun}", *_unit(metric))


def _unit(metric: Metric) -> Sentence:
    return (" a year",) if metric.estimator is FRACTION else (" ", PER_PARTITION)


def _limit(metric: Metric, value: Estimate) -> Sentence:
    high: Sentence = (minutes(value.ci_high),) if metric.estimator is FRACTION else (Rate(value.ci_high),)
    return ("at most ", *high, *_unit(metric))


def _value(metric: Metric, value: Estimate) -> Sentence:
    """`0.5 (0.4 to 0.6)`; `none seen (at most 0.03)`."""
    if metric.estimator is FRACTION:
        if value.one_sided:
            return (f"none seen (at most {minutes(value.ci_high)})",)
        return (_with_limits(value),)
    if value.one_sided:
        return ("none seen (at most ", Rate(value.ci_high), ")")
    return (Rate(value.estimate), " (", Rate(value.ci_low), " to ", Rate(value.ci_high), ")")


def _difference(metric: Metric, found: Difference) -> Sentence:
    if metric.estimator is FRACTION:
        return (_with_limits(found, signed=True),)
    estimate, low, high = (Rate(value, signed=True) for value in (found.estimate, found.ci_low, found.ci_high))
    return (estimate, " (", low, " to ", high, ")")
