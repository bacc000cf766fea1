"""The options of Kafka's tools: which of them the commands here have, and why they do not have the others.

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
ALL_TOOLS = "every"
_FILE = Path(__file__).with_suffix(".yaml")


class KafkaTool(BaseModel):
    """A tool of Kafka's: the names of the options (and subcommands) that the command here has; the others by name, each
    with why it has none and, behind the last `;`, what to give instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    script: str = ""
    honoured: str = ""
    refused: dict[str, str] = {}


@cache
def kafka_tools() -> dict[str, KafkaTool]:
    """The tools by the command here (`features` for all its subcommands), each with what is refused of every tool."""
    read = {name: KafkaTool.model_validate(tool) for name, tool in read_yaml_mapping(_FILE, "Kafka's tools").items()}
    common = read.pop(ALL_TOOLS).refused
    return {name: tool.model_copy(update={"refused": tool.refused | common}) for name, tool in read.items()}


def refusal(command_path: str, name: str) -> InputError | None:
    """Why the command (`isray features upgrade`) does not have an option, or a subcommand, of Kafka's tool; None where
    the tool has none of this name either.
    """
    tool = kafka_tools().get(command_path.removeprefix("isray ").partition(" ")[0])
    if tool is None or name not in tool.refused:
        return None
    why, _, instead = tool.refused[name].partition("; ")
    return InputError(command_path, "", f"{name} of {tool.script}, {why}", instead or "the command without it")
