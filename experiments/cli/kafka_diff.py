"""`isray kafka diff`: what changed between two releases of Kafka, as rules.

Exit code 1 where a recorded answer, or a real Kafka's course, differs and nothing declared explains it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.output import Json, fail, fail_if, option, print_result
from experiments.support.errors import InputError
from experiments.support.releases.installed import exact_release, installed_release, recorder_jars
from experiments.support.releases.jdk import jdk
from protocol.kafka_release import RELEASE_CHANGES
from protocol.kafka_rules import KAFKA_RULES

if TYPE_CHECKING:
    from experiments.compare.comparison import Comparison
    from experiments.compare.releases import Rows
    from experiments.scenarios.model import Scenario

SEED = 20261201
Release = Annotated[str, typer.Argument(help="An exact release, such as 4.3.1.")]


def diff(
    old: Release,
    new: Release,
    rows: Annotated[int, option("M", "Rows of each kind that the recorder asks both.", min=1)] = 200,
    seed: Annotated[int, option("N", "The seed of the rows, and of the first drawn scenario.", min=0)] = SEED,
    draw: Annotated[int, option("N", "Scenarios to draw in search of the smallest one of each change.", min=0)] = 200,
    trials: Annotated[int, option("N", "Years of a partition in the study.", min=2)] = 50,
    real: Annotated[
        int, option("N", "Run the smallest and N drawn scenarios on a real Kafka of both releases, too.", min=0)
    ] = 0,
    out: Annotated[Path, option("DIR", "Where the smallest scenarios are saved.")] = Path("out/kafka-diff"),
    as_json: Json = False,
) -> None:
    """Record both releases' controllers, run drawn scenarios and a study under both, and print which rules changed,
    with the smallest scenario of each. Needs a JDK 17 and Maven Central."""
    from experiments.compare.releases import drawn_changes, study_answers
    from experiments.compare.report import conclusions
    from experiments.compare.smallest import save

    for release in (old, new) if real else ():
        installed_release(release, os.environ, "--real")
    found = recorded_rows(old, new, seed, rows)
    shown: list[dict[str, object]] = []
    small: list[Scenario] = []
    for name, number, scenario, comparison in drawn_changes(old, new, range(seed, seed + draw)):
        path = out / f"{name}.yaml"
        save(scenario, path)
        first = comparison.first
        assert first is not None
        steps = [step.text for step in scenario.steps]
        shown.append({"rule": name, "seed": number, "scenario": str(path), "steps": steps, "first": first.field})
        small.append(scenario)
    comparisons = _on_real_brokers(old, new, small, range(seed, seed + real), out) if real else []
    answers = study_answers(old, new, trials)
    unexplained = sum(len(it.unexplained) for it in found) + sum(len(it.unexplained) for it in comparisons)
    document = {
        "releases": [old, new],
        "rows": [{name: getattr(it, name) for name in ("kind", "rows", "differing", "unexplained")} for it in found],
        "rules": _rule_counts(found),
        "scenarios": shown,
        "real": [{"scenario": it.scenario.name, "conclusions": [*conclusions(it)]} for it in comparisons],
        "study": [asdict(it) | {"words": it.words} for it in answers],
        "unexplained": unexplained,
    }
    print_result(as_json, document, _print, document)
    fail_if(unexplained)


def _on_real_brokers(old: str, new: str, small: list[Scenario], seeds: Iterable[int], out: Path) -> list[Comparison]:
    """These scenarios and the drawn ones on a real Kafka of both releases; where nothing explains a difference the
    smallest scenario with it is saved.
    """
    from experiments.compare.comparison import compared_twice
    from experiments.compare.draw import drawn
    from experiments.compare.smallest import save, smallest_of
    from experiments.compare.worlds import KAFKA, World

    found = []
    for scenario in (*small, *map(drawn, seeds)):
        comparison = compared_twice(scenario, [World(KAFKA, release) for release in (old, new)])
        if comparison.unexplained:
            save(smallest_of(comparison), out / f"{scenario.name}.yaml")
        found.append(comparison)
    return found


def recorded_rows(old: str, new: str, seed: int, rows: int) -> list[Rows]:
    """The recorded rows of two exact releases, `old` before `new`, by kind. InputError for other releases, and without
    a JDK or Maven Central; ends the command where the recorder fails.
    """
    from experiments.compare.releases import compared_rows
    from experiments.conformance.recorder.record import KINDS, RecorderError, recorded

    for release, argument in ((old, "OLD"), (new, "NEW")):
        exact_release(release, argument)
    if _numbers(old) >= _numbers(new):
        raise InputError("NEW", "", new, f"a release after {old}")
    tools = jdk(os.environ, "javac")
    jars = {release: recorder_jars(release) for release in (old, new)}
    found = []
    for kind in KINDS:
        try:
            lines = [recorded(it, kind, seed, rows, jars[it], tools).splitlines()[1:] for it in (old, new)]
        except RecorderError as error:
            fail(f"isray: the recorder failed: {error}")
        found.append(compared_rows(kind, (old, lines[0]), (new, lines[1])))
    return found


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def _rule_counts(found: list[Rows]) -> dict[str, dict[str, int]]:
    """By rule, the rows of each kind that are attributed to it."""
    counts: dict[str, dict[str, int]] = {}
    for kind in found:
        for name, count in kind.rules.items():
            counts.setdefault(name, {})[kind.kind] = count
    return counts


def _print(found: Mapping[str, Any]) -> None:
    typer.echo(f"Kafka {' and '.join(found['releases'])}")
    scenarios = {it["rule"]: it for it in found["scenarios"]}
    for name in dict.fromkeys((*found["rules"], *scenarios)):
        typer.echo(f"rule {name}: {_in_words(name)}")
        rows = ", ".join(f"{count} of {kind}" for kind, count in found["rules"].get(name, {}).items())
        typer.echo(f"  recorded rows: {rows or 'none'}")
        if (it := scenarios.get(name)) is not None:
            typer.echo(f"  smallest scenario: {it['scenario']} (seed {it['seed']}), first difference in {it['first']}")
            typer.echo("\n".join(f"    {step}" for step in it["steps"]))
    if not found["rules"] and not scenarios:
        typer.echo("no rule changed, as far as these rows and scenarios go")
    for it in found["rows"]:
        typer.echo(
            f"{it['kind']}: {it['differing']} of {it['rows']} rows differ, unexplained: {len(it['unexplained'])}"
        )
    for it in found["real"]:
        typer.echo(f"{it['scenario']} on a real Kafka: {'; '.join(it['conclusions'])}")
    for it in found["study"]:
        limits = f"difference {it['low']:.4g} to {it['high']:.4g}"
        typer.echo(f"study, {it['metric']}: {it['old']:.4g}, then {it['new']:.4g} ({limits}): {it['words']}")
    typer.echo(f"{found['unexplained']} unexplained")


def _in_words(name: str) -> str:
    """What a rule says, and since when or in which releases."""
    for change in RELEASE_CHANGES:
        if change.name == name:
            return f"since {change.first}: {change.since} Before: {change.before} ({change.source})"
    rule = KAFKA_RULES[name]
    return f"{rule.kafka} ({rule.where})"
