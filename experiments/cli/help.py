"""How commands describe themselves: `--help` pages that are readable at any width, each with an example.

Commands are registered with an `App`, a typer application whose help is plain text: option names are printed whole, on
a line of their own where they are long, and the commands of a group are listed in sections.

Wrong options and arguments are one line, like any other wrong input: typer finds them before a command runs, and raises
an error of its own, which `as_input_error` converts to an `InputError` of the option, the argument or the command. It
says of an option of Kafka's tool why the command does not have it (`kafka_tools.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from experiments.cli.kafka_tools import refusal
from experiments.support.errors import InputError, MissingInput
from experiments.support.fields import release_hint
from experiments.support.yaml_input import allowed_by, first_error
from protocol.errors import did_you_mean

Parsed: TypeAlias = Any
"""A command, context, parameter, formatter or error of the parser within typer, whose classes are private to it."""
_EXAMPLE = "Example:"


class Section(StrEnum):
    """The headings of `isray --help`, in its order."""

    EXPERIMENTS = "Experiments"
    STUDIES = "Studies"
    CLUSTER = "Cluster"
    TOOLS = "Tools"
    BENCHES = "Benches"
    COMMANDS = "Commands"


Function = Callable[..., object]


class App(typer.Typer):
    """A group of commands. `help` is one sentence; a group with `examples` of its own does something without a command,
    the others then print their help. `callback` takes options before the command. A command whose name has two words
    goes before the one that is named like the first of them.
    """

    def __init__(self, help: str, *examples: str, callback: Function | None = None) -> None:
        super().__init__(
            help=help,
            epilog=_epilog(*examples) if examples else None,
            cls=_Group,
            callback=callback,
            invoke_without_command=bool(examples),
            no_args_is_help=not examples,
            rich_markup_mode=None,
            add_completion=False,
        )

    def register(
        self, name: str, *examples: str, section: Section = Section.COMMANDS
    ) -> Callable[[Function], Function]:
        """Makes a function the command `name`; `examples` are whole command lines."""
        return self.command(name, cls=_Command, epilog=_epilog(*examples), rich_help_panel=section)


def _epilog(*examples: str) -> str:
    return "\n".join(["\b", _EXAMPLE, *(f"  {line}" for line in examples)])


class CommandHelp(NamedTuple):
    """One command. `path` begins with `isray`; `parameters` are pairs of what to type and what it means; `examples`
    are command lines.
    """

    path: str
    help: str
    parameters: tuple[tuple[str, str], ...]
    examples: tuple[str, ...]


def commands(app: typer.Typer) -> list[CommandHelp]:
    """All commands of `isray` that do something, in the order of its help."""
    return list(_walk(typer.main.get_command(app), None, "isray"))


def _walk(command: Parsed, parent: Parsed, name: str) -> Iterator[CommandHelp]:
    context = command.make_context(name, [], parent, resilient_parsing=True)
    subcommands = getattr(command, "commands", {})
    if not subcommands or command.invoke_without_command:
        lines = (command.epilog or "").partition(_EXAMPLE)[2].splitlines()
        examples = tuple(line.strip() for line in lines if line.strip())
        rows = (*_rows(command, context, "argument"), *_rows(command, context, "option"))
        yield CommandHelp(context.command_path, " ".join((command.help or "").split()), rows, examples)
    for subcommand in subcommands:
        yield from _walk(subcommands[subcommand], context, subcommand)


def _rows(command: Parsed, context: Parsed, kind: str) -> tuple[tuple[str, str], ...]:
    """What to type for each parameter of a kind (`argument` or `option`), and its meaning with default and range."""
    params = [param for param in command.get_params(context) if param.param_type_name == kind]
    records = [(param, param.get_help_record(context)) for param in params]
    return tuple(
        (placeholder(param) if kind == "argument" else record[0], record[1])
        for param, record in records
        if record is not None and param.name != "help"
    )


def placeholder(param: Parsed) -> str:
    return str(param.metavar or param.name.upper())


class _Command(TyperCommand):
    """A command whose parameters are listed by `_rows`."""

    def format_options(self, ctx: Parsed, formatter: Parsed) -> None:
        _write(formatter, "Arguments", _rows(self, ctx, "argument"))
        _write(formatter, "Options", (*_rows(self, ctx, "option"), ("--help", "Show this message and exit.")))


class _Group(TyperGroup):
    """A group whose commands are listed in sections, each with the whole first paragraph of its help."""

    def parse_args(self, ctx: Parsed, args: list[str]) -> list[str]:
        words = " ".join(args[:2])
        return super().parse_args(ctx, [words, *args[2:]] if words in self.commands else args)

    def format_commands(self, ctx: Parsed, formatter: Parsed) -> None:
        for section in Section:
            own = [item for item in self.commands.items() if _section(item[1]) == section]
            ordered = sorted(own, key=lambda item: not isinstance(item[1], _Group))
            rows = [(name, " ".join((item.help or "").partition("\n\n")[0].split())) for name, item in ordered]
            _write(formatter, section, tuple(rows))


def _section(command: Parsed) -> Section:
    return Section(command.rich_help_panel or Section.COMMANDS)


def _write(formatter: Parsed, heading: str, rows: tuple[tuple[str, str], ...]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)


_NO_SUCH_COMMAND = re.compile(r"""No such command (['"])(.*?)\1""")
_TOO_MANY = "Got unexpected extra argument"
_HELP = "Usage: "


def as_input_error(error: Parsed) -> InputError | None:
    """`error` (a `typer.TyperException`) as an InputError; None for a group without a subcommand, after its help."""
    if isinstance(error, typer.BadParameter):
        return _parameter_error(error)
    message, context = " ".join(str(error.message).split()).removesuffix("."), error.ctx
    if message.startswith(_HELP):
        typer.echo(error.message)
        return None
    if hasattr(error, "option_name") and not hasattr(error, "possibilities"):
        return MissingInput(f"the value of {error.option_name}", f"{error.option_name} VALUE")
    usage = _usage(context)
    if hasattr(error, "possibilities"):
        if refused := refusal(context.command_path, error.option_name):
            return refused
        params = context.command.get_params(context)
        options = [name for param in params for name in param.opts if name.startswith("--")]
        found = f"option {error.option_name}{did_you_mean(error.option_name, options)}"
        return InputError(context.command_path, "", found, f"one of {', '.join(options)}")
    if unknown := _NO_SUCH_COMMAND.match(message):
        name, known = unknown[2], context.command.list_commands(context)
        if refused := refusal(context.command_path, name):
            return refused
        found = f"command {name!r}{did_you_mean(name, known)}"
        return InputError(context.command_path, "", found, f"one of {', '.join(known)}")
    if message.startswith(_TOO_MANY):
        return InputError(context.command_path, "", f"more arguments: {message.rpartition('(')[2].strip(' )')}", usage)
    return InputError(context.command_path, "", message, usage)


def _parameter_error(error: typer.BadParameter) -> InputError:
    """A value of the wrong type or out of range, or a parameter that is missing."""
    param: Parsed = error.param
    usage = _usage(error.ctx)
    if param is None:
        hint = error.param_hint or "arguments"
        return InputError(hint if isinstance(hint, str) else " / ".join(hint), "", error.message, usage)
    name = max(param.opts, key=len) if param.param_type_name == "option" else placeholder(param)
    if not isinstance(error.__cause__, ValidationError):
        return InputError(name, "", error.message, usage) if error.message else MissingInput(name, usage)
    details = first_error(error.__cause__)
    allowed = allowed_by(details).rpartition(" is not ")[2].removesuffix(".")
    if None not in (param.min, param.max):
        allowed = f"{param.min} to {param.max}"
    if name == "--generation" and (said := release_hint(details["input"])):
        allowed = f"{allowed}; {said}"
    return InputError(name, "", repr(details["input"]), allowed)


def _usage(context: Parsed) -> str:
    """The command with all its required parameters."""
    pieces = [context.command_path]
    for param in context.command.get_params(context):
        if param.required:
            pieces += [max(param.opts, key=len)] if param.param_type_name == "option" else []
            pieces.append(placeholder(param))
    return " ".join(pieces)
