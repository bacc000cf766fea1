"""`isray scenario`: run one scenario file on an engine, or list the shipped ones.

Exit code 1 when a step fails or an invariant is violated. Ray is imported only with `--engine ray`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.cli.help import App
from experiments.cli.output import Json, fail_if, flag, option, print_result, table_of
from experiments.cli.run_pages import Compare, Exploration, Html, Variant, variant_named
from experiments.support.errors import InputError
from experiments.support.shipped import SCENARIOS, file_or_shipped

if TYPE_CHECKING:
    from experiments.engines.port import ClusterSpec, Engine
    from experiments.explorer.run import Run
    from experiments.scenarios.model import Scenario
    from experiments.scenarios.runner import ScenarioResult

app = App("Scenarios: scripted runs with expectations.")


class EngineName(StrEnum):
    """The engines that a scenario runs on."""

    SIM = "sim"
    RAY = "ray"
    KAFKA = "kafka"


@app.register("run", "isray scenario run last-replica-standing --story")
def run_scenario(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The scenario file (YAML), or the name of a shipped one.")
    ],
    engine: Annotated[EngineName, typer.Option("--engine", help="What to run it on.")] = EngineName.SIM,
    seed: Annotated[int, option("N", "Seed of everything random.", min=0)] = 0,
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: a Ray cluster to use; otherwise a private local one.")
    ] = None,
    kafka: Annotated[
        str | None,
        option("RELEASE", "With --engine kafka: an installed release (`isray kafka list`), otherwise the newest."),
    ] = None,
    life_cycle: Annotated[
        Path | None, option("FILE", "With --engine kafka: the life cycle of another broker (YAML).")
    ] = None,
    trace: Annotated[Path | None, option("DIR", "A new folder for a recording, for `isray check`.")] = None,
    story: Annotated[bool, flag("--story", "Print on standard error what happened, in words.")] = False,
    html: Html = None,
    compare: Compare = None,
    as_json: Json = False,
) -> None:
    """Run the steps of a scenario one after another and report the result of each."""
    from experiments.check.recording import expect_new
    from experiments.scenarios.explored import run_explored
    from experiments.scenarios.loader import load_scenario, require_engine
    from experiments.scenarios.runner import Runner, run_recorded
    from experiments.story.render import render

    scenario = load_scenario(file_or_shipped(file, SCENARIOS, "a scenario file"))
    if trace is not None:
        expect_new(trace, "--trace")
    if address is not None and engine is not EngineName.RAY:
        raise InputError("--address", "", f"--engine {engine.value}", "--engine ray")
    if compare is not None and engine is not EngineName.SIM:
        allowed = "--engine sim, where two runs have the same times"
        raise InputError("--compare", "", f"--engine {engine.value}", allowed)
    _require_for_kafka(engine, kafka, life_cycle)
    require_engine(scenario, engine.value)
    variant = None if compare is None else variant_named(compare)
    if engine is EngineName.KAFKA:
        running, scenario = kafka_engine(scenario, seed, kafka, life_cycle)
    else:
        running = _engine(engine, scenario.cluster.spec(seed), address)
    try:
        runner = Runner(scenario, running)
        execute = runner.run if trace is None else partial(run_recorded, runner, trace)
        explored: Run | None = None
        if html is None and variant is None:
            result = execute()
        else:
            result, explored = run_explored(runner, execute, scenario.name)
        if story:
            typer.echo("\n".join(render(running.traces(), runner.headings, running.metadata_log())), err=True)
    finally:
        running.close()
    other = None if variant is None else _run_variant(scenario, seed, variant)
    shown = Exploration(html, compare, explored, other)
    print_result(as_json, result.document() | shown.document, print_scenario, result, shown)
    fail_if(not result.passed)


def _engine(engine: EngineName, spec: ClusterSpec, address: str | None) -> Engine:
    if engine is EngineName.SIM:
        from experiments.check.engine import CheckedEngine

        return CheckedEngine(spec)
    from experiments.engines.ray.session import expect_kills, is_private, stay_on_loopback

    expect_kills()
    if is_private(address):
        stay_on_loopback()
    from experiments.engines.ray.engine import RayEngine

    return RayEngine(spec, address)


def _require_for_kafka(engine: EngineName, kafka: str | None, life_cycle: Path | None) -> None:
    """InputError for an option of `--engine kafka` with another engine."""
    for name, given in (("--kafka", kafka), ("--life-cycle", life_cycle)):
        if given is not None and engine is not EngineName.KAFKA:
            raise InputError(name, "", f"--engine {engine.value}", "--engine kafka")


def kafka_engine(
    scenario: Scenario, seed: int, release: str | None, life_cycle: Path | None = None
) -> tuple[Engine, Scenario]:
    """An engine with the release, without one the newest installed, and the scenario on that release."""
    from experiments.engines.kafka.engine import KafkaEngine
    from experiments.engines.kafka.life_cycle import SHIPPED
    from experiments.engines.kafka.processes import Program
    from experiments.scenarios.explored import with_cluster
    from experiments.scenarios.on_kafka import require_shown
    from protocol.kafka_release import kafka_release

    program = Program.of(release, os.environ, SHIPPED if life_cycle is None else life_cycle)
    if program.life_cycle.state == "protocol":
        require_shown(scenario)
    if program.installed is not None:
        scenario = with_cluster(scenario, kafka_release=kafka_release(program.installed.release).value)
    return KafkaEngine(scenario.cluster.spec(seed), program), scenario


def _run_variant(scenario: Scenario, seed: int, variant: Variant) -> Run:
    """Runs the steps in a variant of the protocol, to the last step whatever they expect."""
    from experiments.check.engine import CheckedEngine
    from experiments.hunt.mutants.registry import mutated
    from experiments.scenarios.explored import run_variant, with_cluster
    from experiments.scenarios.runner import Runner

    generation, rules = variant.generation or scenario.cluster.generation, scenario.cluster.kafka_rules
    release = variant.kafka_release or scenario.cluster.kafka_release
    all_rules = [*rules, *variant.kafka_rules]
    scenario = with_cluster(scenario, generation=generation, kafka_rules=all_rules, kafka_release=release)
    with mutated(variant.mutant):
        runner = Runner(scenario, CheckedEngine(scenario.cluster.spec(seed)), keeps_going=True)
        return run_variant(runner, f"{scenario.name}, {variant.name}")


def print_scenario(result: ScenarioResult, shown: Exploration) -> None:
    """Prints the steps of a scenario, the state of the partitions at the end, and the verdict."""
    console = Console(highlight=False)
    table = Table("", "step", "", "detail", box=None, pad_edge=False)
    for step in result.steps:
        mark = "[green]ok[/]" if step.ok else "[red]failed[/]"
        table.add_row(str(step.index), escape(step.text), mark, escape(step.detail))
    console.print(table)
    for it in result.violations:
        console.print(f"[red]violated[/] {it.invariant} at {it.time_ms} ms: {escape(it.detail)}")
    columns = ("partition", "leader", "epoch", "isr", "elr", "last known elr", "high watermark", "log ends")
    console.print(table_of(columns, map(_partition_row, result.partitions)))
    for recovery in result.recoveries:
        cost = "" if recovery.lost is None else f". Acknowledged records lost by it: {recovery.lost}"
        time_s, decided = recovery.time_ms / 1000, recovery.decided
        console.print(f"{time_s:.3f} s: {decided.mode} recovery of {decided.partition}. {decided.outcome()}{cost}")
    verdict = "[green]passed[/]" if result.passed else "[red]failed[/]"
    console.print(
        f"{escape(result.name)} on {result.engine}, seed {result.seed}: {verdict}; "
        f"acknowledged records lost: {result.losses.words()}; trace {result.trace_hash}"
    )
    shown.show(console)


def _partition_row(item: Mapping[str, object]) -> list[str]:
    ends = item["log_end_offsets"]
    assert isinstance(ends, dict)
    states = ("leader", "leader_epoch", "isr", "elr", "last_known_elr", "high_watermark")
    log_ends = " ".join(f"{broker}:{end}" for broker, end in ends.items())
    return [f"{item['topic']}-{item['partition']}", *(str(item[name]) for name in states), log_ends]


@app.register("list", "isray scenario list")
def list_scenarios(as_json: Json = False) -> None:
    """The scenarios that come with isray."""
    from experiments.scenarios.loader import load_scenario

    scenarios = [(path, load_scenario(path)) for path in sorted(SCENARIOS.glob("*.yaml"))]
    rows = [{"file": str(path), "name": it.name, "description": it.description} for path, it in scenarios]
    texts = ((path.name, it.cluster.generation, " ".join(it.description.split())) for path, it in scenarios)
    table = table_of(("file", "generation", "what it shows"), texts)
    print_result(as_json, rows, Console(highlight=False).print, table)
