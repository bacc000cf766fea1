"""`isray replay`: runs a timeline file of `isray fuzz` again.

Exit code 0 if the run has the violation and the trace hash of the file; 1 if not, which means that the protocol or the
simulator has changed; 2 if the file is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.cli.output import Json, fail_if, flag, print_result

if TYPE_CHECKING:
    from experiments.hunt.fuzz.plan import TimelineFile
    from experiments.hunt.fuzz.run import PlanResult


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A timeline file that isray fuzz has written.")],
    story: Annotated[bool, flag("--story", "Print the last steps before the violation.")] = False,
    as_json: Json = False,
) -> None:
    """Run a saved timeline again and compare."""
    from experiments.hunt.fuzz.plan import load
    from experiments.hunt.fuzz.run import run_plan
    from experiments.hunt.mutants.registry import mutated

    saved = load(file)
    with mutated(saved.mutant):
        result = run_plan(saved.plan)
    same = result.trace_hash == saved.trace_hash and result.violation == saved.violation
    print_result(as_json, _document(saved, result, same), _show, saved, result, story)
    fail_if(not same)


def _document(saved: TimelineFile, result: PlanResult, same: bool) -> dict[str, object]:
    return {
        "same": same,
        "events": result.events,
        "trace_hash": result.trace_hash,
        "saved_trace_hash": saved.trace_hash,
        "violation": None if result.violation is None else result.violation.model_dump(),
        "saved_violation": None if saved.violation is None else saved.violation.model_dump(),
    }


def _show(saved: TimelineFile, result: PlanResult, story: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if story:
        console.print("\n".join(result.story), markup=False)
    found = result.violation
    if found is None:
        console.print("no invariant is violated")
    else:
        console.print(f"{found.invariant} at step {found.step}, {found.time_ms} ms: {found.detail}", markup=False)
    if result.violation != saved.violation:
        before = "nothing" if saved.violation is None else f"{saved.violation.invariant} at step {saved.violation.step}"
        console.print(f"[red]not the same violation[/]: the file has {before}")
    if result.trace_hash == saved.trace_hash:
        console.print(f"[green]the same trace[/]: {result.trace_hash}")
    else:
        console.print(f"[red]not the same trace[/]: {result.trace_hash}, the file has {saved.trace_hash}")
