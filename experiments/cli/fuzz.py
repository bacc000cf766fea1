"""`isray fuzz`: runs drawn from seeds, with faults within the cluster's tolerance; any violation is a defect.

Exit code 0 if nothing was violated, 1 if something was, 2 on wrong input. An interrupt ends the run early with a report
of the seeds that were run; the exit code is then 130 unless something was violated.
"""

from __future__ import annotations

import re
from collections import Counter
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.cli.output import ExitCode, Json, fail, option, print_result, table_of
from experiments.cli.parse import generation_named
from experiments.support.errors import InputError
from experiments.support.progress import progress
from protocol.config import Generation

if TYPE_CHECKING:
    from experiments.hunt.campaign.run import Campaign, CampaignResult
    from experiments.hunt.seeds import Hunt, HuntResult

_SEEDS = re.compile(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?")


def fuzz(
    seeds: Annotated[str, option("A..B", "The seeds, both ends included.")],
    generation: Annotated[str | None, option("G", "One generation; otherwise each seed draws its own.")] = None,
    mutant: Annotated[str | None, option("NAME", "Switch off this guard of the protocol.")] = None,
    minutes: Annotated[float | None, option("M", "Begin no seed after so long.")] = None,
    jobs: Annotated[str, option("N|ray", "Processes, or tasks on a Ray cluster.")] = "1",
    out: Annotated[Path | None, option("DIR", "Folder for timeline files; out/fuzz if not given.")] = None,
    campaign: Annotated[
        Path | None, option("DIR", "Keep and mutate plans that reach something new; go on with what DIR holds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search for defects in random runs, one per seed; each violation is shrunk and can be replayed."""
    from experiments.hunt.seeds import Hunt
    from experiments.hunt.spread import ON_RAY, WorkerLost

    workers = _jobs(jobs)
    if workers == ON_RAY:
        from experiments.engines.ray.session import is_private, stay_on_loopback

        if is_private(None):
            stay_on_loopback()
    if minutes is not None and not 0 <= minutes < inf:
        raise InputError("--minutes", "", minutes, "a number of minutes, 0 or more")
    only = None if generation is None else generation_named(generation, tuple(Generation))
    wanted = _range(seeds)
    if campaign is not None and out is not None:
        raise InputError("--out", "", str(out), "no --out with --campaign, whose folder has the timeline files")
    try:
        if campaign is None:
            _hunt(Hunt(wanted, only, mutant, minutes, workers), out or Path("out/fuzz"), as_json)
        else:
            from experiments.hunt.campaign.run import Campaign

            _campaign(Campaign(wanted, only, mutant, minutes=minutes, jobs=workers), campaign, as_json)
    except WorkerLost as error:
        fail(f"{error}; the result of its seeds is not there")


def _hunt(wanted: Hunt, out: Path, as_json: bool) -> None:
    from experiments.hunt.seeds import hunt

    def show(found: HuntResult) -> None:
        shown.show("running", found.seeds, len(wanted.seeds), f"{len(found.violations)} violations")

    with progress("isray fuzz", "seeds") as shown:
        result = hunt(wanted, out, show)
    print_result(as_json, result.document(), _show, result)
    kept = f"{result.seeds} of {len(wanted.seeds)} seeds were run, and the files of their violations are in {out}"
    rest = f"{kept}; go on with --seeds {result.next_seed}..{wanted.seeds[-1]}"
    _finish(result, verdict(result), rest, len(result.violations), as_json)


def _campaign(wanted: Campaign, folder: Path, as_json: bool) -> None:
    from experiments.hunt.campaign.run import run_campaign

    def show(found: CampaignResult) -> None:
        shown.show(f"round {found.rounds}", found.seeds, len(wanted.seeds), f"{len(found.findings)} findings")

    with progress("isray fuzz", "seeds") as shown:
        result = run_campaign(wanted, folder, show)
    print_result(as_json, result.document(), _show_campaign, result)
    violations = sum(finding.count for finding in result.findings)
    conclusion = _verdict(result.seeds, violations, f": {len(result.findings)} different findings")
    _finish(result, conclusion, f"{result.seeds} seeds are finished; the same command goes on", violations, as_json)


def _finish(result: HuntResult | CampaignResult, conclusion: str, rest: str, failed: int, as_json: bool) -> None:
    """Prints the coverage, the conclusion, and after an interrupt how to run the rest; ends with the exit code."""
    _show_coverage(result.counts, Console(stderr=as_json, highlight=False))
    if not as_json:
        typer.echo(conclusion)
    if result.interrupted:
        typer.echo(f"interrupted: {rest}", err=True)
    if failed or result.interrupted:
        raise typer.Exit(ExitCode.FAILURE if failed else ExitCode.INTERRUPTED)


def _range(text: str) -> range:
    match = _SEEDS.fullmatch(text)
    found = range(int(match[1]), int(match[2] or match[1]) + 1) if match is not None else range(0)
    if not found:
        raise InputError("--seeds", "", repr(text), "A..B with A <= B, both included, or one seed")
    return found


def _jobs(text: str) -> int | str:
    from experiments.hunt.spread import ON_RAY

    if text == ON_RAY:
        return ON_RAY
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 1_000:
        raise InputError("--jobs", "", repr(text), "a number from 1 to 1000, or ray")
    return int(text)


def _show(result: HuntResult) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for seed, file, path in result.violations:
        found, before, after = file.violation, file.before, file.after
        assert found is not None
        console.print(f"[red]seed {seed}[/] violates {found.invariant} at step {found.step}: {found.detail}")
        console.print(
            f"  shrunk from {before.faults} faults and {before.operations} operations to {after.faults} and "
            f"{after.operations}: isray replay {path}"
        )
    rate = result.events / max(result.seconds, 1e-9)
    console.print(f"{result.seeds} seeds, {result.events:,} events in {result.seconds:.1f} s ({rate:,.0f} per second)")


def _show_campaign(result: CampaignResult) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in result.findings:
        found = finding.violation
        console.print(f"[red]{found.invariant}[/] in {finding.count} seeds, first in {finding.seed}: {found.detail}")
        console.print(f"  {finding.shape}: isray replay {result.path(finding)}")
    plans, events = result.rates
    console.print(
        f"{result.seeds:,} seeds in {result.rounds} complete rounds, {result.events:,} events; {result.features:,} "
        f"features reached, {result.kept:,} plans kept; this start ran {result.ran_s:.1f} s ({plans:,.2f} plans and "
        f"{events:,.0f} events per second)"
    )
    if result.curve:
        console.print(f"the coverage curve is in {result.folder / 'curve.csv'} and {result.folder / 'curve.svg'}")


def verdict(result: HuntResult) -> str:
    """The conclusion of a hunt in one sentence."""
    files = "the file above replays it" if len(result.violations) == 1 else "the files above replay them"
    return _verdict(result.seeds, len(result.violations), f"; {files}")


def _verdict(seeds: int, violations: int, more: str) -> str:
    if not seeds:
        return "No seed was run, so nothing was tested."
    if not violations:
        return f"No invariant was violated in {seeds} seeds."
    return f"{violations} of {seeds} seeds violated an invariant{more}."


def _show_coverage(counts: Counter[tuple[str, str]], console: Console) -> None:
    from experiments.hunt.fuzz.coverage import FROM_ELR, MET, known_groups, missed, missing_faults, rows

    reached = ((group, name, f"{count:,}") for group, name, count in rows(counts) if count and group != MET)
    console.print(table_of(("", "reached", "times"), reached))
    for group, names in missed(counts).items():
        if group != MET:
            console.print(f"never reached, {group}: {', '.join(names)}", soft_wrap=True)
    groups = known_groups(counts)
    if MET in groups:
        met = (
            (operation, f"{count} of {count + len(missing)}", ", ".join(missing))
            for operation, count, missing in missing_faults(counts)
        )
        console.print(table_of(("operation", "kinds of faults met", "not met"), met))
    if "election" in groups and not counts["election", FROM_ELR]:
        console.print("[yellow]No leader was elected from the ELR in this run.[/]")
