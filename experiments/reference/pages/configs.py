"""The configs, from `protocol.config.CONFIGS`."""

from __future__ import annotations

from experiments.reference.markdown import code, sections, table
from protocol.config import CONFIGS, INT_MAX, NEVER, ConfigDef, config_text
from protocol.features import Generation

TITLE = "Configs"
SUMMARY = "the configs of clusters, topics and clients: type, unit, default, range and meaning"

_COLUMNS = ("config", "type", "unit", "default", "allowed", "change", "generations", "source", "meaning")


def page() -> str:
    definitions = sorted(CONFIGS.values(), key=lambda definition: definition.name)
    return sections(
        "Scenario and study files set them under `configs`, `isray up --config NAME=VALUE` for a cluster, and "
        "`isray configs` in a running one. Names are Kafka's, where Kafka has the config.",
        "*dynamic* configs can be changed in a running cluster; *read-only* ones take effect when a node starts. "
        "Items such as H1 are those of [requirements.md](../requirements.md).",
        "## Configs of topics",
        "The value of the cluster is the default of its topics; each topic can override it.",
        table(_COLUMNS, (_row(it) for it in definitions if it.topic_scoped)),
        "## Configs of the cluster",
        table(_COLUMNS, (_row(it) for it in definitions if not it.topic_scoped)),
    )


def _row(definition: ConfigDef) -> tuple[str, ...]:
    change = "read-only" if definition.read_only else "dynamic"
    kind = definition.type_name.lower()
    value = "never" if definition.default == NEVER else config_text(definition.default)
    default = "(empty)" if definition.default == "" else code(value)
    allowed = _range(definition) or definition.allowed.replace(" | ", ", ").lstrip(", ")
    names = ", ".join(generation.value for generation in definition.generations)
    generations = "all" if definition.generations == tuple(Generation) else names
    described = (generations, definition.source, definition.text)
    return code(definition.name), kind, definition.unit, default, allowed, change, *described


def _range(definition: ConfigDef) -> str:
    """The range of a whole number, empty for other types."""
    if definition.type_name not in ("INT", "LONG"):
        return ""
    is_bounded = definition.maximum not in (INT_MAX, NEVER)
    return f"{definition.minimum} to {definition.maximum}" if is_bounded else f"from {definition.minimum}"
