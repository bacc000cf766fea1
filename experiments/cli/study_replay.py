"""`isray study replay`: one trial of a study again, with the story of a loss, and its page.

Exit code 1 if the study has the trial with another trace: the code of the trial has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.cli.output import Json, fail_if, option, print_result
from experiments.cli.run_pages import Exploration, Html, document_of, show
from experiments.support.errors import InputError

if TYPE_CHECKING:
    from experiments.studies.replay.replay import Replayed

SHOWN_LINES = 60


def replay_trial(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The output directory of a study, or its URL.")],
    cell: Annotated[int, option("N", "The cell, by its place in the study, from 0 on.", min=0)],
    trial: Annotated[int, option("K", "The trial's number, from 0 on.", min=0)],
    loss: Annotated[int, option("I", "Which loss of the trial to explain, from 0 on.", min=0)] = 0,
    html: Html = None,
    compare_cell: Annotated[
        int | None,
        option("N", "Show the same trial of this cell beside it, with the first differences.", "--compare-cell", min=0),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one trial of a study again: the story of a loss, as text and as a page."""
    from experiments.studies.replay.replay import recorded_trace, replay
    from experiments.studies.sweeps.output import read_record

    record = read_record(folder)
    found = replay(record.study, cell, trial, loss)
    other = None
    if compare_cell is not None:
        if compare_cell == cell:
            raise InputError("--compare-cell", "", str(cell), "another cell than --cell")
        other = replay(record.study, compare_cell, trial, loss).run
    recorded = recorded_trace(folder, record, cell, trial)
    same = None if recorded is None else recorded == found.trace_hash
    shown = Exploration(html, None if compare_cell is None else f"cell {compare_cell}", found.run, other)
    document = {
        "cell": cell,
        "trial": trial,
        "seed": found.seed,
        "losses": found.losses,
        "trace_hash": found.trace_hash,
        "same": same,
        "story": found.story(SHOWN_LINES),
    }
    print_result(as_json, document | document_of(shown), _print, found, same, shown)
    fail_if(same is False)


def _print(found: Replayed, same: bool | None, shown: Exploration) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print("\n".join(found.story(SHOWN_LINES)), markup=False)
    console.print(f"{found.run.title}, seed {found.seed}: {found.run.notes[0]}", markup=False)
    verdicts = {
        True: "[green]the same trace[/] as in the study",
        False: "[red]not the same trace[/] as in the study: the code of the trial has changed since",
        None: "nothing in the study's directory to compare the trace with",
    }
    console.print(f"{verdicts[same]}: {found.trace_hash}")
    show(console, shown)
