"""What the tools for a running cluster share: which cluster is meant, in whose name, and how failures are told.

`--bootstrap-server`, or `--name` for a cluster of this user on this machine, or neither where only one runs here. Who
asks is said by `--principal`, or as in Kafka by a properties file (`--command-config`) with `principal=User:alice`.

Wrong input is exit code 2. What the server refuses is exit code 1 and one line on standard error; with `--json`, the
document on standard output says it too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.messages.base import Message

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="The cluster's Ray head, as `isray up` prints it. Without it: the only cluster that runs here.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="A cluster of yours on this machine (isray up --name).")]
CommandConfig = Annotated[
    Path | None,
    typer.Option("--command-config", metavar="FILE", help="Properties: principal=User:NAME makes requests as NAME."),
]
Principal = Annotated[
    str | None, typer.Option("--principal", metavar="User:NAME", help="In whose name requests are made.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]

PRINCIPAL_KEY = "principal"


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that is meant, the principal to be, and whether the answer is JSON."""

    bootstrap: str | None = None
    name: str | None = None
    principal: str | None = None
    as_json: bool = False


def target(
    bootstrap: str | None, name: str | None, config: Path | None, principal: str | None, as_json: bool
) -> Target:
    """The target that the options say; `principal` goes before the one in the properties file."""
    if bootstrap is not None and name is not None:
        raise InputError("--name", "", f"{name} with --bootstrap-server", "one of the two")
    place = ("--principal", "")
    if principal is None and config is not None:
        principal, place = read_properties(config).get(PRINCIPAL_KEY), (str(config), PRINCIPAL_KEY)
    if principal is not None and (not principal.startswith("User:") or principal == "User:"):
        raise InputError(*place, principal, "User:NAME")
    return Target(bootstrap, name, principal, as_json)


def keep_options(
    context: typer.Context,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
) -> None:
    """A tool's callback: options of the connection may stand before the subcommand, as in Kafka's tools."""
    context.obj = (bootstrap_server, name, command_config, principal)


def target_within(
    context: typer.Context,
    bootstrap: str | None,
    name: str | None,
    config: Path | None,
    principal: str | None,
    as_json: bool,
) -> Target:
    """The target by the options of a subcommand, and by those before it where it has none (`keep_options`)."""
    before = context.obj
    return target(bootstrap or before[0], name or before[1], config or before[2], principal or before[3], as_json)


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file as far as tools need it: `name=value` lines, comments with # or !."""
    properties = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, found, value = text.partition("=")
        if not found or not key.strip():
            raise InputError(str(path), f"line {number}", text, "name=value")
        properties[key.strip()] = value.strip()
    return properties


def read_text(path: Path) -> str:
    """A user's text file, without the byte-order mark that some editors begin it with; InputError where it cannot be
    read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", getattr(error, "strerror", None) or error, "a readable text file") from error


def read_json(path: Path, allowed: str) -> Any:
    """What a user's JSON file holds; InputError where it cannot be read or is no JSON. `allowed` describes one."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise InputError(str(path), "", "JSON that is nested too deeply", allowed) from error
    except ValueError as error:
        raise InputError(str(path), "", error, allowed) from error


@contextmanager
def open_admin(wanted: Target) -> Iterator[tuple[AdminClient, set[str]]]:
    """An administration client of the cluster, and the names of the nodes that run there."""
    from experiments.engines.ray.connection import connection, find

    with connection(find(wanted.bootstrap, wanted.name)) as (port, nodes):
        yield AdminClient(port, wanted.principal), nodes


@contextmanager
def administering(wanted: Target, failing: str) -> Iterator[AdminClient]:
    """An administration client for the block; an AdminError ends the command with exit code 1 and a line that begins
    with `failing`.
    """
    try:
        with open_admin(wanted) as (admin, _):
            yield admin
    except AdminError as error:
        typer.echo(f"{failing}: {error}", err=True)
        if wanted.as_json:
            print_json({"error": error.error.name, "message": error.message})
        raise typer.Exit(1) from error


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    typer.echo(json.dumps(document))


def document(message: Message) -> dict[str, Any]:
    """A message as JSON has it; errors and other enumerations under their names."""
    return {name: _plain(getattr(message, name)) for name in type(message).model_fields}


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return document(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    name = getattr(value, "name", None)
    return name if name is not None else value


def numbers(values: Sequence[int]) -> str:
    """Broker ids as Kafka's tools list them."""
    return ",".join(str(value) for value in values)


def one_of(actions: Mapping[str, bool]) -> str:
    """The one option that is given; InputError for none and for several."""
    given = [name for name, is_given in actions.items() if is_given]
    if len(given) != 1:
        raise InputError("action", "", ", ".join(given) or "none", f"exactly one of {', '.join(actions)}")
    return given[0]


def only_with(owner: str, action: str, options: Mapping[str, object], why: str | None = None) -> None:
    """InputError if one of the options, which belong to `owner`, is given though the action is another."""
    for name, value in options.items():
        if value not in (None, False, [], ()) and action not in owner.split("|"):
            raise InputError(name, "", f"it with {action}", why or f"{name} only with {owner.replace('|', ' or ')}")
