"""`isray mutants [--json]`: switches off each guard of the protocol in turn and reports which violation reveals it.

With `--generated N` it tests instead N mutants that are made by machine, with unit tests, the swarm and the quorum's
simulation, or with the swarm alone (`--swarm-only`); with `--kept` those of the committed list, each with the test that
notices it. Exit code 1 if a mutant survives, 2 for an unknown mutant. Guards that survive the swarm (`--swarm`) are
only reported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.output import Json, fail_if, flag, option, table_of, wide_console
from experiments.support.errors import InputError

if TYPE_CHECKING:
    from experiments.hunt.mutants.campaign import Verdict
    from experiments.hunt.mutants.generated.campaign import GeneratedVerdict


def mutants(
    only: Annotated[list[str] | None, option("NAME", "This mutant; may be repeated. Default: all.")] = None,
    seeds: Annotated[int | None, option("N", "Seeds for each at most.", min=1)] = None,
    jobs: Annotated[int | None, option("N", "Processes. Default: cores.", min=1)] = None,
    swarm: Annotated[int | None, option("N", "Also run each with the first N seeds of isray fuzz.", min=1)] = None,
    markdown: Annotated[bool, flag("--markdown", "Print the table of docs/mutants.md.")] = False,
    generated: Annotated[int | None, option("N", "Test N one-line mutations made by machine instead.", min=1)] = None,
    swarm_only: Annotated[bool, flag("--swarm-only", "Test generated mutants with the swarm alone.")] = False,
    kept: Annotated[bool, flag("--kept", "Test the committed list of such mutants instead.")] = False,
    seed: Annotated[int | None, option("S", "The seed of the sample of --generated. Default: 0.", min=0)] = None,
    module: Annotated[str | None, option("FILE", "Only mutations of this file of protocol/.")] = None,
    save: Annotated[Path | None, option("FILE", "Write the generated mutants that are caught to a list.")] = None,
    as_json: Json = False,
) -> None:
    """Switch off each guard of the protocol and count the seeds until a violation reveals it."""
    if generated is not None or kept:
        _refuse("--kept or --generated", {"--only": only, "--seeds": seeds, "--markdown": markdown})
        _report_generated(_generated_verdicts(generated, seed, module, swarm, jobs, kept, swarm_only), save, as_json)
        return
    _refuse("guards", {"--seed": seed is not None, "--module": module, "--save": save, "--swarm-only": swarm_only})
    from experiments.hunt.mutants.campaign import SEEDS, page, verdicts
    from experiments.hunt.mutants.registry import all_mutants, mutant_named

    names = [mutant_named(name, "--only").name for name in only or all_mutants()]
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
    """The JSON document, one object per mutant, with `swarm` if the option was given."""
    rows = [asdict(item) for item in found]
    for row, item in zip(rows, of_swarm, strict=False):
        row["swarm"] = {"killed": item.killed, "seeds": item.seeds, "invariant": item.invariant}
    return rows


def _refuse(kind: str, options: dict[str, object]) -> None:
    """InputError for an option that is given and does not belong to this kind of mutants."""
    for name, given in options.items():
        if given:
            raise InputError(name, "", f"{name} with {kind}", "--swarm, --jobs and --json with both kinds of mutants")


def _generated_verdicts(
    number: int | None,
    seed: int | None,
    module: str | None,
    swarm: int | None,
    jobs: int | None,
    kept: bool,
    swarm_only: bool,
) -> Iterator[GeneratedVerdict]:
    """The verdicts on the committed list, or on a sample of `number` mutants."""
    from experiments.hunt.mutants.generated import campaign

    workers = jobs or os.cpu_count() or 1
    if number is None:
        _refuse("--kept", {"--seed": seed is not None, "--module": module, "--swarm": swarm})
        _refuse("--kept", {"--swarm-only": swarm_only})
        return campaign.kept_verdicts(campaign.kept_mutants(), workers)
    _refuse("--generated", {"--kept": kept})
    stages = (campaign.SWARM,) if swarm_only else campaign.STAGES
    drawn = campaign.sample(number, seed or 0, None if module is None else campaign.module_at(module))
    return campaign.generated_verdicts(drawn, swarm or campaign.SWARM_SEEDS, workers, stages)


def _report_generated(verdicts: Iterable[GeneratedVerdict], save: Path | None, as_json: bool) -> None:
    """Prints what notices each mutant, a table per module, and the number of those that are caught."""
    from experiments.hunt.mutants.generated import campaign

    found = []
    for item in verdicts:
        result = "survived" if item.by is None else f"{item.stage}, {item.by}"
        typer.echo(f"{item.place}: {item.mutation.change}: {result}", err=as_json)
        found.append(item)
    if save is not None:
        campaign.save_killed(found, save)
    if as_json:
        typer.echo(json.dumps([item.document() for item in found]))
    else:
        columns = ("module", "mutants", *campaign.STAGES, "survived")
        wide_console().print(table_of(columns, campaign.table_per_module(found), lines=True))
        typer.echo(f"{sum(item.by is not None for item in found)} of {len(found)} caught")
    fail_if(not all(item.by is not None for item in found))
