"""`isray play`: a simulated cluster that a local web page steers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.output import flag, option
from experiments.support.errors import InputError
from experiments.support.shipped import SCENARIOS, file_or_shipped


def play(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A scenario file, or the name of a shipped one, to play step by step."),
    ] = None,
    seed: Annotated[int, option("N", "Seed of everything random.", min=0)] = 0,
    lesson: Annotated[str | None, option("NAME", "Begin with this lesson.")] = None,
    lessons: Annotated[bool, flag("--lessons", "Print the names and titles of the lessons, and end.")] = False,
    port: Annotated[int, option("N", "Port on 127.0.0.1; 0: any that is free.", min=0, max=65_535)] = 0,
) -> None:
    """Steer a simulated cluster by hand, on a local web page, freely or in guided lessons."""
    from experiments.play.lessons.model import lessons as all_lessons
    from experiments.play.server import PlayServer
    from experiments.play.session import DEFAULT, SimWorld
    from experiments.scenarios.loader import load_scenario
    from experiments.support.yaml_input import read_yaml_mapping

    if lessons:
        width = max(map(len, all_lessons()))
        for name, found in all_lessons().items():
            typer.echo(f"{name:<{width}}  {found.title}")
        return
    if file is not None and lesson is not None:
        raise InputError("--lesson", "", f"{lesson}, and the file {file}", "a file or a lesson")
    if lesson is not None:
        world = SimWorld.of_lesson(lesson, seed)
    elif file is None:
        world = SimWorld(DEFAULT, seed=seed)
    else:
        path = file_or_shipped(file, SCENARIOS, "a scenario file")
        load_scenario(path)
        world = SimWorld.of(read_yaml_mapping(path, "a scenario file"), seed, str(path))
    server = PlayServer(world, port)
    typer.echo(f"Open {server.url} (Ctrl-C ends it)")
    server.serve()
