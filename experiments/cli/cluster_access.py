"""The options that select the cluster and the principal of a tool, and the client that they give.

A request that the cluster refuses is exit code 1 and one line on standard error; with `--json`, the document on
standard output reports it, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn, cast, get_type_hints

import typer

from experiments.cli.help import Function
from experiments.cli.output import Json, fail, fail_if, option
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.engines.clusters.node_commands import Ask
from experiments.support.errors import InputError
from experiments.support.properties import read_properties
from protocol.errors import ErrorCode
from protocol.ids import Epoch
from protocol.messages.admin import Result

BootstrapServer = Annotated[
    str | None,
    option("HOST:PORT", "The cluster's Ray head, as `isray up` prints it. Default: the only cluster that runs here."),
]
Bootstrap = Annotated[
    str | None,
    option(
        "HOST:PORT",
        "The cluster's Ray head, for brokers and controllers. Default: the only cluster that runs here.",
        "--bootstrap-server",
        "--bootstrap-controller",
    ),
]
"""Where Kafka's tool can ask the controllers. A client here asks them first in any case."""
OwnCluster = Annotated[str | None, option("NAME", "Your cluster of this name on this machine (isray up --name).")]
_CONFIG_HELP = "A properties file; principal=User:NAME makes requests as NAME."
CommandConfig = Annotated[Path | None, option("FILE", _CONFIG_HELP)]
ProducerConfig = Annotated[Path | None, option("FILE", _CONFIG_HELP, "--command-config", "--producer.config")]
ConsumerConfig = Annotated[Path | None, option("FILE", _CONFIG_HELP, "--command-config", "--consumer.config")]
Principal = Annotated[str | None, option("User:NAME", "The principal of the requests; goes before the file's.")]
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to address, the principal of the requests, whether the answer is printed as JSON, and the properties
    file of the command.
    """

    bootstrap: str | None = None
    name: str | None = None
    principal: str | None = None
    as_json: bool = False
    config: Path | None = None


class _Given(NamedTuple):
    """The values of the options that select a target, as they were given; None is not given."""

    bootstrap_server: str | None
    name: str | None
    command_config: Path | None
    principal: str | None


def keep_options(
    context: typer.Context,
    bootstrap_server: Bootstrap = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
) -> None:
    """The callback of a tool with subcommands: as in Kafka's tools these options may come before the subcommand."""
    context.obj = _Given(bootstrap_server, name, command_config, principal)


def on_cluster(server: object = Bootstrap, config: object = CommandConfig) -> Callable[[Function], Function]:
    """Has a command take the options that select a cluster and the principal of its requests, and `--json`, behind its
    own; its first parameter, `target`, is what they select. An option that is not given takes its value from before the
    subcommand. `server`, `config`: the types of `--bootstrap-server` and `--command-config`.
    """
    options = dict(zip(_Given._fields, (server, OwnCluster, config, Principal), strict=True))

    def of(command: Function) -> Function:
        def run(**given: object) -> object:
            context, as_json = cast(typer.Context, given.pop("context")), cast(bool, given.pop("as_json"))
            found = _Given._make(given.pop(name) for name in _Given._fields)
            if isinstance(context.obj, _Given):
                found = found._replace(**{n: v for n, v in context.obj._asdict().items() if getattr(found, n) is None})
            return command(_selected(found, as_json), **given)

        types = get_type_hints(command, include_extras=True)
        _, *own = inspect.signature(command).parameters.values()
        parameters = [
            inspect.Parameter("context", _KEYWORD, annotation=typer.Context),
            *(one.replace(kind=_KEYWORD, annotation=types[one.name]) for one in own),
            *(inspect.Parameter(name, _KEYWORD, default=None, annotation=type_) for name, type_ in options.items()),
            inspect.Parameter("as_json", _KEYWORD, default=False, annotation=Json),
        ]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return of


def target_of(
    bootstrap_server: str | None,
    name: str | None,
    as_json: bool,
    command_config: Path | None = None,
    principal: str | None = None,
) -> Target:
    """The target that the options of a command select. InputError for contradicting options or a wrong principal."""
    return _selected(_Given(bootstrap_server, name, command_config, principal), as_json)


def _selected(given: _Given, as_json: bool) -> Target:
    if given.bootstrap_server is not None and given.name is not None:
        raise InputError("--name", "", "--name with --bootstrap-server", "one of the two")
    principal, place = given.principal, ("--principal", "")
    if principal is None and given.command_config is not None:
        place = (str(given.command_config), "principal")
        principal = read_properties(given.command_config).get("principal")
    if principal is not None and not is_principal(principal):
        raise InputError(*place, principal, "User:NAME")
    return Target(given.bootstrap_server, given.name, principal, as_json, given.command_config)


def is_principal(text: str) -> bool:
    return text.startswith("User:") and text != "User:"


class Opened(NamedTuple):
    """An administration client of a cluster, the names of its nodes that run, what asks its supervisor, and what asks a
    broker in which epoch it is registered (None: it does not answer).
    """

    admin: AdminClient
    names: set[str]
    ask: Ask
    broker_epoch: Callable[[str], Epoch | None]


@contextmanager
def open_admin(target: Target, asks_nodes: bool = False) -> Iterator[Opened]:
    """Connects to the cluster. With `asks_nodes`, the nodes answer requests that only read themselves, without the
    cluster's client.
    """
    from experiments.engines.ray.connection import connection, find_cluster
    from experiments.engines.ray.supervision import through_ray

    with connection(find_cluster(target.bootstrap, target.name)) as connected:
        port = connected.nodes if asks_nodes else connected.client
        ask = through_ray(connected.client)
        yield Opened(AdminClient(port, target.principal), set(connected.names), ask, connected.nodes.broker_epoch)


@contextmanager
def administering(target: Target, failing: str) -> Iterator[AdminClient]:
    """An administration client for the block; an AdminError ends the command with exit code 1 and a line that begins
    with `failing`.
    """
    try:
        with open_admin(target) as opened:
            yield opened.admin
    except AdminError as error:
        exit_refused(failing, error, target.as_json)


def exit_refused(failing: str, error: AdminError, as_json: bool) -> NoReturn:
    """Reports a refused request, and ends the command with exit code 1."""
    fail(f"{failing}: {error}", {"error": error.error.name, "message": error.message} if as_json else None)


def require(result: Result) -> None:
    """Raises AdminError where a part of a request failed."""
    if result.error is not ErrorCode.NONE:
        raise AdminError(result.error, result.message)


def exit_if_failed(results: Iterable[tuple[str, Result]]) -> None:
    """Prints a line `text: error` for each failed result, given with its text; exit code 1 if there are any."""
    failed = [f"{text}: {AdminError(it.error, it.message)}" for text, it in results if it.error is not ErrorCode.NONE]
    for line in failed:
        typer.echo(line, err=True)
    fail_if(failed)


def numbers(values: Sequence[int]) -> str:
    """Broker ids as Kafka's tools list them."""
    return ",".join(map(str, values))
