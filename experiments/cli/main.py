"""The `isray` command: one typer application, its commands by section, and the place that turns errors into exit codes.

Command modules import heavy packages (ray, pyspark, scipy, altair) inside their functions, so that `isray --help`
answers at once.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version as installed_version

import typer

from experiments.cli import (
    acls,
    bench,
    cluster,
    conformance,
    disks,
    hunt,
    metadata_quorum,
    node,
    partitions,
    recordings,
    records,
    scenario,
    settings,
    study,
    topics,
)
from experiments.cli.help import App, Section, as_input_error
from experiments.cli.output import ExitCode, Json, print_result
from experiments.engines.ray.session import RayStartError
from experiments.support.errors import InputError

VERSIONED = ("isray", "ray", "pyspark", "pydantic")


def version(as_json: Json = False) -> None:
    """The versions of isray, of Python and of its main dependencies."""
    versions = {name: installed_version(name) for name in VERSIONED} | {"python": platform.python_version()}
    print_result(as_json, versions, typer.echo, "\n".join(f"{name} {number}" for name, number in versions.items()))


GROUPS = (
    (Section.EXPERIMENTS, "scenario", scenario.app),
    (Section.STUDIES, "study", study.app),
    (Section.CLUSTER, "node", node.app),
    (Section.TOOLS, "features", settings.app),
    (Section.TOOLS, "metadata-quorum", metadata_quorum.app),
    (Section.TOOLS, "storage", disks.app),
    (Section.BENCHES, "bench", bench.app),
)
COMMANDS = (
    (Section.EXPERIMENTS, hunt.fuzz, "isray fuzz --seeds 1..200 --jobs 2"),
    (Section.EXPERIMENTS, hunt.replay, "isray replay out/fuzz/seed-17.yaml --story"),
    (Section.EXPERIMENTS, hunt.mutants, "isray mutants --only vote-given-twice --seeds 10"),
    (Section.EXPERIMENTS, hunt.explore, "isray explore --brokers 3 --depth 6"),
    (Section.EXPERIMENTS, conformance.conformance, "isray conformance tests/data/partition_change.jsonl.gz"),
    (Section.EXPERIMENTS, recordings.check, "isray check out/recording"),
    (Section.EXPERIMENTS, recordings.soak, "isray soak --minutes 10"),
    (Section.CLUSTER, cluster.up, "isray up --detach --controllers 3"),
    (Section.CLUSTER, cluster.status, "isray status"),
    (Section.CLUSTER, cluster.down, "isray down"),
    (Section.TOOLS, topics.topics, "isray topics --create --topic t --partitions 3 --replication-factor 3"),
    (Section.TOOLS, records.produce, "isray produce --topic t --num-records 100"),
    (Section.TOOLS, records.console_producer, "isray console-producer --topic t"),
    (Section.TOOLS, records.console_consumer, "isray console-consumer --topic t --from-beginning"),
    (Section.TOOLS, settings.configs, "isray configs --alter --topic t --add-config min.insync.replicas=2"),
    (
        Section.TOOLS,
        partitions.leader_election,
        "isray leader-election --election-type preferred --all-topic-partitions",
    ),
    (Section.TOOLS, partitions.reassign_partitions, "isray reassign-partitions --list"),
    (Section.TOOLS, acls.acls, "isray acls --add --allow-principal User:alice --operation read --topic t"),
    (Section.TOOLS, disks.dump_log, "isray dump-log --directory DIR --cluster-metadata"),
    (Section.TOOLS, version, "isray version --json"),
)

app = App("ISR on Ray: Kafka's replication protocol as a deterministic laboratory.")
for _section, _name, _group in GROUPS:
    app.add_typer(_group, name=_name, rich_help_panel=_section)
for _section, _function, _example in COMMANDS:
    app.register(_function.__name__.replace("_", "-"), _example, section=_section)(_function)


def run() -> None:
    """Entry point of the `isray` command; exits with a code of `ExitCode`."""
    try:
        code = app(prog_name="isray", standalone_mode=False)
    except InputError as error:
        code = _refuse(error)
    except typer.TyperException as error:
        code = _refuse(as_input_error(error))
    except RayStartError as error:
        typer.echo(f"isray: {error}", err=True)
        code = ExitCode.FAILURE
    except typer.Abort:
        typer.echo("isray: interrupted", err=True)
        code = ExitCode.INTERRUPTED
    sys.exit(code or ExitCode.OK)


def _refuse(error: InputError | None) -> ExitCode:
    """Prints the line of a wrong input; None where help was printed instead."""
    if error is not None:
        typer.echo(f"isray: {error}", err=True)
    return ExitCode.WRONG_INPUT
