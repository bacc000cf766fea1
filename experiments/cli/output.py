"""What the commands share: the declaration of options, the exit codes, and what commands print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, NoReturn

import typer
from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.table import Column, Table


class ExitCode(IntEnum):
    """An exit code; `meaning` is its line in docs/reference/exit-codes.md."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "The command did what it was asked to do, and found no failure."
    FAILURE = (
        1,
        "The run found a failure: a violated invariant, an unmet expectation, a mismatch, a surviving mutant; a trial "
        "or pipeline failed; a cluster is unhealthy or refused the request; or a question was answered with no.",
    )
    WRONG_INPUT = (
        2,
        "The input is wrong. One line on standard error gives the file or option, the field, what was found and what "
        "is allowed.",
    )
    INTERRUPTED = 130, "An interrupt (Ctrl-C) ended the command before it was done."


def flag(name: str, help: str) -> object:
    """An option without a value, for an `Annotated[bool, ...]`."""
    return typer.Option(name, help=help)


def option(metavar: str | None, help: str, *names: str, min: float | None = None, max: float | None = None) -> object:
    """An option with a value from `min` to `max`; without `names` it is named like its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, min=min, max=max)


Json = Annotated[bool, flag("--json", "Print one JSON document on standard output.")]


def print_json(document: Mapping[str, object] | Sequence[object]) -> None:
    typer.echo(json.dumps(document))


def print_result(
    as_json: bool, document: Mapping[str, object] | Sequence[object], show: Callable[..., object], *args: object
) -> None:
    """Prints the result of a command: the JSON document, or with `show(*args)` the text."""
    if as_json:
        print_json(document)
    else:
        show(*args)


def fail(text: str, document: Mapping[str, object] | None = None, code: ExitCode = ExitCode.FAILURE) -> NoReturn:
    """Ends the command with a line on standard error; `document` is its JSON document, None where none is printed."""
    typer.echo(text, err=True)
    if document is not None:
        print_json(document)
    raise typer.Exit(code)


def fail_if(failed: object) -> None:
    """Ends the command with exit code 1 if `failed` is true or not empty."""
    if failed:
        raise typer.Exit(ExitCode.FAILURE)


def table_of(
    columns: Iterable[str | Column], rows: Iterable[Sequence[str]], *, title: str | None = None, lines: bool = False
) -> Table:
    """A table of texts; with `lines` it is drawn with a frame."""
    table = Table(*columns, title=title, box=HEAVY_HEAD if lines else None)
    for row in rows:
        table.add_row(*row)
    return table


def print_first(console: Console, lines: Sequence[str], most: int = 100) -> None:
    for line in (*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])):
        console.print(line)


NARROW = 100


def wide_console() -> Console:
    """A console as wide as the terminal, or wide enough for tables where output goes elsewhere."""
    console = Console()
    return console if console.is_terminal else Console(width=130)


def narrow_console() -> Console:
    """A console as wide as the terminal, at most 100 columns, and as wide as that where output goes elsewhere."""
    console = Console()
    return Console(width=min(console.width, NARROW) if console.is_terminal else NARROW)
