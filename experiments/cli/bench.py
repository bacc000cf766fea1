"""`isray bench [NAME] [--json]`: the benchmarks, all of them or one.

The figures go to standard output, as tables or as one JSON document `{"python", "cpus", "benches": {name: figures}}`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from experiments.cli.help import App
from experiments.cli.output import Json, option, print_result, wide_console
from experiments.cli.parse import generations_named, whole_numbers
from experiments.support.fields import GENERATIONS
from experiments.support.progress import progress

if TYPE_CHECKING:
    from experiments.bench.report import BenchReport

app = App("Benchmarks: how fast the parts are, as figures and as ratios.", "isray bench --json")

Sizes = Annotated[str, option("N,...", "Partitions of each run.")]
Repeats = Annotated[int, option("N", "Runs per size or cell.", min=1)]


@app.callback()
def bench(context: typer.Context, as_json: Json = False) -> None:
    """Run all benchmarks with their default sizes, or the one that is named."""
    if context.invoked_subcommand is not None:
        context.obj = as_json
        return
    from experiments.bench import BENCHES

    _measure(dict.fromkeys(BENCHES, ()), as_json)


@app.register("controller", "isray bench controller --json")
def controller(
    context: typer.Context, partitions: Sizes = "1000,10000,100000", repeats: Repeats = 5, as_json: Json = False
) -> None:
    """Fence a broker of many partitions: time to decide, write and replay, growth, memory."""
    _measure({"controller": (_sizes(partitions), repeats)}, as_json or context.obj)


@app.register("sim", "isray bench sim --json")
def sim(
    context: typer.Context,
    trials: Annotated[int, option("N", "One-year trials per cell.", min=1)] = 20,
    repeats: Repeats = 5,
    seeds: Annotated[int, option("N", "Plans of the default fuzz.", min=1)] = 12,
    as_json: Json = False,
) -> None:
    """Simulate plans of the fuzz and the reference study: events, seeds and cluster-years per second, one process."""
    _measure({"sim": (trials, repeats, seeds)}, as_json or context.obj)


@app.register("history", "isray bench history --json")
def history(
    context: typer.Context,
    sizes: Annotated[str, option("N,...", "Operations in a history.")] = "10000,100000,1000000,10000000",
    as_json: Json = False,
) -> None:
    """Judge histories of clients: operations per second, growth, memory."""
    _measure({"history": (_sizes(sizes, "--sizes"),)}, as_json or context.obj)


@app.register("replication", "isray bench replication --json")
def replication(
    context: typer.Context,
    sizes: Annotated[str, option("BYTES,...", "Sizes of a batch.")] = "1024,65536,1048576",
    partitions: Sizes = "1,8",
    seconds: Annotated[int, option("N", "How long each run measures.", min=1)] = 4,
    repeats: Repeats = 3,
    as_json: Json = False,
) -> None:
    """Produce with acks=all on Ray: throughput and latency, against bare Ray calls over the same hops."""
    arguments = _sizes(sizes, "--sizes"), _sizes(partitions), seconds * 1_000, repeats
    _measure({"replication": arguments}, as_json or context.obj)


@app.register("failover", "isray bench failover --json")
def failover(
    context: typer.Context,
    partitions: Sizes = "1000,10000",
    repeats: Repeats = 3,
    generations: Annotated[str, option("NAME,...", "Protocol generations to compare.")] = ",".join(GENERATIONS),
    as_json: Json = False,
) -> None:
    """SIGKILL a leader on Ray: from detection to partitions that acknowledge batches again, in each generation."""
    _measure({"failover": (_sizes(partitions), repeats, generations_named(generations))}, as_json or context.obj)


@app.register("idle", "isray bench idle --seconds 20 --json")
def idle(
    context: typer.Context,
    partitions: Sizes = "3,10000",
    brokers: Annotated[int, option("N", "Brokers of each cluster.", min=3)] = 3,
    controllers: Annotated[int, option("N", "Controllers of each cluster.", min=1)] = 3,
    seconds: Annotated[int, option("N", "How long each cluster is left alone.", min=1)] = 60,
    as_json: Json = False,
) -> None:
    """Leave a cluster on Ray alone: processor time and memory of its nodes, by partitions; restart a broker of it."""
    _measure({"idle": (_sizes(partitions), brokers, controllers, seconds)}, as_json or context.obj)


@app.register("kafka", "isray bench kafka --json")
def kafka(
    context: typer.Context,
    sizes: Annotated[str, option("BYTES,...", "Sizes of a record.")] = "1024,65536,1048576",
    seconds: Annotated[int, option("N", "How long each run measures.", min=1)] = 4,
    beside: Annotated[str | None, option("HOST:PORT", "Another cluster of three brokers, for the same client.")] = None,
    connections: Annotated[int, option("N", "Idle connections to a broker.", min=1)] = 1_000,
    release: Annotated[
        str | None, option("R", "Measure an installed release of Kafka beside the simulator instead.")
    ] = None,
    partitions: Annotated[str, option("N,...", "With --release: partitions of each failover.")] = "1000,10000",
    trials: Annotated[int, option("N", "With --release: fault trials on the real Kafka.", min=1)] = 3,
    as_json: Json = False,
) -> None:
    """Kafka's protocol at a listener: the state machine alone, a producer with acks=all, idle connections. With
    --release a real Kafka: fault trials per minute beside the simulator's, failover, start-up, memory."""
    if release is not None:
        _measure({"real-kafka": (release, _sizes(partitions), trials)}, as_json or context.obj)
        return
    _measure({"kafka": (_sizes(sizes, "--sizes"), seconds, beside, connections)}, as_json or context.obj)


