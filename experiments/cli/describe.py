"""Every command of the application as data: what `--help` prints, for the reference page and for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import typer

EXAMPLE = "Example:"


class CommandHelp(NamedTuple):
    """One command. `path` begins with `isray`; `arguments` and `options` are pairs of names and meaning; `example` is
    one command line or several, empty for a command without one.
    """

    path: str
    help: str
    arguments: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    example: str


def example(*lines: str) -> str:
    """The epilog of a command: its example, which help prints as it is written."""
    return "\n".join(["\b", EXAMPLE, *(f"  {line}" for line in lines)])


def commands() -> list[CommandHelp]:
    """All commands that can be called, in the order of `isray --help`; a group counts where it does something alone."""
    from experiments.cli.main import app

    return list(_walk(typer.main.get_command(app), None, "isray"))


def _walk(command: Any, parent: Any, path: str) -> Iterator[CommandHelp]:
    context = command.make_context(path, [], parent, resilient_parsing=True)
    subcommands = getattr(command, "commands", {})
    if not subcommands or command.invoke_without_command:
        yield _described(command, context)
    for name in subcommands:
        yield from _walk(subcommands[name], context, name)


def _described(command: Any, context: Any) -> CommandHelp:
    records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and param.name != "help":
            records[param.param_type_name].append(record)
    lines = (command.epilog or "").partition(EXAMPLE)[2].splitlines()
    return CommandHelp(
        path=context.command_path,
        help=" ".join((command.help or "").split()),
        arguments=tuple(records["argument"]),
        options=tuple(records["option"]),
        example="\n".join(line.strip() for line in lines if line.strip()),
    )
