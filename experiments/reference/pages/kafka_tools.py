"""The options of Kafka's tools, from `experiments.cli.kafka_tools`."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.cli.kafka_tools import RELEASE, KafkaTool, kafka_tools, other_scripts
from experiments.reference.markdown import code, sections, table

TITLE = "Kafka's tools"
SUMMARY = "every option of Kafka's tools: which of them the commands here have, and why they do not have the others"
_INSTEAD = "; instead: "


def page() -> str:
    return sections(
        f"The tools of Apache Kafka {RELEASE}, and options of older releases that documents still show. An honoured "
        "option has the meaning that Kafka gives it; [the commands](commands.md) have more options. Any other one is "
        "refused by a line that says why. `--bootstrap-server` and `--bootstrap-controller` take the address of the "
        "cluster's Ray head, as `isray up` prints it; of the file that `--command-config` names, `principal` counts.",
        "A node has one log directory: several of them, and cordoned ones, are not modelled.",
        *(_section(name, tool) for name, tool in kafka_tools().items()),
        "## Other scripts",
        table(("script", "why there is no such command"), _rows(other_scripts())),
    )


def _section(name: str, tool: KafkaTool) -> str:
    return sections(
        f"## {tool.script}: {code(f'isray {name}')}",
        f"Honoured: {', '.join(map(code, tool.honoured.split()))}.",
        table(("honoured in part", "which values"), _rows(tool.partly)),
        table(("refused", "why"), _rows(tool.refused)),
    )


def _rows(refused: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(code(name), why.replace("; ", _INSTEAD)) for name, why in sorted(refused.items())]
