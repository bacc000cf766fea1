"""The `isray` command: one typer app, its commands registered by module, and the one place that knows exit codes.

0: all good. 1: the run found a failure; the command itself says so with `typer.Exit(1)`. 2: the input is wrong; a
command raises `experiments.support.errors.InputError` and `run` prints it as one line, without a traceback; wrong
options and arguments, which typer finds, are told in the same way (`usage.py`). 130: an interrupt ended the command.

Command modules import what is heavy (ray, pyspark, scipy, matplotlib) inside their functions, so that `isray --help`
answers at once.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from experiments.cli import (
    acls,
    bench,
    check,
    cluster,
    configs,
    conformance,
    dump_log,
    explore,
    features,
    fuzz,
    leader_election,
    metadata_quorum,
    mutants,
    reassign_partitions,
    replay,
    scenario,
    soak,
    storage,
    study,
    topics,
)
from experiments.cli.usage import as_input_error
from experiments.support.errors import InputError

EXIT_WRONG_INPUT = 2
VERSIONED = ("isray", "ray", "pyspark", "pydantic")

app = typer.Typer(
    name="isray",
    help="ISR on Ray: Kafka's replication protocol as a deterministic laboratory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("conformance")(conformance.conformance)
app.add_typer(bench.app, name="bench")
app.add_typer(scenario.app, name="scenario")
app.add_typer(study.app, name="study")
app.command("fuzz")(fuzz.fuzz)
app.command("replay")(replay.replay)
app.command("mutants")(mutants.mutants)
app.command("explore")(explore.explore)
app.command("check")(check.check)
app.command("soak")(soak.soak)
for command in (cluster.up, cluster.down, cluster.status):
    app.command(command.__name__)(command)
app.command("topics")(topics.topics)
app.command("leader-election")(leader_election.leader_election)
app.command("reassign-partitions")(reassign_partitions.reassign_partitions)
app.command("configs")(configs.configs)
app.command("acls")(acls.acls)
app.add_typer(features.app, name="features")
app.add_typer(metadata_quorum.app, name="metadata-quorum")
app.add_typer(storage.app, name="storage")
app.command("dump-log")(dump_log.dump_log)


@app.command()
def version(as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False) -> None:
    """The versions of isray, of Python and of what it stands on."""
    versions = {name: installed_version(name) for name in VERSIONED} | {"python": platform.python_version()}
    print(json.dumps(versions) if as_json else "\n".join(f"{name} {number}" for name, number in versions.items()))


def run() -> None:
    """Entry point of the `isray` command; leaves with the exit codes of this module's docstring."""
    try:
        code = app(prog_name="isray", standalone_mode=False)
    except InputError as error:
        code = _refused(error)
    except typer.TyperException as error:
        code = _refused(as_input_error(error))
    except typer.Abort:
        print("isray: aborted", file=sys.stderr)
        code = 1
    sys.exit(code or 0)


def _refused(error: InputError | None) -> int:
    if error is not None:
        print(f"isray: {error}", file=sys.stderr)
    return EXIT_WRONG_INPUT
