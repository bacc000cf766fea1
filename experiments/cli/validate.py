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
    from experiments.studies.theory.validation import Comparison


def validate_study(
    cells: Annotated[
        Path | None, option("FILE", "A list of cells to compare instead of the built-in ones (YAML).", "--cells")
    ] = None,
    jobs: Annotated[
        int | None, option("N", "Processes that run trials; as many as there are processors by default.", "--jobs")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the simulation with the Markov model of each cell: both values and the z-score of their difference."""
    from experiments.studies.theory.cells import default_cells, load_cells, usable_processors
    from experiments.studies.theory.validation import left_out, validate
    from experiments.support.errors import InputError

    if jobs is not None and jobs < 1:
        raise InputError("--jobs", "", jobs, "a whole number from 1")
    chosen = default_cells() if cells is None else load_cells(cells)
    with progress("isray study") as shown:
        found = validate(
            chosen, jobs or usable_processors(), lambda done, total: shown.show("validate", done, total), _doubt
        )
    for index, cell in enumerate(chosen if cells is not None else []):
        for line in left_out(cell, {item.metric for item in found if item.cell == cell.given}):
            typer.echo(f"isray: cells[{index}]: {line}", err=True)
    print_result(as_json, [asdict(item) for item in found], _print, found)
    fail_if([item for item in found if not item.agrees])


def _doubt(item: Comparison) -> None:
    from experiments.studies.report.words import cell_name

    what = f"{cell_name(item.cell)}, {item.metric}: z = {item.z:+.2f} in {item.trials} trials"
    typer.echo(f"isray: {what}; the cell is repeated with {2 * item.trials} others", err=True)


def _print(found: Sequence[Comparison]) -> None:
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
