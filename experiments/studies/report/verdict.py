"""The answer to a study's question, in words that claim what the trials show and nothing more.

Four kinds of answer. *Decided*: one setting is shown to be the best under its assumptions (`estimation/selection.py`).
*Equal*: all that may be the best meet the same events (`alike.py`), so that more trials would not separate them.
*Undecided*: several settings may be the best; none of them is recommended, since a small study would else recommend
whichever is available longest. *Described*: the study has one setting and nothing to choose.

Every statement about two settings rests on the interval of their difference: "more" or "less" is said where it excludes
0, "equivalent" where the study names a margin and the interval of the ratio lies within it. Where weights degenerate
(`estimation/moments.py`) there is an upper limit and no estimate, and nothing is said about a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.studies.design.estimator import rough_loss_rate
from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.moments import Estimate
from experiments.studies.estimation.pairs import Comparison, Difference
from experiments.studies.report.alike import alike, are_alike, caution, changed_in, reasons, separators
from experiments.studies.report.effects import effects as effects_of
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.targets import asked, growth_sentence, targets_brief, targets_headline
from experiments.studies.report.tradeoffs import PRICES, price, prices
from experiments.studies.report.words import (
    PER_PARTITION,
    Rate,
    Sentence,
    Unit,
    capitalised,
    cell_name,
    counted,
    in_words,
    listed,
    minutes,
    number,
    rounded,
    signed_number,
    times,
)
from experiments.studies.trace.metrics import BY_NAME, CLUSTER_RATE, FRACTION, RATE, Metric
from protocol.kafka_release import GENERATION_RELEASES

Kind = Literal["decided", "equal", "undecided", "described"]
NAMED_AT_MOST = 4
EFFECTS_AT_MOST = 3
MANY_TRIALS = 10_000_000
LOSSES = ("loss_rate", "acknowledged_loss_rate", "lost_records_per_year")


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
    return _judge(study, groups, verdicts) if study.targets is None else _judge_targets(groups)


def _judge_targets(groups: Sequence[Group]) -> Verdict:
    """The answers to the targets under several assumptions."""
    by_answer: dict[str, list[str]] = {}
    for group in groups:
        by_answer.setdefault(targets_brief(group), []).append(group.name)
    is_decided = all(group.cheapest is not None for group in groups)
    kind: Kind = "decided" if is_decided else "undecided"
    answers = "; ".join(f"{answer} with {listed(names, 'or')}" for answer, names in by_answer.items())
    headline = f"To meet {asked(groups[0])}, it depends on the assumptions: {answers}."
    if len(by_answer) == 1:
        answer, under = next(iter(by_answer)), f"under each of the {len(groups)} assumptions"
        headline = f"To meet {asked(groups[0])}, {answer} {under}."
    lines: list[Sentence] = []
    for group in groups[:NAMED_AT_MOST]:
        grown = "" if group.cheapest is None else growth_sentence(group.cheapest)
        lines.append((f"{group.name}: {targets_headline(group)}{f' {grown}' * bool(grown)}",))
    return Verdict(kind, (headline,), tuple(lines))


def _judge(study: StudyPlan, groups: Sequence[Group], verdicts: Sequence[Verdict]) -> Verdict:
    """The answer under several assumptions, without targets."""
    kinds = {verdict.kind for verdict in verdicts}
    if kinds == {"described"}:
        return Verdict("described", _range(study, groups), ())
    lines: tuple[Sentence, ...] = tuple((f"{group.name}: ", *_brief(study, group)) for group in groups)
    if len(groups) > NAMED_AT_MOST:
        lines = (("The answer under each of them is in the table of assumptions below.",),)
    metric, best = BY_NAME[study.objective], groups[0].recommended
    if kinds == {"equal"}:
        headline = f"{_equal_under_all(study, groups)} under any of the {len(groups)} assumptions."
        why = {_why_equal(_equal(study, group)) for group in groups}
        return Verdict("equal", (headline,), (*lines, *(next(iter(why)) if len(why) == 1 else ())))
    if kinds == {"undecided"}:
        headline = f"This study cannot tell which setting {metric.best}, under any of its {len(groups)} assumptions."
        return Verdict("undecided", (headline,), lines)
    names = {group.recommended.name for group in groups if group.recommended is not None}
    if len(names) == 1 and kinds == {"decided"} and best is not None:
        headline = f"{_advice(metric, best)} under each of the {len(groups)} assumptions."
    else:
        headline = f"It depends on the assumptions: {_listed_by_assumption(study, groups)}."
    return Verdict("decided" if kinds == {"decided"} else "undecided", (headline,), lines)


def _advice(metric: Metric, best: Setting) -> str:
    """`Run X: it loses least often`; of a setting that no release has, that it loses least often, and that."""
    generation = best.parameters.generation
    if GENERATION_RELEASES[generation].installable:
        return f"Run {best.name}: it {metric.best}"
    return f"No release of Apache Kafka has {generation}, but of these settings {best.name} {metric.best}"


def _listed_by_assumption(study: StudyPlan, groups: Sequence[Group]) -> str:
    by_answer: dict[str, list[str]] = {}
    for group in groups:
        best, same = group.recommended, _equal(study, group)
        answer = ""
        if best is not None:
            is_released = GENERATION_RELEASES[best.parameters.generation].installable
            answer = f"run {best.name}{'' if is_released else ' (in no release of Apache Kafka)'}"
        elif same:
            answer = f"{listed([setting.name for setting in same])} do not differ"
        by_answer.setdefault(answer, []).append(group.name)
    answers = sorted(by_answer.items())
    return "; ".join(f"{answer or 'the study cannot tell'} with {listed(names, 'or')}" for answer, names in answers)


def _equal(study: StudyPlan, group: Group) -> tuple[Setting, ...]:
    """The settings that may be the best, if all of them meet the same events; empty otherwise."""
    same = alike(group, study.objective)
    return same if same and [each.index for each in same] == [each.index for each in group.undecided] else ()


def _equal_under_all(study: StudyPlan, groups: Sequence[Group]) -> str:
    names = {tuple(setting.name for setting in _equal(study, group)) for group in groups}
    subject = listed(next(iter(names))) if len(names) == 1 else "The settings that may be the best"
    return f"{subject} do not differ in {BY_NAME[study.objective].noun}: the same failures cause them"


def _why_equal(same: tuple[Setting, ...]) -> tuple[Sentence, ...]:
    return tuple((words,) for words in (reasons(same), separators(same), caution(same)) if words)


def judge_group(study: StudyPlan, group: Group) -> Verdict:
    """The answer under the assumptions of one group; with targets, first that to them."""
    found = _compare_settings(study, group)
    if study.targets is None:
        return found
    grown = "" if group.cheapest is None else growth_sentence(group.cheapest)
    kind: Kind = "undecided" if group.cheapest is None else "decided"
    own: tuple[Sentence, ...] = ((grown,),) if grown else ()
    return Verdict(kind, (targets_headline(group),), (*own, found.headline, *found.sentences))


def _compare_settings(study: StudyPlan, group: Group) -> Verdict:
    """Which setting is the best by the objective."""
    metric = BY_NAME[study.objective]
    if len(group.settings) == 1:
        (only,) = group.settings
        return Verdict("described", (f"{only.full_name}: ", *_quantity(metric, only), "."), (_cost(only),))
    best, same = group.recommended, alike(group, metric.name)
    effects = (*_main_effects(study, group), *_effects(study, group))
    if best is not None:
        headline: Sentence = (f"{_advice(metric, best)}: ", *_quantity(metric, best), ".", *_shown_price(study, group))
        release = GENERATION_RELEASES[best.parameters.generation].sentence
        return Verdict("decided", headline, ((release,), *effects, _cost(best)))
    if _equal(study, group):
        headline = (*_equality(metric, same), _ruled_out("The study", group))
        return Verdict("equal", headline, (*_why_equal(same), *effects))
    headline = (f"{_undecided(metric, group)} ", *_trials_needed(study, group))
    parts = (_equality(metric, same), *_why_equal(same)) if same else ()
    return Verdict("undecided", headline, (*parts, *effects))


def _equality(metric: Metric, same: tuple[Setting, ...]) -> Sentence:
    """That settings meet the same events, and how many these are."""
    found = same[0].estimates.estimates[metric.name]
    weight = "" if same[0].estimates.estimator == "plain" else ", with the same weight"
    names = listed([setting.name for setting in same])
    begin = f"{names} do not differ in {metric.noun}: the same failures cause them, and all {found.events:,} that were "
    begin += f"seen are in the same trials of each{weight}. With each of them: "
    return (begin, *_value(metric, found), *_unit(metric), ".")


def _ruled_out(subject: str, group: Group) -> str:
    """` It rules out A and B.`; empty for none, and for many."""
    names = [setting.name for setting in group.settings if setting not in group.undecided]
    return f" {subject} rules out {listed(names)}." if 0 < len(names) <= NAMED_AT_MOST else ""


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
    """What the reference costs against the second best setting, if the study shows it; empty otherwise."""
    second = min(group.others, key=lambda setting: setting.estimates.value(study.objective))
    for metric, clause in PRICES:
        found = price(second, metric, clause)
        if metric != study.objective and found.kind == "more" and found.size:
            return (f" The price: {found}, against {second.name}.",)
    return ()


def _undecided(metric: Metric, group: Group) -> str:
    names = [setting.name for setting in group.undecided]
    settings, is_all = counted(len(names), "setting"), len(names) == len(group.settings)
    which = f"which of {settings}" if len(names) > NAMED_AT_MOST else f"whether {listed(names, 'or')}"
    which = f"which of its {settings}" if is_all else which
    return f"This study cannot tell {which} {metric.best}.{_ruled_out('It', group)}"


def _trials_needed(study: StudyPlan, group: Group) -> Sentence:
    """How many trials would tell the settings apart which the study does not, as far as the trials show that."""
    metric = BY_NAME[study.objective]
    values = [setting.estimates.estimates[metric.name] for setting in group.undecided]
    needed = [found for setting in group.undecided if (found := setting.estimates.trials_to_distinguish) is not None]
    trials = max(setting.estimates.trials for setting in group.undecided)
    unreliable = [setting.name for setting in group.undecided if setting.estimates.estimates[metric.name].degenerate]
    if unreliable:
        return (
            f"The weights of the trials of {listed(unreliable)} degenerate: there is an upper limit and no estimate, "
            "so no number of trials follows.",
        )
    if all(value.one_sided for value in values):
        years = min(setting.estimates.partition_years for setting in group.undecided)
        limit = max(values, key=lambda value: value.ci_high)
        rough = _until_one_is_seen(study, group)
        return (f"None was seen in {number(years)} partition-years of each (", *_limit(metric, limit), f"){rough}.")
    if not needed:
        return (_too_few_alike(metric, group),)
    if max(needed) > MANY_TRIALS:
        return (
            f"The estimates are so close that even {MANY_TRIALS:,} trials of each would not tell; it has {trials:,}.",
        )
    return (f"About {max(needed):,} trials of each would tell, if the estimates are right; it has {trials:,}.",)


def _too_few_alike(metric: Metric, group: Group) -> str:
    """Why equal estimates give no number of trials: the few events that were seen may be the same by chance."""
    others = [setting for setting in group.undecided if setting is not group.reference]
    if others and all(setting.against_reference(metric.name).identical for setting in others):
        seen = group.reference.estimates.estimates[metric.name].events
        return (
            f"All that was seen ({counted(seen, 'event')}) is the same in each, which is too little to say that they "
            "do not differ; more trials would."
        )
    return "The estimates are equal, so they do not say how many trials would tell the settings apart."


def _until_one_is_seen(study: StudyPlan, group: Group) -> str:
    """How many trials are needed to see a loss, by the rough rate of coinciding failures; empty for other metrics."""
    settings = [setting for setting in group.undecided if setting.parameters.acks == "all"]
    if study.objective not in LOSSES or not settings:
        return ""
    expected = max(rough_loss_rate(each.parameters) * each.estimates.partition_years for each in settings)
    if expected <= 0.0:
        return "; failures as these allow none, by a rough count of those that coincide"
    is_some = expected >= 0.5
    about = f"about {number(float(f'{expected if is_some else 1.0 / expected:.1e}'))}"
    if is_some:
        return f"; a rough count of failures that coincide expects {about} in that time"
    return f"; by a rough count of failures that coincide, {about} times as many trials are needed to see one"


def _main_effects(study: StudyPlan, group: Group) -> Iterator[Sentence]:
    """What a decision does in every combination of the others, whether or not a setting is shown to be the best."""
    main = [each.sentence for each in effects_of(study, group) if each.is_main]
    if main:
        yield (" ".join(main[:EFFECTS_AT_MOST]),)


def _effects(study: StudyPlan, group: Group) -> Iterator[Sentence]:
    """The effect of the reference against settings that differ in one decision (else the first), and its price."""
    reference = group.reference
    near = [other for other in group.others if len(changed_in((reference, other))) == 1]
    for other in (near or group.others)[:EFFECTS_AT_MOST]:
        yield (*_effect(study, reference, other), f" {prices(other)}")


def _effect(study: StudyPlan, reference: Setting, other: Setting) -> Sentence:
    """`With min ISR 2, kip-966 instead of kip-497 lowers loss events from ... to ...: ratio ...`."""
    metric = BY_NAME[study.objective]
    changed = changed_in((reference, other))
    shared = {name: value for name, value in reference.decided.items() if name not in changed}
    context = f"With {cell_name(shared)}, " if shared else ""
    mine, its = (cell_name({name: each.decided[name] for name in changed}) for each in (reference, other))
    ours, theirs = (_value(metric, each.estimates.estimates[metric.name]) for each in (reference, other))
    compared = other.against_reference(metric.name)
    difference = compared.difference
    verb = "lowers" if difference.ci_low > 0.0 else "raises" if difference.ci_high < 0.0 else None
    unit = _unit(metric)
    if compared.degenerate:
        begin = f"{context}{mine} and {its} cannot be compared, as weights degenerate: "
        return (begin, *ours, " and ", *theirs, *unit, ".")
    if are_alike(reference, other, metric.name):
        return (f"{context}{mine} and {its} have the same {metric.noun.removeprefix('the ')}: ", *ours, *unit, ".")
    if verb is None:
        limits = _interval(metric, rounded(difference), signed=True)
        begin = f"{context}{mine} and {its} are not told apart: "
        return (begin, *ours, " and ", *theirs, *unit, "; difference ", *limits, ".")
    ratio = _inverse_ratio(compared, paired=study.pairing)
    begin = f"{context}{mine} instead of {its} {verb} {metric.noun} from "
    return (begin, *theirs, " to ", *ours, *unit, f"; {ratio}.")


def _inverse_ratio(compared: Comparison, *, paired: bool) -> str:
    """The reference divided by the other setting, in words."""
    ratio, how = compared.ratio, "paired" if paired else "not paired"
    high = None if ratio.ci_low <= 0.0 else 1.0 / ratio.ci_low
    if not ratio.estimate:
        return "ratio not known" if high is None else f"ratio at most {number(high)} (95 %, {how})"
    low = 0.0 if ratio.ci_high is None else 1.0 / ratio.ci_high
    upper = "no upper limit" if high is None else number(high)
    return f"ratio {number(1.0 / ratio.estimate)} (95 % interval {number(low)} to {upper}, {how})"


def _cost(setting: Setting) -> Sentence:
    found = [(clause, setting.estimates.estimates[metric]) for metric, clause in PRICES]
    shown = (f"at most {minutes(value.ci_high)}" if value.is_bound else _with_limits(value) for _, value in found)
    costs = [f"{clause} for {time} a year" for (clause, _), time in zip(found, shown, strict=True)]
    return (f"With {setting.full_name}, {listed(costs)}.",)


def _with_limits(value: Estimate | Difference, *, signed: bool = False) -> str:
    """`6.85 s (5.49 to 8.63 s)`."""
    shown, limits = times(value.estimate, value.ci_low, value.ci_high, signed=signed)
    return f"{shown} ({limits})" if limits else shown


def _brief(study: StudyPlan, group: Group) -> Sentence:
    """The answer of a group in short: settings with values, what would tell them apart, the reference's price."""
    metric, best = BY_NAME[study.objective], group.recommended
    named = group.undecided[:NAMED_AT_MOST] if best is None else (best, *group.others)[:NAMED_AT_MOST]
    begin = "not told apart: " if best is None else f"{best.name} {metric.best}: "
    if _equal(study, group):
        begin = "no difference, as the same failures cause them: "
    parts: list[str | Rate | Unit] = [begin]
    for index, setting in enumerate(named):
        parts += ["; " if index else "", f"{setting.name} ", *_value(metric, setting.estimates.estimates[metric.name])]
    parts += [*_unit(metric), "."]
    if best is None and not _equal(study, group):
        parts += [" ", *_trials_needed(study, group)]
    for other in group.others[:1]:
        parts.append(f" With {group.reference.name} instead of {other.name}, {price(other, *PRICES[0])}.")
    return tuple(parts)


