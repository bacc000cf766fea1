"""`isray mutants [--json]`: switches off the guards of the protocol one at a time, and says how each was noticed.

Exit code 1 if one survives the hunt, 2 for a mutant that there is not. What survives the swarm (`--swarm`) is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.output import Json
from experiments.support.errors import InputError

if TYPE_CHECKING:
    from experiments.hunt.mutants.campaign import Verdict


def mutants(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="This mutant; may be repeated. Default: all.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, metavar="N", help="Seeds for each at most.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, metavar="N", help="Processes. Default: cores.")] = None,
    swarm: Annotated[
        int | None, typer.Option("--swarm", min=1, metavar="N", help="Seeds without a bias that each meets as well.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/mutants.md.")] = False,
    as_json: Json = False,
) -> None:
    """Remove each guard of the protocol and count the seeds until that is noticed."""
    from experiments.hunt.mutants.campaign import SEEDS, page, verdicts
    from experiments.hunt.mutants.registry import MUTANTS

    for name in only or ():
        if name not in MUTANTS:
            raise InputError("--only", "", name, f"one of {', '.join(MUTANTS)}")
    names, workers, aside = only or list(MUTANTS), jobs or os.cpu_count() or 1, as_json or markdown

    def told(found: Iterable[Verdict], who: str) -> Iterator[Verdict]:
        for item in found:
            result = f"{item.invariant} after {item.seeds} seeds" if item.killed else f"survived {item.seeds} seeds"
            typer.echo(f"{who}{item.mutant}: {result}", err=aside)
            yield item

    found = list(told(verdicts(names, seeds or SEEDS, workers), ""))
    swarmed = [] if swarm is None else list(told(verdicts(names, swarm, workers, swarm=True), "swarm, "))
    if as_json:
        typer.echo(json.dumps(_document(found, swarmed)))
    elif markdown:
        typer.echo(page(found, swarmed))
    else:
        typer.echo(f"{sum(item.killed for item in found)} of {len(found)} caught")
        if swarmed:
            typer.echo(f"{sum(item.killed for item in swarmed)} of {len(swarmed)} caught by the swarm")
    if not all(item.killed for item in found):
        raise typer.Exit(1)


def _document(found: list[Verdict], swarmed: list[Verdict]) -> list[dict[str, object]]:
    """The JSON document (the project's interfaces, section 4); `swarm` where that was asked for."""
    rows = [asdict(item) for item in found]
    for row, item in zip(rows, swarmed, strict=False):
        row["swarm"] = {"killed": item.killed, "seeds": item.seeds, "invariant": item.invariant}
    return rows
