"""Which running cluster a tool addresses, and as which principal.

A tool has the options that select a `Target`: `--bootstrap-server`, or `--name` for a cluster of this user on this
machine, or neither where only one runs here; and `--principal`, or as in Kafka's tools a properties file
(`--command-config`) with `principal=User:NAME`. Each option is declared here once; `addresses` gives them to a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.help import Function, with_options
from experiments.cli.output import Json, option
from experiments.cli.parse import read_properties
from experiments.support.errors import InputError

PRINCIPAL_KEY = "principal"
BootstrapServer = Annotated[
    str | None,
    option("HOST:PORT", "The cluster's Ray head, as `isray up` prints it. Default: the only cluster that runs here."),
]
OwnCluster = Annotated[str | None, option("NAME", "Your cluster of this name on this machine (isray up --name).")]
CommandConfig = Annotated[
    Path | None, option("FILE", "A properties file; principal=User:NAME makes requests as NAME.", "--command-config")
]
Principal = Annotated[str | None, option("User:NAME", "The principal of the requests; goes before the file's.")]


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to address, the principal of the requests, and whether the answer is printed as JSON."""

    bootstrap: str | None = None
    name: str | None = None
    principal: str | None = None
    as_json: bool = False


OPTIONS: Mapping[str, object] = {
    "bootstrap_server": BootstrapServer,
    "name": OwnCluster,
    "command_config": CommandConfig,
    "principal": Principal,
    "as_json": Json,
}


def addresses(*names: str, **others: object) -> Callable[[Function], Function]:
    """Makes a command of a function with a parameter `target`: in its place the command has the `OPTIONS` of these
    names (of none: all), and `others` of its own.
    """
    options = {name: OPTIONS[name] for name in names or OPTIONS} | others

    def decorate(function: Function) -> Function:
        def call(values: dict[str, Any]) -> object:
            given = {name: values.pop(name) for name in options}
            return function(target=_target(values.pop("context"), **given), **values)

        return with_options(function, options, call, "target")

    return decorate


def keep_options(
    context: typer.Context,
    bootstrap_server: BootstrapServer = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
) -> None:
    """The callback of a tool with subcommands: as in Kafka's tools these options may come before the subcommand."""
    context.obj = {
        "bootstrap_server": bootstrap_server,
        "name": name,
        "command_config": command_config,
        "principal": principal,
    }


def _target(context: typer.Context, as_json: bool, **given: Any) -> Target:
    """The target that the options of a command select; one that is not given takes its value from before the
    subcommand. InputError for contradicting options, and for a principal of another form than `User:NAME`.
    """
    kept = context.obj or {}
    found = {name: kept.get(name) if given.get(name) is None else given[name] for name in OPTIONS}
    if found["bootstrap_server"] is not None and found["name"] is not None:
        raise InputError("--name", "", "--name with --bootstrap-server", "one of the two")
    principal, place = found["principal"], ("--principal", "")
    if principal is None and (config := found["command_config"]) is not None:
        place = (str(config), PRINCIPAL_KEY)
        principal = read_properties(config).get(PRINCIPAL_KEY)
    if principal is not None and not is_principal(principal):
        raise InputError(*place, principal, "User:NAME")
    return Target(found["bootstrap_server"], found["name"], principal, as_json)


def is_principal(text: str) -> bool:
    """Whether a text is `User:NAME`."""
    return text.startswith("User:") and text != "User:"
