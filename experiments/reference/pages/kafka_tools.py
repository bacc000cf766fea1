"""The options of Kafka's tools, from `experiments.cli.kafka_tools`."""

from __future__ import annotations

from experiments.cli.kafka_tools import RELEASE, KafkaTool, kafka_tools
from experiments.reference.markdown import code, sections, table

TITLE = "Kafka's tools"
SUMMARY = "every option of Kafka's tools: which of them the commands here have, and why they do not have the others"


def page() -> str:
    return sections(
        f"The tools of Apache Kafka {RELEASE}, and options of older releases that documents still show. An honoured "
        "option has the meaning that Kafka gives it; [the commands](commands.md) have more options. Any other one is "
        "refused by a line that says why. `--bootstrap-server` and `--bootstrap-controller` take the address of the "
        "cluster's Ray head, as `isray up` prints it; of the file that `--command-config` names, `principal` counts.",
        *(_section(name, tool) for name, tool in kafka_tools().items()),
    )


def _section(name: str, tool: KafkaTool) -> str:
    refused = ((code(option), why.replace("; ", "; instead: ")) for option, why in sorted(tool.refused.items()))
    return sections(
        f"## {tool.script}: {code(f'isray {name}')}",
        f"Honoured: {', '.join(map(code, tool.honoured.split()))}.",
        table(("refused", "why"), refused),
    )
