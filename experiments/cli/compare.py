"""`isray compare`: the same scenario in several worlds, state by state, side by side.

Exit code 1 where a world differs and neither a declared departure nor a change between releases explains it. Ray is
imported only where the engine ray is named.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from experiments.cli.output import Json, fail_if, option, print_json, table_of
from experiments.cli.parse import release_named
from experiments.compare.worlds import ENGINES, KAFKA, RAY, World
from experiments.support.errors import InputError, MissingInput
from experiments.support.releases.installed import installed_release
from experiments.support.shipped import SCENARIOS, file_or_shipped

if TYPE_CHECKING:
    from experiments.compare.comparison import Comparison
    from experiments.scenarios.model import Scenario

COLUMN = 44
"""The least columns of a terminal that a world gets."""
Releases = Annotated[
    str | None, option("R,...", "Exact releases of Kafka, whose rules hold on the other engines.", "--kafka")
]


def compare(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Scenario files (YAML), or names of shipped ones.")
    ] = None,
    engines: Annotated[
        str, option("NAME,...", f"The engines: {', '.join(ENGINES)}; sim is the reference, named or not.")
    ] = "sim,ray",
    kafka: Releases = None,
    draw: Annotated[int, option("N", "Also compare N scenarios that are drawn from the swarm of the fuzz.", min=0)] = 0,
    seed: Annotated[int, option("S", "The seed of the first drawn scenario; the next one has the next.", min=0)] = 0,
    out: Annotated[
        Path, option("DIR", "Where the smallest scenario of each difference of a drawn one is saved.")
    ] = Path("out/compare"),
    as_json: Json = False,
) -> None:
    """Run scenarios in several worlds, compare the settled state after each step, and explain each difference."""
    from experiments.compare.comparison import compared_twice
    from experiments.compare.draw import drawn
    from experiments.compare.report import document
    from experiments.compare.smallest import save, shrunk
    from experiments.compare.worlds import KeptWorlds, require_world
    from experiments.scenarios.loader import load_scenario

    if not files and not draw:
        raise MissingInput("FILE", "isray compare last-replica-standing, or isray compare --draw 10")
    worlds = worlds_named(engines, kafka)
    named = [load_scenario(file_or_shipped(file, SCENARIOS, "a scenario file")) for file in files or ()]
    scenarios = [*named, *sorted((drawn(seed + number) for number in range(draw)), key=_nodes)]
    for scenario in scenarios:
        for world in worlds:
            require_world(scenario, world)
    documents, unexplained = [], 0
    with ready(worlds), closing(KeptWorlds()) as kept:
        for index, scenario in enumerate(scenarios):
            found = compared_twice(scenario, worlds, kept.course_in)
            saved: dict[str, object] = {}
            if found.first is not None and index >= len(named):
                path = out / f"{scenario.name}.yaml"
                save(scenario, path)  # to be there, too, if the search for a smaller one is interrupted
                found = shrunk(found, worlds, kept.course_in)
                save(found.scenario, path)
                saved = {"saved": str(path), "steps_before": len(scenario.steps)}
            unexplained += len(found.unexplained)
            documents.append(document(found) | saved)
            if not as_json:
                print_comparison(found, saved)
    if as_json:
        print_json({"scenarios": documents, "unexplained": unexplained})
    else:
        typer.echo(f"{len(scenarios)} scenarios in {len(worlds)} worlds: {unexplained} unexplained")
    fail_if(unexplained)


def _nodes(scenario: Scenario) -> tuple[int, int]:
    """How many nodes a scenario has: a real Kafka that has started serves all scenarios with the same."""
    return scenario.cluster.brokers, scenario.cluster.controllers


def worlds_named(engines: str, kafka: str | None) -> list[World]:
    """The worlds of the options `--engines` and `--kafka`, by release and then by engine."""
    names = list(dict.fromkeys(name.strip() for name in engines.split(",")))
    for name in names:
        if name not in ENGINES:
            raise InputError("--engines", "", repr(name), f"one or more of {', '.join(ENGINES)}, separated by commas")
    default = installed_release(None, os.environ, "--kafka").release if KAFKA in names else ""
    releases = [default] if kafka is None else list(dict.fromkeys(name.strip() for name in kafka.split(",")))
    for release in releases if kafka is not None else ():
        release_named(release, "--kafka")
    return [World(engine, release) for release in releases for engine in ENGINES if engine in names]


def ready(worlds: Sequence[World]) -> AbstractContextManager[object]:
    """What all runs in these worlds share: one private Ray."""
    if all(world.engine != RAY for world in worlds):
        return nullcontext()
    from experiments.engines.ray.session import expect_kills, ray_session, stay_on_loopback

    expect_kills()
    stay_on_loopback()
    return ray_session()


def print_comparison(found: Comparison, saved: dict[str, object]) -> None:
    """Prints a table of steps and worlds, and what explains the differences."""
    from experiments.compare.report import conclusions, rows

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=COLUMN * (len(found.worlds) + 1))
    columns = ("", "", found.scenario.name, *(world.name for world in found.worlds))
    console.print(table_of(columns, ([escape(cell) for cell in row] for row in rows(found)), lines=True))
    for line in conclusions(found):
        console.print(escape(line))
    if saved:
        console.print(f"the smallest scenario, of {saved['steps_before']} steps: {saved['saved']}")
