"""Kafka's tools and their options: which of them the commands here have, and why they do not have the others.

`kafka_tools.yaml` declares both, once: for the line that refuses an option, and for docs/reference/kafka-tools.md.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from experiments.support.errors import InputError
from experiments.support.yaml_input import read_yaml_mapping

RELEASE = "4.4.0"
"""The release of Kafka whose tools the declarations list."""
_EVERY, _OTHERS = "every", "others"
_FILE = Path(__file__).with_suffix(".yaml")


class KafkaTool(BaseModel):
    """A tool of Kafka's: the names of the options (and subcommands) that the command here has; those of which it takes
    some values, with these; the others, each with why it has none and, behind the last `;`, what to give instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    script: str = ""
    honoured: str = ""
    partly: dict[str, str] = {}
    refused: dict[str, str] = {}


@cache
def _declared() -> dict[str, KafkaTool]:
    return {name: KafkaTool.model_validate(tool) for name, tool in read_yaml_mapping(_FILE, "Kafka's tools").items()}


def kafka_tools() -> dict[str, KafkaTool]:
    """The tools by the command here (`features` for all its subcommands), each with what is refused of every tool."""
    common = _declared()[_EVERY].refused
    tools = ((name, tool) for name, tool in _declared().items() if tool.script)
    return {name: tool.model_copy(update={"refused": tool.refused | common}) for name, tool in tools}


def other_scripts() -> dict[str, str]:
    """The scripts of Kafka's that no command stands for, each with why, as `KafkaTool.refused`."""
    return _declared()[_OTHERS].refused


def refusal(command_path: str, name: str) -> InputError | None:
    """Why the command (`isray features upgrade`) does not have an option, or a subcommand, of Kafka's tool; None where
    the tool has none of this name either.
    """
    if command_path == "isray":
        return _script_refusal(name)
    tool = kafka_tools().get(command_path.removeprefix("isray ").partition(" ")[0])
    if tool is None or name not in tool.refused:
        return None
    why, _, instead = tool.refused[name].partition("; ")
    return InputError(command_path, "", f"{name} of {tool.script}, {why}", instead or "the command without it")


def _script_refusal(name: str) -> InputError | None:
    """As `refusal`, for the name of a script, with `kafka-` and `.sh` or without."""
    script = f"kafka-{name.removeprefix('kafka-').removesuffix('.sh')}.sh"
    for command, tool in kafka_tools().items():
        if tool.script == script:
            return InputError("isray", "", f"{name}, a script of Kafka's", f"isray {command}")
    if script not in other_scripts():
        return None
    why, _, instead = other_scripts()[script].partition("; ")
    return InputError("isray", "", f"{name}, {why}", instead)
