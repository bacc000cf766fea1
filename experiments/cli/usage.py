"""Wrong options and arguments as one line, like any other wrong input.

typer finds them before a command runs, and raises an error of its own. `as_input_error` converts it to an `InputError`
whose source is the option, the argument or the command.
"""

from __future__ import annotations

import typer
from pydantic import ValidationError

from experiments.cli.help import Parsed, placeholder
from experiments.support.errors import InputError, MissingInput
from experiments.support.yaml_input import allowed_by, first_error
from protocol.errors import did_you_mean

_NO_SUCH_COMMAND = "No such command"
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
        options = _options(context)
        found = f"option {error.option_name}{did_you_mean(error.option_name, options)}"
        return InputError(context.command_path, "", found, _one_of(options))
    if message.startswith(_NO_SUCH_COMMAND):
        found, known = message.removeprefix(_NO_SUCH_COMMAND).strip(), context.command.list_commands(context)
        hint = did_you_mean(found.strip("'\""), known)
        return InputError(context.command_path, "", f"command {found}{hint}", _one_of(known))
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
    return InputError(name, "", repr(details["input"]), allowed)


def _usage(context: Parsed) -> str:
    """The command with all its required parameters."""
    pieces = [context.command_path]
    for param in context.command.get_params(context):
        if param.required:
            pieces += [max(param.opts, key=len)] if param.param_type_name == "option" else []
            pieces.append(placeholder(param))
    return " ".join(pieces)


def _options(context: Parsed) -> list[str]:
    return [name for param in context.command.get_params(context) for name in param.opts if name.startswith("--")]


def _one_of(names: list[str]) -> str:
    return f"one of {', '.join(names)}"
