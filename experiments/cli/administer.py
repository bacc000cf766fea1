"""The requests of a tool to the cluster that it addresses, and what it reports where they fail.

A request that the cluster refuses is exit code 1 and one line on standard error; with `--json`, the document on
standard output reports it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import typer

from experiments.cli.output import fail, fail_if
from experiments.cli.target import Target
from experiments.engines.admin_client import AdminClient, AdminError
from protocol.errors import ErrorCode
from protocol.messages.admin import Result


@contextmanager
def open_admin(target: Target, asks_nodes: bool = False) -> Iterator[tuple[AdminClient, set[str]]]:
    """An administration client of the cluster, and the names of its nodes that run. With `asks_nodes`, requests that
    only read are made of the nodes themselves, without the cluster's client.
    """
    from experiments.engines.ray.connection import connection, find_cluster

    with connection(find_cluster(target.bootstrap, target.name)) as connected:
        port = connected.nodes if asks_nodes else connected.client
        yield AdminClient(port, target.principal), set(connected.names)


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
    fail(f"{failing}: {error}", {"error": error.error.name, "message": error.message} if as_json else None)


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