def _range(study: StudyPlan, groups: Sequence[Group]) -> Sentence:
    """A study without decisions: the range of its values over the assumptions."""
    metric = BY_NAME[study.objective]
    ordered = sorted(groups, key=lambda group: group.reference.estimates.value(metric.name))
    ends = (ordered[0], ordered[-1])
    low, high = (_value(metric, group.reference.estimates.estimates[metric.name]) for group in ends)
    begin, end = f"{capitalised(metric.noun)}: from ", f" with {ordered[-1].name}"
    return (begin, *low, f" with {ordered[0].name} to ", *high, end, *_unit(metric), ".")


def _quantity(metric: Metric, setting: Setting) -> Sentence:
    value = setting.estimates.estimates[metric.name]
    if value.degenerate:
        return (f"{metric.noun} not known, as the weights of the trials degenerate (", *_limit(metric, value), ")")
    if metric.estimator is FRACTION:
        return (*_value(metric, value), *_unit(metric))
    if value.one_sided:
        return (f"no {metric.noun} seen (", *_limit(metric, value), ")")
    return (*_value(metric, value), f" {metric.noun}", *_unit(metric))


def _unit(metric: Metric) -> Sentence:
    if metric.estimator in (FRACTION, CLUSTER_RATE):
        return (" a year",)
    return (" ", PER_PARTITION)


