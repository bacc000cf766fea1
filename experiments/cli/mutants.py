"""`isray mutants [--json]`: switches off the guards of the protocol one at a time, and says how each was noticed.

Exit code 1 if one survives, 2 for a mutant that there is not.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from experiments.errors import InputError


def mutants(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="This mutant; may be repeated. Default: all.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, metavar="N", help="Seeds for each at most.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, metavar="N", help="Processes. Default: cores.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/mutants.md.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Remove each guard of the protocol and count the seeds until that is noticed."""
    from experiments.mutants.campaign import SEEDS, Verdict, page, verdicts
    from experiments.mutants.registry import MUTANTS

    for name in only or ():
        if name not in MUTANTS:
            raise InputError("--only", "", name, f"one of {', '.join(MUTANTS)}")
    found: list[Verdict] = []
    for item in verdicts(only or list(MUTANTS), seeds or SEEDS, jobs or os.cpu_count() or 1):
        found.append(item)
        result = f"{item.invariant} after {item.seeds} seeds" if item.killed else f"survived {item.seeds} seeds"
        typer.echo(f"{item.mutant}: {result}", err=as_json or markdown)
    if as_json:
        fields = ("mutant", "guard", "killed", "seeds", "invariant")
        typer.echo(json.dumps([{name: getattr(item, name) for name in fields} for item in found]))
    elif markdown:
        typer.echo(page(found))
    else:
        typer.echo(f"{sum(item.killed for item in found)} of {len(found)} caught")
    if not all(item.killed for item in found):
        raise typer.Exit(1)
