"""What the tools for a running cluster share: which cluster they address, as which principal, and how they report
errors.

A tool takes a `Target`, and `with_target` adds the options that select it: `--bootstrap-server`, or `--name` for a
cluster of this user on this machine, or neither where only one runs here; and `--principal`, or as in Kafka's tools a
properties file (`--command-config`) with `principal=User:NAME`.

Wrong input is exit code 2. A request that the cluster refuses is exit code 1 and one line on standard error; with
`--json`, the document on standard output reports it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn, get_type_hints

import typer

from experiments.cli.exit_codes import ExitCode
from experiments.cli.output import Json, fail_if, option, print_json
from experiments.cli.parse import read_properties
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.errors import ErrorCode
from protocol.messages.admin import Result

PRINCIPAL_KEY = "principal"
COMMAND_CONFIG = typer.Option(
    "--command-config", metavar="FILE", help="A properties file; principal=User:NAME makes requests as NAME."
)


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to address, the principal of the requests, and whether the answer is printed as JSON."""

    bootstrap: str | None = None
    name: str | None = None
    principal: str | None = None
    as_json: bool = False


class _Connection(NamedTuple):
    """The values of the options that select a target."""

    bootstrap_server: str | None = None
    name: str | None = None
    command_config: Path | None = None
    principal: str | None = None


def keep_options(
    context: typer.Context,
    bootstrap_server: Annotated[
        str | None,
        option(
            "HOST:PORT", "The cluster's Ray head, as `isray up` prints it. Default: the only cluster that runs here."
        ),
    ] = None,
    name: Annotated[str | None, option("NAME", "Your cluster of this name on this machine (isray up --name).")] = None,
    command_config: Annotated[Path | None, COMMAND_CONFIG] = None,
    principal: Annotated[
        str | None, option("User:NAME", "The principal of the requests; goes before the file's.")
    ] = None,
) -> None:
    """The callback of a tool with subcommands: as in Kafka's tools these options may come before the subcommand."""
    context.obj = _Connection(bootstrap_server, name, command_config, principal)


def with_target(**replaced: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options that select a target, and `--json`, to a command with a parameter `target: Target`.

    `replaced` maps the name of one of these options to another annotation, or to None to leave it out.
    """
    added = {item.name: item for item in _parameters(keep_options)}
    added["as_json"] = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    for name, annotation in replaced.items():
        parameter = added.pop(name)
        if annotation is not None:
            added[name] = parameter.replace(annotation=annotation)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(context: typer.Context, as_json: bool, **options: object) -> None:
            given = _Connection(**{key: options.pop(key) for key in _Connection._fields if key in added})  # type: ignore[arg-type]
            if isinstance(context.obj, _Connection):
                missing = [name for name, value in given._asdict().items() if value is None]
                given = given._replace(**{name: getattr(context.obj, name) for name in missing})
            command(**options, target=_target(given, as_json))

        own = [item for item in _parameters(command) if item.name != "target"]
        parameters = [item.replace(kind=Parameter.KEYWORD_ONLY) for item in (*own, *added.values())]
        run.__signature__ = signature(run).replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        return run

    return decorate


def _parameters(function: Callable[..., None]) -> list[Parameter]:
    """The parameters of a function with their annotations resolved."""
    hints = get_type_hints(function, include_extras=True)
    return [item.replace(annotation=hints[item.name]) for item in signature(function).parameters.values()]


def _target(given: _Connection, as_json: bool) -> Target:
    if given.bootstrap_server is not None and given.name is not None:
        raise InputError("--name", "", "--name with --bootstrap-server", "one of the two")
    principal, place = given.principal, ("--principal", "")
    if principal is None and given.command_config is not None:
        place = (str(given.command_config), PRINCIPAL_KEY)
        principal = read_properties(given.command_config).get(PRINCIPAL_KEY)
    if principal is not None and (not principal.startswith("User:") or principal == "User:"):
        raise InputError(*place, principal, "User:NAME")
    return Target(given.bootstrap_server, given.name, principal, as_json)


@contextmanager
def open_admin(target: Target) -> Iterator[tuple[AdminClient, set[str]]]:
    """An administration client of the cluster, and the names of its nodes that run."""
    from experiments.engines.ray.connection import connection, find_cluster

    with connection(find_cluster(target.bootstrap, target.name)) as connected:
        yield AdminClient(connected.client, target.principal), set(connected.names)


@contextmanager
def open_nodes(target: Target) -> Iterator[tuple[AdminClient, set[str]]]:
    """As `open_admin`, but requests that only read are made of the nodes themselves, without the cluster's client."""
    from experiments.engines.ray.connection import connection, find_cluster

    with connection(find_cluster(target.bootstrap, target.name)) as connected:
        yield AdminClient(connected.nodes, target.principal), set(connected.names)


@contextmanager
def administering(target: Target, failing: str) -> Iterator[AdminClient]:
    """An administration client for the block; an AdminError ends the command with exit code 1 and a line that begins
    with `failing`.
    """
    try:
        with open_admin(target) as (admin, _):
            yield admin
    except AdminError as error:
        exit_refused(failing, error, target.as_json)


def exit_refused(failing: str, error: AdminError, as_json: bool) -> NoReturn:
    """Reports a refused request, and ends the command with exit code 1."""
    typer.echo(f"{failing}: {error}", err=True)
    if as_json:
        print_json({"error": error.error.name, "message": error.message})
    raise typer.Exit(ExitCode.FAILURE) from error


def require(result: Result) -> None:
    """Raises AdminError where a part of a request failed."""
    if result.error is not ErrorCode.NONE:
        raise AdminError(result.error, result.message)


def exit_if_failed(results: Iterable[tuple[str, Result]]) -> None:
    """Prints a line `text: error` for each failed result, given with its text; exit code 1 if there are any."""
    failed = [(text, result) for text, result in results if result.error is not ErrorCode.NONE]
    for text, result in failed:
        typer.echo(f"{text}: {AdminError(result.error, result.message)}", err=True)
    fail_if(failed)


def numbers(values: Sequence[int]) -> str:
    """Broker ids as Kafka's tools list them."""
    return ",".join(map(str, values))