def _limit(metric: Metric, value: Estimate) -> Sentence:
    return ("at most ", _high(metric, value), *_unit(metric))


def _high(metric: Metric, value: Estimate) -> str | Rate:
    return Rate(value.ci_high) if metric.estimator is RATE else in_words(metric)(value.ci_high)


def _value(metric: Metric, value: Estimate) -> Sentence:
    """`0.5 (0.4 to 0.6)`; `none seen (at most 0.03)`; `not known (at most 0.03, weights degenerate)`."""
    if value.is_bound:
        begin, end = ("not known", ", weights degenerate") if value.degenerate else ("none seen", "")
        return (f"{begin} (at most ", _high(metric, value), f"{end})")
    return _interval(metric, value)


def _interval(metric: Metric, found: Estimate | Difference, *, signed: bool = False) -> Sentence:
    if metric.estimator is FRACTION:
        return (_with_limits(found, signed=signed),)
    limits = (found.estimate, found.ci_low, found.ci_high)
    if metric.estimator is CLUSTER_RATE:
        estimate, low, high = ((signed_number if signed else number)(value) for value in limits)
        return (f"{estimate} ({low} to {high})",)
    rates = [Rate(value, signed) for value in limits]
    return (rates[0], " (", rates[1], " to ", rates[2], ")")
