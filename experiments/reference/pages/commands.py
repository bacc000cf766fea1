"""The commands, from the typer application itself."""

from __future__ import annotations

from experiments.cli.help import CommandHelp, commands
from experiments.cli.main import application
from experiments.reference.markdown import block, code, sections, table

TITLE = "Commands"
SUMMARY = "every `isray` command with its options and an example"


def page() -> str:
    return sections(
        "`isray COMMAND --help` prints the same. The [exit codes](exit-codes.md) are common to all commands.",
        *map(_section, commands(application())),
    )


def _section(command: CommandHelp) -> str:
    return sections(
        f"## {code(command.path)}",
        command.help,
        block("\n".join(command.examples), "sh"),
        table(("argument or option", "meaning"), [(code(names), text) for names, text in command.parameters]),
    )
