"""What commands print: the option --json, the JSON document, and tables that are not cut where output is piped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.cli.exit_codes import ExitCode
from protocol.messages.base import Message, field_values

PIPED_WIDTH = 130


def flag(name: str, help: str) -> Any:
    """An option without a value, for an `Annotated[bool, ...]`."""
    return typer.Option(name, help=help)


def option(metavar: str | None, help: str, *names: str, **settings: Any) -> Any:
    """An option with a value; without `names` it is named like its parameter. `settings` are those of typer."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


Json = Annotated[bool, flag("--json", "Print one JSON document on standard output.")]


def print_json(document: Mapping[str, object] | Sequence[object]) -> None:
    """Prints the one JSON document of a command."""
    typer.echo(json.dumps(document))


def print_result(
    as_json: bool, document: Mapping[str, object] | Sequence[object], show: Callable[..., object], *args: object
) -> None:
    """Prints the result of a command: the JSON document, or with `show(*args)` the text."""
    if as_json:
        print_json(document)
    else:
        show(*args)


def fail_if(failed: object) -> None:
    """Ends the command with exit code 1 if `failed` is true or not empty."""
    if failed:
        raise typer.Exit(ExitCode.FAILURE)


def wide_console() -> Console:
    """A console for tables: as wide as the terminal, or `PIPED_WIDTH` columns where output goes elsewhere."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPED_WIDTH)


def document(message: Message) -> dict[str, object]:
    """A message as a JSON document; errors and other enumerations by name."""
    return {name: _plain(value) for name, value in field_values(message).items()}


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return document(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    name = getattr(value, "name", None)
    return name if name is not None else value
