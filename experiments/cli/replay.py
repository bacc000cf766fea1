"""`isray replay`: runs a timeline file of `isray fuzz` again.

Exit code 1 if the run does not have the violation and the trace hash of the file: the protocol or the simulator has
changed since.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.cli.output import Json, fail_if, flag, print_result
from experiments.cli.run_pages import Compare, Exploration, Html, Variant, document_of, show, variant_named

if TYPE_CHECKING:
    from experiments.explorer.run import Run
    from experiments.hunt.fuzz.plan import TimelineFile
    from experiments.hunt.fuzz.run import PlanResult


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A timeline file that isray fuzz has written.")],
    story: Annotated[bool, flag("--story", "Print the last steps before the violation.")] = False,
    html: Html = None,
    compare: Compare = None,
    as_json: Json = False,
) -> None:
    """Run a saved timeline again and compare."""
    from experiments.hunt.fuzz.plan import load
    from experiments.hunt.fuzz.run import run_plan
    from experiments.hunt.mutants.registry import mutated

    saved = load(file)
    shown = None
    if html is None and compare is None:
        with mutated(saved.mutant):
            result = run_plan(saved.plan)
    else:
        other = None if compare is None else _variant(saved, compare)
        result, run = _explored(saved, Variant("as saved", mutant=saved.mutant))
        shown = Exploration(html, compare, run, None if other is None else _explored(saved, other)[1])
    same = result.trace_hash == saved.trace_hash and result.violation == saved.violation
    document = {
        "same": same,
        "events": result.events,
        "trace_hash": result.trace_hash,
        "saved_trace_hash": saved.trace_hash,
        "violation": result.violation and result.violation.model_dump(),
        "saved_violation": saved.violation and saved.violation.model_dump(),
    }
    print_result(as_json, document | document_of(shown), _show, saved, result, story, shown)
    fail_if(not same)


def _variant(saved: TimelineFile, compare: str) -> Variant:
    if compare == "original" and saved.mutant is not None:
        return Variant("original")
    variant = variant_named(compare, () if saved.mutant is None else ("original (without the file's mutant)",))
    return variant if variant.mutant is not None else dataclasses.replace(variant, mutant=saved.mutant)


def _explored(saved: TimelineFile, variant: Variant) -> tuple[PlanResult, Run]:
    from experiments.hunt.fuzz.run import explore_plan
    from experiments.hunt.mutants.registry import mutated

    plan = saved.plan
    if variant.generation is not None:
        plan = plan.model_copy(update={"generation": variant.generation})
    with mutated(variant.mutant):
        facts = [("mutant", variant.mutant or "none")]
        return explore_plan(plan, f"seed {plan.seed}, {variant.name}", facts, variant.kafka_rules)


def _show(saved: TimelineFile, result: PlanResult, story: bool, shown: Exploration | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if story:
        console.print("\n".join(result.story), markup=False)
    found, before = result.violation, saved.violation
    if found is None:
        console.print("no invariant is violated")
    else:
        console.print(f"{found.invariant} at step {found.step}, {found.time_ms} ms: {found.detail}", markup=False)
    if found != before:
        text = "nothing" if before is None else f"{before.invariant} at step {before.step}"
        console.print(f"[red]not the same violation[/]: the file has {text}")
    if result.trace_hash == saved.trace_hash:
        console.print(f"[green]the same trace[/]: {result.trace_hash}")
    else:
        console.print(f"[red]not the same trace[/]: {result.trace_hash}, the file has {saved.trace_hash}")
    show(console, shown)
