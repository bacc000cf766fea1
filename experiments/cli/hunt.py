"""The search for defects: `isray fuzz`, `isray replay`, `isray explore` and `isray mutants`.

Exit code 1 if an invariant is violated, if a replayed run does not have the violation and the trace hash of the file
(the protocol or the simulator has changed since), or if a mutant survives. An interrupt ends the fuzz early with a
report of the seeds that were run; the exit code is then 130 unless something was violated.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.cli.output import ExitCode, Json, fail, fail_if, flag, option, print_result, table_of, wide_console
from experiments.cli.parse import KafkaReleaseOption, generation_named, release_of, seed_range
from experiments.cli.run_pages import Compare, Exploration, Html, Variant, variant_named
from experiments.support.errors import InputError
from experiments.support.progress import progress
from protocol.features import RELEASED, Generation

if TYPE_CHECKING:
    from experiments.explorer.run import Run
    from experiments.hunt.campaign.run import Campaign, CampaignResult
    from experiments.hunt.explore.report import Report
    from experiments.hunt.fuzz.plan import TimelineFile
    from experiments.hunt.fuzz.run import PlanResult
    from experiments.hunt.mutants.campaign import Verdict
    from experiments.hunt.mutants.generated.campaign import GeneratedVerdict
    from experiments.hunt.seeds import Hunt, HuntResult


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
    kafka_release: Annotated[
        str | None,
        option(
            "R|any",
            "Plans of kip-497 and kip-966-elr under this release of Kafka, or a drawn one, with the themes about what "
            "releases decide. Otherwise the newest, so that a seed keeps its plan.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search for defects in random runs, one per seed; each violation is shrunk and can be replayed."""
    from experiments.hunt.fuzz.swarm import ANY_RELEASE
    from experiments.hunt.seeds import Hunt
    from experiments.hunt.spread import ON_RAY, WorkerLost

    workers = _jobs(jobs)
    if workers == ON_RAY:
        from experiments.engines.ray.session import is_private, stay_on_loopback

        if is_private(None):
            stay_on_loopback()
    if minutes is not None and not 0 <= minutes < inf:
        raise InputError("--minutes", "", minutes, "a number of minutes, 0 or more")
    only = None if generation is None else generation_named(generation)
    wanted = seed_range(seeds)
    release = kafka_release
    if release is not None and (release != ANY_RELEASE or only not in (None, *RELEASED)):
        release = release_of(release, only or RELEASED[0], f"{ANY_RELEASE}, or ").value
    if campaign is not None and out is not None:
        raise InputError("--out", "", str(out), "no --out with --campaign, whose folder has the timeline files")
    try:
        if campaign is None:
            _hunt(Hunt(wanted, only, mutant, minutes, workers, release), out or Path("out/fuzz"), as_json)
        else:
            from experiments.hunt.campaign.run import Campaign

            _campaign(Campaign(wanted, only, mutant, minutes=minutes, jobs=workers, release=release), campaign, as_json)
    except WorkerLost as error:
        fail(f"{error}; the result of its seeds is not there")


def _hunt(wanted: Hunt, out: Path, as_json: bool) -> None:
    from experiments.hunt.seeds import hunt

    def show(found: HuntResult) -> None:
        shown.show("running", found.seeds, len(wanted.seeds), f"{len(found.violations)} violations")

    with progress("isray fuzz", "seeds") as shown:
        result = hunt(wanted, out, show)
    print_result(as_json, result.document(), _show_hunt, result)
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


def _jobs(text: str) -> int | str:
    from experiments.hunt.spread import ON_RAY

    if text == ON_RAY:
        return ON_RAY
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 1_000:
        raise InputError("--jobs", "", repr(text), "a number from 1 to 1000, or ray")
    return int(text)


def _show_hunt(result: HuntResult) -> None:
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
    run, other = None, None
    if html is None and compare is None:
        with mutated(saved.mutant):
            result = run_plan(saved.plan)
    else:
        variant = None if compare is None else _variant(saved, compare)
        result, run = _explored(saved, Variant("as saved", mutant=saved.mutant))
        other = None if variant is None else _explored(saved, variant)[1]
    shown = Exploration(html, compare, run, other)
    same = result.trace_hash == saved.trace_hash and result.violation == saved.violation
    hashes = {"trace_hash": result.trace_hash, "saved_trace_hash": saved.trace_hash}
    found, before = (it and it.model_dump() for it in (result.violation, saved.violation))
    document = {"same": same, "events": result.events, **hashes, "violation": found, "saved_violation": before}
    print_result(as_json, document | shown.document, _show_replayed, saved, result, story, shown)
    fail_if(not same)


def _variant(saved: TimelineFile, compare: str) -> Variant:
    if compare == "original" and saved.mutant is not None:
        return Variant("original")
    variant = variant_named(compare, () if saved.mutant is None else ("original (without the file's mutant)",))
    return variant if variant.mutant is not None else replace(variant, mutant=saved.mutant)


def _explored(saved: TimelineFile, variant: Variant) -> tuple[PlanResult, Run]:
    from experiments.hunt.fuzz.run import explore_plan
    from experiments.hunt.mutants.registry import mutated

    plan = saved.plan
    if variant.generation is not None:
        plan = plan.model_copy(update={"generation": variant.generation})
    if variant.kafka_release is not None:
        plan = plan.model_copy(update={"kafka_release": variant.kafka_release})
    with mutated(variant.mutant):
        facts = [("mutant", variant.mutant or "none")]
        return explore_plan(plan, f"seed {plan.seed}, {variant.name}", facts, variant.kafka_rules)


