"""`isray study validate`: the simulation against the Markov models; docs/theory.md.

Exit code 0 if every result lies within 99.9 % of the model's value, 1 otherwise, 2 for wrong input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from experiments.cli.output import Json, fail_if, option, print_result, wide_console
from experiments.support.progress import progress

if TYPE_CHECKING:
    from experiments.studies.theory.coverage import Coverage
    from experiments.studies.theory.validation import CellComparison


def validate_study(
    cells: Annotated[
        Path | None, option("FILE", "A list of cells to compare instead of the built-in ones (YAML).", "--cells")
    ] = None,
    jobs: Annotated[
        int | None, option("N", "Processes that run trials; as many as there are processors by default.", "--jobs")
    ] = None,
    coverage: Annotated[
        int | None,
        option(
            "N",
            "Instead: of N studies of each failure model by importance sampling, how many intervals hold the loss rate "
            "that is known by hand.",
            "--coverage",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the simulation with the Markov model of each cell: both values and the z-score of their difference."""
    if coverage is not None:
        _validate_coverage(coverage, cells, jobs, as_json)
        return
    from experiments.studies.theory.cells import default_cells, load_cells
    from experiments.studies.theory.validation import left_out, validate
    from experiments.support.errors import InputError

    if jobs is not None and jobs < 1:
        raise InputError("--jobs", "", jobs, "a whole number from 1")
    chosen = default_cells() if cells is None else load_cells(cells)
    with progress("isray study") as shown:
        found = validate(chosen, jobs, lambda done, total: shown.show("validate", done, total), _doubt)
    for index, cell in enumerate(chosen if cells is not None else []):
        for line in left_out(cell, {item.metric for item in found if item.cell == cell.given}):
            typer.echo(f"isray: cells[{index}]: {line}", err=True)
    print_result(as_json, [asdict(item) for item in found], _print, found)
    fail_if([item for item in found if not item.agrees])


def _validate_coverage(studies: int, cells: Path | None, jobs: int | None, as_json: bool) -> None:
    """`--coverage`: exit code 1 if an interval of 95 % holds the value in fewer studies than chance explains."""
    from experiments.studies.theory.coverage import cells as covered_cells
    from experiments.studies.theory.coverage import coverage
    from experiments.support.errors import InputError

    if studies < 1:
        raise InputError("--coverage", "", studies, "a whole number from 1")
    if cells is not None:
        raise InputError("--coverage", "", "--cells as well", "one of the two: the failure models are built in")
    found = []
    total = len(list(covered_cells()))
    with progress("isray study") as shown:
        for item in coverage(studies, jobs):
            found.append(item)
            shown.show("coverage", len(found), total)
    print_result(as_json, [asdict(item) for item in found], _print_coverage, found)
    fail_if([item for item in found if not item.agrees])


def _print_coverage(found: Sequence[Coverage]) -> None:
    table = Table("failure model", "catch-up", title="Coverage of 95 % intervals, in loss events per partition-year")
    for heading in ("by hand", "mean of the studies", "intervals that hold it"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in found:
        held = f"{item.covered} of {item.studies}"
        caught_up = "yes" if item.catch_up else "immediate"
        table.add_row(item.model, caught_up, f"{item.by_hand:.4g}", f"{item.mean:.4g}", held)
    wide_console().print(table)


def _doubt(item: CellComparison) -> None:
    from experiments.studies.report.words import cell_name

    what = f"{cell_name(item.cell)}, {item.metric}: z = {item.z:+.2f} in {item.trials} trials"
    typer.echo(f"isray: {what}; the cell is repeated with {2 * item.trials} others", err=True)


def _print(found: Sequence[CellComparison]) -> None:
    from experiments.studies.report.words import cell_name

    table = Table("cell", "metric", title="Simulation and Markov model", caption="rates per partition-year")
    for heading in ("simulated", "95 % interval", "Markov", "z", "trials", "events"):
        table.add_column(heading, justify="right", no_wrap=True)
    before: object = None
    for item in found:
        name = "" if item.cell == before else cell_name(item.cell)
        before = item.cell
        z = f"{item.z:+.2f}" if item.agrees else f"[red]{item.z:+.2f}[/]"
        interval = f"{item.ci_low:.4g} – {item.ci_high:.4g}"
        numbers = (f"{item.simulated:.4g}", interval, f"{item.markov:.4g}", z, str(item.trials), str(item.events))
        table.add_row(name, item.metric, *numbers)
    wide_console().print(table)
    beyond = sum(not item.agrees for item in found)
    covered = sum(item.ci_low <= item.markov <= item.ci_high for item in found)
    typer.echo(
        f"{covered} of {len(found)} intervals (95 %) cover the Markov value; {beyond} differ by more than 99.9 %"
    )
