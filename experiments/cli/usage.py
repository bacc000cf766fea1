"""Wrong options and arguments, in the one line that says what any wrong input is.

typer finds them before a command runs, and raises an error of its own. What it says is put in the form of `InputError`
here, with the option or the argument in the place of a file.
"""

from __future__ import annotations

from typing import Any

import typer

from experiments.support.errors import InputError

_NO_SUCH_COMMAND = "No such command"
_TOO_MANY = "Got unexpected extra argument"
_SEE_HELP = "what --help says"


def as_input_error(error: Any) -> InputError | None:
    """What typer's error (`typer.TyperException`) says; None where it was a wish for help, which has been shown."""
    if isinstance(error, typer.BadParameter):
        return _of_parameter(error)
    message, context = " ".join(str(error.message).split()), error.ctx
    if not message:
        return None
    if hasattr(error, "possibilities"):
        return InputError(context.command_path, "", f"option {error.option_name}", _one_of(_options(context)))
    if hasattr(error, "option_name"):
        return InputError(error.option_name, "", message.removesuffix("."), _SEE_HELP)
    if message.startswith(_NO_SUCH_COMMAND):
        found = message.removeprefix(_NO_SUCH_COMMAND).strip(" .")
        return InputError(context.command_path, "", f"command {found}", _one_of(context.command.list_commands(context)))
    if message.startswith(_TOO_MANY):
        found = message.rpartition("(")[2].strip(" .)")
        return InputError(context.command_path, "", f"more arguments: {found}", _SEE_HELP)
    return InputError(context.command_path, "", message.removesuffix("."), _SEE_HELP)


def _of_parameter(error: typer.BadParameter) -> InputError:
    """A value that is none, or none given."""
    from pydantic import ValidationError

    from experiments.support.yaml_input import allowed_by, first_error

    param: Any = error.param
    name = _hint(error) if param is None else max(param.opts, key=len) if param.opts else param.display_name_raw
    if not isinstance(error.__cause__, ValidationError):
        return InputError(name, "", error.message or "none", _SEE_HELP if error.message else "a value (required)")
    details = first_error(error.__cause__)
    allowed = allowed_by(details).rpartition(" is not ")[2].removesuffix(".")
    if param is not None and None not in (param.min, param.max):
        allowed = f"{param.min} to {param.max}"
    return InputError(name, "", repr(details["input"]), allowed)


def _hint(error: typer.BadParameter) -> str:
    hint = error.param_hint or "arguments"
    return hint if isinstance(hint, str) else " / ".join(hint)


def _options(context: Any) -> list[str]:
    return [name for param in context.command.get_params(context) for name in param.opts if name.startswith("--")]


def _one_of(names: list[str]) -> str:
    return f"one of {', '.join(names)}"
