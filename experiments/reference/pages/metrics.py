"""The metrics, from `protocol.metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.reference.markdown import code, sections, table
from protocol.metrics import CONTROLLER_METRICS, MAX_PARTITION_SERIES, NODE_METRICS, POLLED_METRICS, Metric

TITLE = "Metrics"
SUMMARY = "what the controller measures, and what the nodes of a cluster on Ray export"


def page() -> str:
    return sections(
        "## The controller's",
        "Scenarios expect them under these names (`metrics: {name: value}`), on both engines. A summary is four "
        "metrics, `<name>_count`, `<name>_sum`, `<name>_last` and `<name>_max`, all 0 before the first event. Counters "
        "and summaries start at 0 when a controller starts, whatever the metadata log holds. Items such as I2 are "
        "those of [requirements.md](../requirements.md). The last column is Kafka's MBean, for those that Kafka has.",
        _table(CONTROLLER_METRICS),
        "## Exported by nodes on Ray",
        "Every Ray node serves them on its metrics port for Prometheus, with `ray_` in front (and `_total` behind, for "
        "counters), for as long as the cluster lives. Beside the labels of the table each has `cluster`, the cluster's "
        "name (`isray up --name`; elsewhere its id), and `node`, the node's name. The help text of each series gives "
        "its unit and meaning. The controller's metrics above are exported as gauges, with underscores in the place of "
        "dots. A histogram has `_bucket`, `_sum` and `_count` behind its name. "
        "[Watch a cluster](../how-to/watch-a-cluster.md) has the dashboard and the alerts.",
        f"A node with more than {MAX_PARTITION_SERIES:,} partitions exports series with the label `partition` only for "
        f"those whose ISR lacks a replica, at most for {MAX_PARTITION_SERIES:,}; elections of the others count for "
        "their topic, without `partition`. The counts over all partitions are exact.",
        _table(NODE_METRICS),
        "The process that polls the nodes, which `isray up` runs, exports these for all of them:",
        _table(POLLED_METRICS),
    )


def _table(metrics: Mapping[str, Metric]) -> str:
    """The metrics, and below them their details, each once for all metrics that have it."""
    rows = []
    details: dict[str, list[str]] = {}
    for it in metrics.values():
        kafkas = code(it.mbean) if it.mbean else ""
        rows.append((code(it.name), it.kind, ", ".join(map(code, it.labels)), it.unit, it.source, it.text, kafkas))
        details.setdefault(it.detail, []).append(code(it.name))
    notes = [f"- {', '.join(names)}: {detail}" for detail, names in details.items() if detail]
    return sections(table(("name", "kind", "labels", "unit", "source", "meaning", "in Kafka"), rows), "\n".join(notes))
