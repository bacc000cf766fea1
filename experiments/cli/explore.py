"""`isray explore`: searches every state of a small cluster within bounds, breadth first; docs/explore.md.

Exit code 1 if a state violates an invariant; the shortest path to it is printed as a story.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.cli.output import Json, fail_if, option, print_result
from experiments.cli.parse import generation_named
from experiments.support.errors import InputError
from experiments.support.progress import progress
from protocol.config import Generation

if TYPE_CHECKING:
    from experiments.hunt.explore.report import Report


def explore(
    brokers: Annotated[int, option("N", "How many brokers.", min=2, max=5)] = 3,
    depth: Annotated[int | None, option("N", "Maximal number of steps.", min=1)] = None,
    generation: Annotated[str, option("G", "The protocol generation.")] = Generation.KIP_966.value,
    mutant: Annotated[str | None, option("NAME", "Switch off this guard.")] = None,
    min_isr: Annotated[int, option("N", "min.insync.replicas.", min=1, max=5)] = 2,
    bounds: Annotated[str | None, option("NAME=N,...", "How often each event may happen; see docs/explore.md.")] = None,
    strategy: Annotated[str, option("S", "With recoveries: balanced or proactive.")] = "balanced",
    max_states: Annotated[int | None, option("N", "Stop after so many states.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Search a small configuration exhaustively."""
    from experiments.hunt.explore.controlled_model import STRATEGIES
    from experiments.hunt.explore.report import SearchSpec, run

    if strategy not in STRATEGIES:
        raise InputError("--strategy", "", repr(strategy), " or ".join(STRATEGIES))
    spec = SearchSpec(
        brokers=brokers,
        min_isr=min_isr,
        generation=generation_named(generation, tuple(Generation)),
        mutant=mutant,
        strategy=strategy,
        bounds=_bounds(bounds),
        depth=depth,
        max_states=max_states,
    )
    with progress("isray explore", "states") as shown:
        report = run(spec, lambda search: shown.show(f"depth {search.depth}", at=f"{search.states} states"))
    print_result(as_json, report.document(), _show, report)
    fail_if(report.violation is not None)


def _bounds(text: str | None) -> dict[str, int]:
    from experiments.hunt.explore.states import BOUND_NAMES

    bounds = {}
    for part in [] if text is None else text.split(","):
        name, _, number = part.partition("=")
        is_all = part == "delays=all"
        if name not in BOUND_NAMES or not (is_all or (number.isascii() and number.isdecimal())):
            raise InputError("--bounds", "", repr(part), f"NAME=N, where NAME is one of {', '.join(BOUND_NAMES)}")
        bounds[name] = -1 if is_all else int(number)
    return bounds


def _show(report: Report) -> None:
    table = Table("", "", show_header=False)
    for name, value in report.document().items():
        if name not in ("violation", "bounds"):
            table.add_row(name.replace("_", " "), str(value))
    table.add_row("bounds", ", ".join(f"{name}={number}" for name, number in report.bounds.model_dump().items()))
    Console().print(table)
    if report.violation is not None:
        typer.echo("\n".join(report.violation.story))
    typer.echo(verdict(report))


def verdict(report: Report) -> str:
    """The conclusion of a search in one sentence."""
    if report.violation is not None:
        return f"{report.violation.invariant} is violated after {report.violation.steps} steps, and not after fewer."
    states = f"No invariant is violated in {report.distinct_states:,} distinct states"
    if report.complete:
        return f"{states}, which are all states within the bounds."
    return f"{states}; the search ended at depth {report.depth}, before all states within the bounds were reached."
