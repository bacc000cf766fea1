"""The life cycle of a broker that speaks Kafka's protocol, as a file: how a node is formatted, started and stopped, and
how its state is read. `apache-kafka.yaml` beside this module is the one that the engine uses by default.

In command lines, files and environment a name in braces stands for a value of the node (`PLACEHOLDERS`). A word of a
command line that is one of `{voters}`, `{features}` and `{archive}` alone becomes as many words as there are, none too.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from experiments.support.errors import InputError, WrongField
from experiments.support.fields import StrictModel
from experiments.support.yaml_input import read_yaml_mapping, validated

SHIPPED = Path(__file__).with_name("apache-kafka.yaml")
PLACEHOLDERS: Mapping[str, str] = {
    "id": "the id of the node",
    "host": "the name under which other nodes reach it",
    "port": "the port that it listens on, on 127.0.0.1",
    "folder": "its folder: that of `files`, and of its file `hosts`",
    "disk": "the folder of its data, which `lose_disk` replaces",
    "seeds": "the other nodes as NAME:PORT, separated by commas",
    "properties": "its settings as Apache Kafka's properties",
    "cluster_id": "the id of the cluster",
    "java": "the folder of the program java",
    "classpath": "the jars of the release",
    "heap_mb": "megabytes of heap: 128 for a controller, 256 for a broker",
    "voters": "words for `format`: how Apache Kafka's controllers form the first quorum",
    "features": "words for `format`: the feature levels of the scenario's generation",
    "archive": "words for the JVM: its archive of the release's classes, where `isray kafka install` has written one",
}
_WORDS = ("voters", "features", "archive")
_NAME = re.compile(r"\{([a-z_]+)\}")
Words = Annotated[list[str], Field(min_length=1)]


class LifeCycle(StrictModel):
    """What `--life-cycle FILE` describes."""

    name: str = Field(min_length=1, description="name of the broker, for messages")
    release: bool = Field(default=False, description="whether it runs from the jars of a release, and needs a JDK")
    controllers: bool = Field(default=True, description="whether controllers are processes of their own")
    state: Literal["metadata-log", "protocol"] = Field(
        description="how the state is read: `metadata-log`, from the metadata log on the controllers' disks; or "
        "`protocol`, by requests to the brokers"
    )
    files: dict[str, str] = Field(default_factory=dict, description="files of a node's folder, by name")
    environment: dict[str, str] = Field(default_factory=dict, description="variables beside those of this process")
    format: list[str] = Field(default_factory=list, description="command line that formats a new disk; none: nothing")
    start: Words = Field(description="command line of a node's process")
    stop: Literal["TERM", "INT"] = Field(default="TERM", description="signal that begins a controlled shutdown")

    @model_validator(mode="after")
    def _readable(self) -> LifeCycle:
        if self.state == "metadata-log" and not self.controllers:
            raise WrongField("state", "metadata-log without controllers", "protocol")
        return self

    @property
    def stop_signal(self) -> signal.Signals:
        return signal.Signals[f"SIG{self.stop}"]


def read_life_cycle(path: Path = SHIPPED) -> LifeCycle:
    """InputError for a file that is no life cycle, or has a placeholder that does not exist."""
    found = validated(LifeCycle, read_yaml_mapping(path, "a life cycle"), str(path))
    texts = {"format": found.format, "start": found.start, "files": found.files.values()}
    texts["environment"] = found.environment.values()
    for field, lines in texts.items():
        for name in (name for line in lines for name in _NAME.findall(line)):
            if name not in PLACEHOLDERS:
                raise InputError(str(path), field, f"{{{name}}}", f"one of {', '.join(PLACEHOLDERS)}")
    return found


def filled(text: str, values: Mapping[str, object]) -> str:
    """The text with values in the place of placeholders; other braces stay."""
    return _NAME.sub(lambda found: str(values[found[1]]) if found[1] in values else found[0], text)


def command_line(words: Sequence[str], values: Mapping[str, object], lists: Mapping[str, Sequence[str]]) -> list[str]:
    """The words of a command line with values in the place of placeholders, `lists` in that of whole words."""
    line: list[str] = []
    for word in words:
        name = word.removeprefix("{").removesuffix("}")
        if name in _WORDS and word == f"{{{name}}}":
            line += lists[name]
        else:
            line.append(filled(word, values))
    return line
