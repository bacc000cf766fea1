"""The metrics, from the tables in the docstrings of `protocol.controller.metrics` and `actors.metrics`.

Their tests hold the tables to the code. The sources are read, not imported: `actors` would load Ray.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from experiments.reference.markdown import sections

TITLE = "Metrics"
SUMMARY = "what the controller measures, and what the nodes of a cluster on Ray export"

_ROOT = Path(__file__).resolve().parents[3]
_NOTE = re.compile(r"^(\([a-z*]+\)) (.*(?:\n(?!\(|$).*)*)", re.MULTILINE)


def page() -> str:
    """The table of each source with the notes that it refers to."""
    return sections(
        "## The controller's",
        "Scenarios expect them under these names (`metrics: {name: value}`), on both engines. A summary is four "
        "metrics, `<name>_count`, `<name>_sum`, `<name>_last` and `<name>_max`, all 0 before the first event. Counters "
        "and summaries start at 0 when a controller starts, whatever the metadata log holds. Items such as I2 are "
        "those of [requirements.md](../requirements.md).",
        _table_and_notes("protocol/controller/metrics.py"),
        "## Exported by nodes on Ray",
        "Every Ray node serves them on its metrics port for Prometheus, with `ray_` in front (and `_total` behind, for "
        "counters), for as long as the cluster lives. `cluster` is the cluster's id, `node` is the node's name; "
        "*per partition* stands for the tags `cluster, node, topic, partition`. The help text of each series gives its "
        "unit and meaning.",
        _table_and_notes("actors/metrics.py"),
    )


def _table_and_notes(source: str) -> str:
    """The Markdown table in a module's docstring, and the notes `(a) ...` below it as a list."""
    document = ast.get_docstring(ast.parse((_ROOT / source).read_text(encoding="utf-8"))) or ""
    rows = [line for line in document.splitlines() if line.startswith("|")]
    notes = [f"- {mark} {' '.join(text.split())}" for mark, text in _NOTE.findall(document)]
    return sections("\n".join(rows), "\n".join(notes))