def _show_replayed(saved: TimelineFile, result: PlanResult, story: bool, shown: Exploration) -> None:
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
    shown.show(console)


def explore(
    brokers: Annotated[int, option("N", "How many brokers.", min=2, max=5)] = 3,
    depth: Annotated[int | None, option("N", "Maximal number of steps.", min=1)] = None,
    generation: Annotated[str, option("G", "The protocol generation.")] = Generation.KIP_966.value,
    kafka_release: KafkaReleaseOption = None,
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
    searched = generation_named(generation)
    spec = SearchSpec(
        brokers=brokers,
        min_isr=min_isr,
        generation=searched,
        kafka_release=release_of(kafka_release, searched),
        mutant=mutant,
        strategy=strategy,
        bounds=_bounds(bounds),
        depth=depth,
        max_states=max_states,
    )
    with progress("isray explore", "states") as shown:
        report = run(spec, lambda search: shown.show(f"depth {search.depth}", at=f"{search.states} states"))
    print_result(as_json, report.document(), _show_search, report)
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


def _show_search(report: Report) -> None:
    table = Table("", "", show_header=False)
    for name, value in report.document().items():
        if name not in ("violation", "bounds"):
            table.add_row(name.replace("_", " "), str(value))
    table.add_row("bounds", ", ".join(f"{name}={number}" for name, number in report.bounds.model_dump().items()))
    Console().print(table)
    if report.violation is not None:
        typer.echo("\n".join(report.violation.story))
    typer.echo(_conclusion(report))


def _conclusion(report: Report) -> str:
    if report.violation is not None:
        return f"{report.violation.invariant} is violated after {report.violation.steps} steps, and not after fewer."
    states = f"No invariant is violated in {report.distinct_states:,} distinct states"
    if report.complete:
        return f"{states}, which are all states within the bounds."
    return f"{states}; the search ended at depth {report.depth}, before all states within the bounds were reached."


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
    workers, aside = jobs or os.cpu_count() or 1, as_json or markdown
    if generated is not None or kept:
        _refuse("--kept or --generated", {"--only": only, "--seeds": seeds, "--markdown": markdown})
        if generated is not None:
            _refuse("--generated", {"--kept": kept})
        _report_generated(_generated_verdicts(generated, seed, module, swarm, workers, swarm_only), save, as_json)
        return
    _refuse("guards", {"--seed": seed is not None, "--module": module, "--save": save, "--swarm-only": swarm_only})
    from experiments.hunt.mutants.campaign import SEEDS, page, verdicts
    from experiments.hunt.mutants.registry import all_mutants, mutant_named

    names = [mutant_named(name, "--only").name for name in only or all_mutants()]

    def report_each(verdicts: Iterable[Verdict], prefix: str) -> Iterator[Verdict]:
        for item in verdicts:
            result = f"{item.invariant} after {item.seeds} seeds" if item.killed else f"survived {item.seeds} seeds"
            typer.echo(f"{prefix}{item.mutant}: {result}", err=aside)
            yield item

    found = list(report_each(verdicts(names, seeds or SEEDS, workers), ""))
    of_swarm = [] if swarm is None else list(report_each(verdicts(names, swarm, workers, swarm=True), "swarm, "))
    rows = [asdict(item) for item in found]
    for row, item in zip(rows, of_swarm, strict=False):
        row["swarm"] = {"killed": item.killed, "seeds": item.seeds, "invariant": item.invariant}
    text = f"{sum(item.killed for item in found)} of {len(found)} caught"
    if of_swarm:
        text += f"\n{sum(item.killed for item in of_swarm)} of {len(of_swarm)} caught by the swarm"
    print_result(as_json, rows, typer.echo, page(found, of_swarm) if markdown else text)
    fail_if(not all(item.killed for item in found))


def _refuse(kind: str, options: Mapping[str, object]) -> None:
    """InputError for an option that is given and does not belong to this kind of mutants."""
    for name, given in options.items():
        if given:
            raise InputError(name, "", f"{name} with {kind}", "--swarm, --jobs and --json with both kinds of mutants")


def _generated_verdicts(
    number: int | None, seed: int | None, module: str | None, swarm: int | None, workers: int, swarm_only: bool
) -> Iterator[GeneratedVerdict]:
    """The verdicts on the committed list, or on a sample of `number` mutants."""
    from experiments.hunt.mutants.generated import campaign

    if number is None:
        given = {"--seed": seed is not None, "--module": module, "--swarm": swarm, "--swarm-only": swarm_only}
        _refuse("--kept", given)
        return campaign.kept_verdicts(campaign.kept_mutants(), workers)
    stages = (campaign.SWARM,) if swarm_only else campaign.STAGES
    drawn = campaign.sample(number, seed or 0, None if module is None else campaign.module_at(module))
    return campaign.generated_verdicts(drawn, swarm or campaign.SWARM_SEEDS, workers, stages)


def _report_generated(verdicts: Iterable[GeneratedVerdict], save: Path | None, as_json: bool) -> None:
    from experiments.hunt.mutants.generated import campaign

    found = []
    for item in verdicts:
        result = "survived" if item.by is None else f"{item.stage}, {item.by}"
        typer.echo(f"{item.place}: {item.mutation.change}: {result}", err=as_json)
        found.append(item)
    if save is not None:
        campaign.save_killed(found, save)
    caught = sum(item.by is not None for item in found)
    if not as_json:
        columns = ("module", "mutants", *campaign.STAGES, "survived")
        wide_console().print(table_of(columns, campaign.table_per_module(found), lines=True))
    print_result(as_json, [item.document() for item in found], typer.echo, f"{caught} of {len(found)} caught")
    fail_if(caught < len(found))