@app.register("quorum", "isray bench quorum --json")
def quorum(
    context: typer.Context,
    requests: Annotated[int, option("N", "Requests per run of a load.", min=1)] = 20,
    kills: Annotated[int, option("N", "Active controllers to SIGKILL.", min=1)] = 10,
    seeds: Annotated[int, option("N", "Elections in the simulator.", min=1)] = 200,
    partitions: Annotated[int, option("N", "Partitions in the snapshot.", min=1)] = 100_000,
    repeats: Repeats = 3,
    as_json: Json = False,
) -> None:
    """The controllers' log: commits per second, elections after kills, a snapshot written and loaded."""
    _measure({"quorum": (requests, kills, seeds, partitions, repeats)}, as_json or context.obj)


@app.register("sweep", "isray bench sweep --json")
def sweep(
    context: typer.Context,
    nodes: Annotated[str, option("N,...", "Ray nodes of each run, of one CPU each, on this machine.")] = "1,2,4",
    seconds: Annotated[int, option("N", "How long each node has work, about, per kind of trial.", min=1)] = 20,
    as_json: Json = False,
) -> None:
    """Sweep on several Ray nodes: weak scaling, costs per task, and what they predict for larger clusters."""
    _measure({"sweep": (_sizes(nodes, "--nodes"), seconds)}, as_json or context.obj)


@app.register("pipeline", "isray bench pipeline --events 1000000 --json")
def pipeline(
    context: typer.Context,
    events: Annotated[str, option("N,...", "Rows of trace in each study.")] = "1000000,10000000,50000000",
    memory: Annotated[str, option("SIZE", "Heap of Spark's JVM, and DuckDB's memory.")] = "1g",
    as_json: Json = False,
) -> None:
    """Traces to gold in Spark and in DuckDB: processor time, memory, spills, growth."""
    _measure({"pipeline": (_sizes(events, "--events"), memory)}, as_json or context.obj)


def _sizes(text: str, option: str = "--partitions") -> list[int]:
    return whole_numbers(option, text, "whole numbers above 0, separated by commas", least=1)


def _measure(benches: Mapping[str, Sequence[object]], as_json: bool) -> None:
    from experiments.bench import BENCHES, ON_REQUEST

    reports, known = {}, {**BENCHES, **ON_REQUEST}
    with progress("isray bench") as shown:
        for name, arguments in benches.items():
            shown.show(f"measuring {name}")
            reports[name] = known[name](*arguments)
    documents = {name: report.document for name, report in reports.items()}
    found = {"python": platform.python_version(), "cpus": os.cpu_count(), "benches": documents}
    print_result(as_json, found, _print_tables, reports)


def _print_tables(reports: Mapping[str, BenchReport]) -> None:
    console = wide_console()
    for name, report in reports.items():
        columns = (Column(name, justify="right") for name in report.columns)
        table = Table(*columns, title=f"{name}: {report.title}", title_justify="left")
        for row in report.rows:
            table.add_row(*row)
        console.print(table)
        for note in report.notes:
            console.print(note, highlight=False)
