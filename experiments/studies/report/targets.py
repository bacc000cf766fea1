"""What a study's targets come to, in words: the setting to run, what the others miss, and how far failures may grow.

The words rest on `estimation/targets.py` alone: `meets` and `misses` are shown with 95 % confidence for all settings
and targets together, and everything else is `not shown`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.studies.design.mappings import BURST
from experiments.studies.design.study import StudyPlan
from experiments.studies.design.targets import INCIDENTS
from experiments.studies.estimation.targets import Growth, TargetAnswer
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import counted, every, every_between, listed, nines, number
from protocol.kafka_release import GENERATION_RELEASES

OTHERS_AT_MOST = 4
CAUSES_AT_MOST = 3
_PLACES = ("the first", "the second")


def target_name(found: TargetAnswer) -> str:
    """`1 incident in 20y`, `3 incidents a year`, `99.9% writable`."""
    if found.name != INCIDENTS:
        return f"{found.value} writable"
    count, _, rest = found.value.partition(" ")
    return f"{count} incident{'s' * (count != '1')} {rest}"


def asked(group: Group) -> str:
    """All targets of the study."""
    return listed([target_name(found) for found in group.settings[0].estimates.targets])


def targets_headline(group: Group) -> str:
    """The setting to run, or that none is shown to meet the targets, and what becomes of the others."""
    chosen = group.cheapest
    if chosen is None:
        begin = "No setting meets" if _all_miss(group) else "This study does not show a setting that meets"
        return f"{begin} {asked(group)}: {_others(group.settings)}."
    generation = chosen.parameters.generation
    begin = f"Run {chosen.name}: it meets {asked(group)}"
    if not GENERATION_RELEASES[generation].installable:
        begin = f"No release of Apache Kafka has {generation}, but of these settings {chosen.name} meets {asked(group)}"
    others = _others([setting for setting in group.settings if setting is not chosen])
    return f"{begin}{'; ' * bool(others)}{others}."


def _all_miss(group: Group) -> bool:
    """Whether each setting is shown to miss a target."""
    return all(any(found.verdict == "missed" for found in each.estimates.targets) for each in group.settings)


def targets_brief(group: Group) -> str:
    """`run X`, of a group among others."""
    chosen = group.cheapest
    if chosen is not None:
        is_released = GENERATION_RELEASES[chosen.parameters.generation].installable
        return f"run {chosen.name}{'' if is_released else ' (in no release of Apache Kafka)'}"
    return "no setting meets them" if _all_miss(group) else "no setting is shown to meet them"


def _others(settings: Sequence[Setting]) -> str:
    by_answer: dict[str, list[str]] = {}
    for setting in settings:
        by_answer.setdefault(_fate(setting.estimates.targets), []).append(setting.name)
    parts = [f"{listed(names)} {_plural(fate, len(names))}" for fate, names in list(by_answer.items())[:OTHERS_AT_MOST]]
    left = sum(len(names) for names in list(by_answer.values())[OTHERS_AT_MOST:])
    return "; ".join([*parts, *([f"{counted(left, 'other setting')} in the table"] if left else [])])


def _plural(fate: str, count: int) -> str:
    if count == 1:
        return fate
    return " and ".join(
        part.replace("misses", "miss").replace("meets", "meet").replace("is not", "are not")
        for part in fate.split(" and ")
    )


def _fate(found: Sequence[TargetAnswer]) -> str:
    """`misses the first and is not shown to meet the second`."""
    if all(each.verdict == "met" for each in found):
        return f"meets {'it' if len(found) == 1 else 'both'} too"
    places = _PLACES if len(found) > 1 else ("it",)
    words = {"missed": "misses", "not shown": "is not shown to meet"}
    fates = {
        verdict: [place for each, place in zip(found, places, strict=True) if each.verdict == verdict]
        for verdict in words
    }
    return " and ".join(f"{words[verdict]} {'both' if len(of) == 2 else of[0]}" for verdict, of in fates.items() if of)


def growth_sentence(chosen: Setting) -> str:
    """How many times as often the tightest causes may come, each alone, so that all targets are still shown to be met;
    empty where nothing follows."""
    least: dict[str, Growth] = {}
    for found in chosen.estimates.targets:
        for each in found.growth:
            if each.cause not in least or each.factor < least[each.cause].factor:
                least[each.cause] = each
    if not least or any(not found.growth for found in chosen.estimates.targets):
        return ""
    tightest = sorted(least.values(), key=lambda each: each.factor)[:CAUSES_AT_MOST]
    parts = [f"{_failures(each.cause)} {_factor(each)}" for each in tightest]
    causes = listed(parts, "or")
    targets = "it" if len(chosen.estimates.targets) == 1 else "them"
    return f"{chosen.name} is still shown to meet {targets} if one cause alone comes more often than assumed: {causes}."


def _factor(found: Growth) -> str:
    if found.factor == 1.0:
        return "no more often" if found.is_limit else "not known"
    return f"{'' if found.is_limit else 'at least '}{number(found.factor)} times"


def _failures(cause: str) -> str:
    """`broker` as `failures of single brokers`, `burst NAME` as `bursts (NAME)`; other causes by their names."""
    known = {"broker": "failures of single brokers", BURST: "bursts"}
    name = cause.removeprefix(f"{BURST} ")
    return known.get(cause, cause if name == cause else f"bursts ({name})")


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One setting in the table of targets: per target the answer, what was measured, and what would show it."""

    setting: Setting
    answers: tuple[tuple[str, str, str], ...]


def target_rows(study: StudyPlan, groups: Sequence[Group]) -> list[TargetRow]:
    """All settings, in the order of the study; none without targets."""
    if study.targets is None:
        return []
    settings = sorted((setting for group in groups for setting in group.settings), key=lambda setting: setting.index)
    return [
        TargetRow(
            setting, tuple((found.verdict, _measured(found), _taken(found)) for found in setting.estimates.targets)
        )
        for setting in settings
    ]


def _measured(found: TargetAnswer) -> str:
    """`1 in 52 years (1 in 31 to 90 years)`, `none seen (at most 1 in 31 years)`; `99.98 %, 1.8 h a year; ...`."""
    if found.name == INCIDENTS:
        value = every(found.estimate) if found.estimate > 0.0 else "none seen"
        return f"{value} ({every_between(found.low, found.high)})"
    if found.low <= 0.0:
        return f"at worst {nines(found.high)}"
    return f"{nines(found.estimate)}; between {nines(found.low)} and {nines(found.high)}"


def _taken(found: TargetAnswer) -> str:
    if found.verdict != "not shown":
        return ""
    if found.trials is None or found.cluster_years is None:
        return "no number of trials follows"
    return f"about {found.trials:,} trials ({number(found.cluster_years)} cluster-years) would show it"
