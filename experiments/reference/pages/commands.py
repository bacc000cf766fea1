"""The commands, from the typer application itself."""

from __future__ import annotations

from experiments.cli.describe import CommandHelp, commands
from experiments.reference.markdown import block, code, sections, table

TITLE = "Commands"
SUMMARY = "every `isray` command with its options and an example"


def page() -> str:
    described = commands()
    return sections(
        "`isray COMMAND --help` prints the same. [Exit codes](exit-codes.md) are common to all commands.",
        *(_section(command) for command in described),
    )


def _section(command: CommandHelp) -> str:
    options = [(code(names), text) for names, text in (*command.arguments, *command.options)]
    return sections(
        f"## {code(command.path)}",
        command.help,
        block(command.example, "sh") if command.example else "",
        table(("argument or option", "meaning"), options) if options else "",
    )
