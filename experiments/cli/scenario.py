"""`isray scenario`: run one scenario file on an engine, or list the shipped ones.

Exit code 1 when a step fails or an invariant is violated, 2 when the file is wrong. Ray is imported only when it is
asked for.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.support.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.engines.port import Recovery

app = typer.Typer(help="Scenarios: scripted runs with expectations.", no_args_is_help=True)

SHIPPED = Path(__file__).resolve().parent.parent / "scenarios"


class EngineName(StrEnum):
    """The engines that a scenario runs on."""

    SIM = "sim"
    RAY = "ray"


@app.command("run")
def run_scenario(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The scenario file (YAML).")],
    engine: Annotated[EngineName, typer.Option("--engine", help="What to run it on.")] = EngineName.SIM,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of everything random.")] = 0,
    address: Annotated[
        str | None,
        typer.Option("--address", help="With --engine ray: a Ray cluster to use; otherwise a private local one."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="DIR", help="A new folder for a recording, for `isray check`.")
    ] = None,
    story: Annotated[bool, typer.Option("--story", help="Tell on standard error what happened.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Carry out the steps one after another and say what held."""
    from experiments.check.recording import expect_new
    from experiments.engines.port import ClusterSpec, Engine
    from experiments.scenarios.loader import load_scenario
    from experiments.scenarios.recorded import run_recorded
    from experiments.scenarios.runner import Runner
    from experiments.story.chapter import tell
    from protocol.config import ClusterConfig, Generation

    scenario = load_scenario(file)
    if trace is not None:
        expect_new(trace, "--trace")
    if address is not None and engine is not EngineName.RAY:
        raise InputError("--address", "", f"--engine {engine.value}", "--engine ray")
    cluster = scenario.cluster
    config = ClusterConfig.of(Generation(cluster.generation), cluster.config)
    voters = None if cluster.voters is None else tuple(cluster.voters)
    spec = ClusterSpec(cluster.brokers, cluster.controllers, config, seed, voters)
    running: Engine
    if engine is EngineName.RAY:
        from experiments.engines.ray.session import expect_kills, is_private, stay_on_loopback

        expect_kills()
        if is_private(address):
            stay_on_loopback()
        from experiments.engines.ray.engine import RayEngine

        running = RayEngine(spec, address)
    else:
        from experiments.check.engine import CheckedEngine

        running = CheckedEngine(spec)
    try:
        runner = Runner(scenario, running)
        result = runner.run() if trace is None else run_recorded(runner, trace)
        if story:
            typer.echo("\n".join(tell(running.traces(), runner.chapters, running.metadata_log())), err=True)
    finally:
        running.close()
    document = result.document()
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _print(document, result.recoveries)
    if not result.passed:
        raise typer.Exit(1)


def _print(document: dict[str, object], recoveries: Sequence[Recovery]) -> None:
    from experiments.story.chapter import recovery_text

    console = Console(highlight=False)
    table = Table("", "step", "", "detail", box=None, pad_edge=False)
    for step in document["steps"]:  # type: ignore[attr-defined]
        mark = "[green]ok[/]" if step["ok"] else "[red]failed[/]"
        table.add_row(str(step["index"]), step["kind"], mark, step["detail"])
    console.print(table)
    for violation in document["violations"]:  # type: ignore[attr-defined]
        console.print(f"[red]violated[/] {violation['invariant']} at {violation['time_ms']} ms: {violation['detail']}")
    partitions = Table(
        "partition", "leader", "epoch", "isr", "elr", "last known elr", "high watermark", "log ends", box=None
    )
    for item in document["partitions"]:  # type: ignore[attr-defined]
        partitions.add_row(
            f"{item['topic']}-{item['partition']}",
            *(str(item[name]) for name in ("leader", "leader_epoch", "isr", "elr", "last_known_elr", "high_watermark")),
            " ".join(f"{broker}:{end}" for broker, end in item["log_end_offsets"].items()),
        )
    console.print(partitions)
    for recovery in recoveries:
        cost = "" if recovery.lost is None else f". Acknowledged records lost by it: {recovery.lost}"
        head = f"{recovery.time_ms / 1000:.3f} s: {recovery.mode} recovery of {recovery.topic}-{recovery.partition}"
        console.print(f"{head}. {recovery_text(recovery)}{cost}")
    verdict = "[green]passed[/]" if document["passed"] else "[red]failed[/]"
    console.print(
        f"{document['name']} on {document['engine']}, seed {document['seed']}: {verdict}; "
        f"acknowledged records lost: {document['lost_acked']}; trace {document['trace_hash']}"
    )


@app.command("list")
def list_scenarios(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """The scenarios that come with isray."""
    from experiments.scenarios.loader import load_scenario

    scenarios = [(path, load_scenario(path)) for path in sorted(SHIPPED.glob("*.yaml"))]
    if as_json:
        rows = [{"file": str(path), "name": item.name, "description": item.description} for path, item in scenarios]
        typer.echo(json.dumps(rows))
        return
    table = Table("file", "generation", "what it shows", box=None)
    for path, scenario in scenarios:
        table.add_row(path.name, scenario.cluster.generation, " ".join(scenario.description.split()))
    Console(highlight=False).print(table)
