"""`isray mutants [--json]`: switches off each guard of the protocol in turn and reports which violation reveals it.

Exit code 1 if a mutant survives, 2 for an unknown mutant. Mutants that survive the swarm (`--swarm`) are only reported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.output import Json, fail_if, flag, option

if TYPE_CHECKING:
    from experiments.hunt.mutants.campaign import Verdict


def mutants(
    only: Annotated[list[str] | None, option("NAME", "This mutant; may be repeated. Default: all.")] = None,
    seeds: Annotated[int | None, option("N", "Seeds for each at most.", min=1)] = None,
    jobs: Annotated[int | None, option("N", "Processes. Default: cores.", min=1)] = None,
    swarm: Annotated[int | None, option("N", "Also run each with the first N seeds of isray fuzz.", min=1)] = None,
    markdown: Annotated[bool, flag("--markdown", "Print the table of docs/mutants.md.")] = False,
    as_json: Json = False,
) -> None:
    """Switch off each guard of the protocol and count the seeds until a violation reveals it."""
    from experiments.hunt.mutants.campaign import SEEDS, page, verdicts
    from experiments.hunt.mutants.registry import MUTANTS, mutant_named

    names = [mutant_named(name, "--only").name for name in only or MUTANTS]
    workers, aside = jobs or os.cpu_count() or 1, as_json or markdown

    def report_each(verdicts: Iterable[Verdict], prefix: str) -> Iterator[Verdict]:
        for item in verdicts:
            result = f"{item.invariant} after {item.seeds} seeds" if item.killed else f"survived {item.seeds} seeds"
            typer.echo(f"{prefix}{item.mutant}: {result}", err=aside)
            yield item

    found = list(report_each(verdicts(names, seeds or SEEDS, workers), ""))
    of_swarm = [] if swarm is None else list(report_each(verdicts(names, swarm, workers, swarm=True), "swarm, "))
    if as_json:
        typer.echo(json.dumps(_document(found, of_swarm)))
    elif markdown:
        typer.echo(page(found, of_swarm))
    else:
        typer.echo(f"{sum(item.killed for item in found)} of {len(found)} caught")
        if of_swarm:
            typer.echo(f"{sum(item.killed for item in of_swarm)} of {len(of_swarm)} caught by the swarm")
    fail_if(not all(item.killed for item in found))


def _document(found: list[Verdict], of_swarm: list[Verdict]) -> list[dict[str, object]]:
    """The JSON document (the project's interfaces, section 4), with `swarm` if the option was given."""
    rows = [asdict(item) for item in found]
    for row, item in zip(rows, of_swarm, strict=False):
        row["swarm"] = {"killed": item.killed, "seeds": item.seeds, "invariant": item.invariant}
    return rows
