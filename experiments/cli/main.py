"""The `isray` command: one typer application, its commands by section, and the place that turns errors into exit codes.

Command modules import heavy packages (ray, pyspark, scipy, altair) inside their functions. A command line that begins
with the name of a command imports the module of that one only, which takes half the time of all of them; every other
one, such as `isray --help`, imports all.
"""

from __future__ import annotations

import errno
import platform
import signal
import sys
from importlib.metadata import version as installed_version
from pkgutil import resolve_name

import typer

from experiments.cli.help import App, Section, as_input_error
from experiments.cli.output import ExitCode, Json, print_result
from experiments.engines.ray.session import RayStartError
from experiments.support.build import is_compiled
from experiments.support.errors import InputError

VERSIONED = ("isray", "ray", "pyspark", "pydantic")


def version(as_json: Json = False) -> None:
    """The versions of isray, of Python and of its main dependencies; and whether nodes and simulator are compiled."""
    versions = {name: installed_version(name) for name in VERSIONED} | {"python": platform.python_version()}
    versions |= {"build": "compiled" if is_compiled() else "sources"}
    print_result(as_json, versions, typer.echo, "\n".join(f"{name} {number}" for name, number in versions.items()))


GROUPS = {
    "scenario": (Section.EXPERIMENTS, "scenario:app"),
    "study": (Section.STUDIES, "study:app"),
    "node": (Section.CLUSTER, "node:app"),
    "net": (Section.CLUSTER, "net:app"),
    "metrics": (Section.CLUSTER, "metrics:app"),
    "features": (Section.TOOLS, "settings:app"),
    "cluster": (Section.TOOLS, "registrations:app"),
    "metadata-quorum": (Section.TOOLS, "metadata_quorum:app"),
    "storage": (Section.TOOLS, "disks:app"),
    "kafka": (Section.EXPERIMENTS, "kafka:app"),
    "bench": (Section.BENCHES, "bench:app"),
}
"""The section of each group of commands, and where in this package it is."""
COMMANDS = {
    "compare": (
        Section.EXPERIMENTS,
        "compare:compare",
        "isray compare reassignment-one-copy --engines sim --kafka 4.1.2,4.4.0",
    ),
    "play": (Section.EXPERIMENTS, "play:play", "isray play last-replica-standing"),
    "fuzz": (Section.EXPERIMENTS, "hunt:fuzz", "isray fuzz --seeds 1..200 --jobs 2"),
    "replay": (Section.EXPERIMENTS, "hunt:replay", "isray replay out/fuzz/seed-17.yaml --story"),
    "mutants": (Section.EXPERIMENTS, "hunt:mutants", "isray mutants --only vote-given-twice --seeds 10"),
    "explore": (Section.EXPERIMENTS, "hunt:explore", "isray explore --brokers 3 --depth 6"),
    "conformance": (
        Section.EXPERIMENTS,
        "conformance:conformance",
        "isray conformance tests/data/partition_change.jsonl.gz",
    ),
    "conformance record": (
        Section.EXPERIMENTS,
        "conformance:record",
        "isray conformance record --kafka 4.4.0 --seed 1 --rows 1000 --out out/decisions.jsonl.gz",
    ),
    "clients": (Section.EXPERIMENTS, "clients:clients", "isray clients --seeds 0..99"),
    "clients replay": (
        Section.EXPERIMENTS,
        "clients:replay",
        "isray clients replay 17 --html out/run.html",
    ),
    "clients compare": (
        Section.EXPERIMENTS,
        "clients:compare",
        "isray clients compare tests/data/client_findings/producer-with-a-gap.yaml",
    ),
    "what-if": (
        Section.STUDIES,
        "what_if:what_if",
        "isray what-if --describe tests/data/cluster_of_12_brokers.txt --racks tests/data/racks_of_12_brokers.csv",
    ),
    "check": (Section.EXPERIMENTS, "recordings:check", "isray check out/recording"),
    "soak": (Section.EXPERIMENTS, "recordings:soak", "isray soak --minutes 10"),
    "up": (Section.CLUSTER, "cluster:up", "isray up --detach --controllers 3"),
    "run": (Section.CLUSTER, "game_day:run", "isray run last-replica-standing --name practice"),
    "status": (Section.CLUSTER, "cluster:status", "isray status"),
    "down": (Section.CLUSTER, "cluster:down", "isray down"),
    "console": (Section.CLUSTER, "console:console", "isray console"),
    "topics": (Section.TOOLS, "topics:topics", "isray topics --create --topic t --partitions 3 --replication-factor 3"),
    "produce": (Section.TOOLS, "records:produce", "isray produce --topic t --num-records 100"),
    "console-producer": (Section.TOOLS, "records:console_producer", "isray console-producer --topic t"),
    "console-consumer": (
        Section.TOOLS,
        "records:console_consumer",
        "isray console-consumer --topic t --from-beginning",
    ),
    "configs": (
        Section.TOOLS,
        "settings:configs",
        "isray configs --alter --topic t --add-config min.insync.replicas=2",
    ),
    "leader-election": (
        Section.TOOLS,
        "partitions:leader_election",
        "isray leader-election --election-type preferred --all-topic-partitions",
    ),
    "reassign-partitions": (Section.TOOLS, "partitions:reassign_partitions", "isray reassign-partitions --list"),
    "acls": (Section.TOOLS, "acls:acls", "isray acls --add --allow-principal User:alice --operation read --topic t"),
    "dump-log": (Section.TOOLS, "disks:dump_log", "isray dump-log --directory DIR --cluster-metadata"),
    "version": (Section.TOOLS, "main:version", "isray version --json"),
}
"""The section of each command, its function, and an example. A name may have two words (`App`)."""


def application(first: str = "") -> App:
    """`isray` with the command or group of this name; with all of them, where there is none of this name."""
    app = App("ISR on Ray: Kafka's replication protocol as a deterministic laboratory.", callback=lambda: None)
    is_known = first in GROUPS or first in COMMANDS
    for name, (section, place) in GROUPS.items():
        if name == first or not is_known:
            app.add_typer(resolve_name(f"{__package__}.{place}"), name=name, rich_help_panel=section)
    for name, (section, place, example) in COMMANDS.items():
        if name.split()[0] == first or not is_known:
            app.register(name, example, section=section)(resolve_name(f"{__package__}.{place}"))
    return app


def run() -> None:
    """Entry point of the `isray` command; exits with a code of `ExitCode`."""
    try:
        code = application(*sys.argv[1:2])(prog_name="isray", standalone_mode=False)
    except InputError as error:
        code = _refuse(error)
    except typer.TyperException as error:
        code = _refuse(as_input_error(error))
    except RayStartError as error:
        typer.echo(f"isray: {error}", err=True)
        code = ExitCode.FAILURE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        typer.echo(f"isray: {error.filename or 'a file that was being written'}: {error.strerror}", err=True)
        code = ExitCode.FAILURE
    except typer.Abort:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all work has ended; a second interrupt must not end the exit
        typer.echo("isray: interrupted", err=True)
        code = ExitCode.INTERRUPTED
    sys.exit(code or ExitCode.OK)


def _refuse(error: InputError | None) -> ExitCode:
    """Prints the line of a wrong input; None where help was printed instead."""
    if error is not None:
        typer.echo(f"isray: {error}", err=True)
    return ExitCode.WRONG_INPUT
