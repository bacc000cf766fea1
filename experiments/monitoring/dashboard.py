"""The dashboard of Grafana: rows of panels, each a query about declared metrics.

`ROWS` are the panels that an operator reads first. Every exported metric that none of them shows has a panel in the
last row, made of its declaration alone, so that nothing that is measured is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.monitoring.promql import PromQL
from protocol import metrics
from protocol.metrics import Metric

TITLE = "isray"
UID = "isray-cluster"
_ALL = PromQL('{cluster=~"$cluster"}', "$__rate_interval")
_WIDTH, _STAT_WIDTH, _PANEL_WIDTH, _HEIGHT, _STAT_HEIGHT = 24, 3, 8, 7, 4
_UNITS = {"bytes": "bytes", "ms": "ms"}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries with the legends of their series. `bad_above`: a single value (a stat) that is red above it."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    bad_above: float | None = None
    bad_below: float | None = None

    @property
    def is_stat(self) -> bool:
        return self.bad_above is not None or self.bad_below is not None


def _stat(title: str, query: str, bad_above: float | None = 0, bad_below: float | None = None) -> Panel:
    return Panel(title, ((query, "{{cluster}}"),), bad_above=bad_above, bad_below=bad_below)


def _panel(title: str, query: str, legend: str, unit: str = "short") -> Panel:
    return Panel(title, ((query, legend),), unit)


def _controllers(name: str) -> str:
    return _ALL.of_active_controller(name)


def _quantiles(*quantiles: float) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_ALL.quantile(it, metrics.REQUEST_MS, "request"), f"{{{{request}}}} p{it * 100:g}") for it in quantiles
    )


_ENDED = f"count by (cluster) ({_ALL.series(metrics.NODE_RUNNING)} == 0) or 0 * {_ALL.total(metrics.NODE_RUNNING)}"
_BY_NODE = "{{node}}"
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "State",
        (
            _stat("Active controllers", _ALL.total(metrics.ACTIVE_CONTROLLER), 1, 1),
            _stat("Active brokers", _controllers(metrics.ACTIVE_BROKERS), None, 1),
            _stat("Fenced brokers", _controllers(metrics.FENCED_BROKERS)),
            _stat("Nodes that have ended", _ENDED),
            _stat("Offline partitions", _controllers(metrics.OFFLINE)),
            _stat("Below min ISR", _controllers(metrics.UNDER_MIN_ISR)),
            _stat("Under-replicated", _ALL.of_running(metrics.UNDER_REPLICATED)),
            _stat("Unclean elections", _controllers(metrics.UNCLEAN_ELECTIONS)),
        ),
    ),
    (
        "Replication",
        (
            _panel("Under-replicated partitions", _ALL.of_running(metrics.UNDER_REPLICATED, "node"), _BY_NODE),
            _panel("Partitions at min ISR", _ALL.of_running(metrics.AT_MIN_ISR, "node"), _BY_NODE),
            _panel("Partitions below min ISR", _ALL.of_running(metrics.BELOW_MIN_ISR, "node"), _BY_NODE),
            _panel("Leaders", _ALL.of_running(metrics.LEADER_COUNT, "node"), _BY_NODE),
            _panel("Replicas", _ALL.of_running(metrics.PARTITION_COUNT, "node"), _BY_NODE),
            Panel(
                "Changes of ISRs per second",
                (
                    (_ALL.rate(metrics.ISR_SHRINKS, "node"), "{{node}} shrinks"),
                    (_ALL.rate(metrics.ISR_EXPANDS, "node"), "{{node}} expands"),
                ),
            ),
        ),
    ),
    (
        "Traffic",
        (
            _panel("Bytes in per second", _ALL.rate(metrics.BYTES_IN, "topic"), "{{topic}}", "Bps"),
            _panel("Records in per second", _ALL.rate(metrics.MESSAGES_IN, "topic"), "{{topic}}"),
            _panel("Produce requests per second", _ALL.rate(metrics.PRODUCE_REQUESTS, "acks"), "acks {{acks}}"),
            Panel("Time of requests", _quantiles(0.5, 0.99), "ms"),
            _panel("Requests per second", _ALL.rate(metrics.REQUEST_MS, "request", suffix="_count"), "{{request}}"),
            _panel(
                "Uncommitted records",
                _ALL.of_running(metrics.HIGH_WATERMARK_LAG, "topic", aggregate="max"),
                "{{topic}}",
            ),
        ),
    ),
    (
        "Quorum",
        (
            _panel("Leader, by node", _ALL.of_running(metrics.RAFT_LEADER, "node", aggregate="max"), _BY_NODE),
            _panel("Epoch", _ALL.of_running(metrics.RAFT_EPOCH, "node", aggregate="max"), _BY_NODE),
            _panel(
                "High watermark of the metadata log",
                _ALL.of_running(metrics.RAFT_HIGH_WATERMARK, "node", aggregate="max"),
                _BY_NODE,
            ),
        ),
    ),
)


def shown(metric: Metric) -> bool:
    """Whether a panel of `ROWS` shows the metric."""
    names = {metric.series, *(f"{metric.series}{suffix}" for suffix in ("_bucket", "_count"))}
    queries = (query for _, panels in ROWS for panel in panels for query, _ in panel.queries)
    return any(f"{name}{{" in query for query in queries for name in names)


def of_declaration(metric: Metric) -> Panel:
    """A panel about a metric, from its declaration alone."""
    title, unit = f"{metric.name}: {metric.text}", _UNITS.get(metric.unit, "short")
    if metric.kind == "counter":
        labels = metric.labels or ("node",)
        return _panel(f"{title}, per second", _ALL.rate(metric.name, *labels), _legend(labels), unit)
    if metric.name in metrics.NODE_METRICS and "topic" in metric.labels:
        return _panel(
            title, _ALL.of_running(metric.name, *metric.labels, aggregate="max"), _legend(metric.labels), unit
        )
    if metric.name in metrics.NODE_METRICS:
        return _panel(title, _ALL.of_running(metric.name, "node"), _BY_NODE, unit)
    return _panel(title, _ALL.of_active_controller(metric.name), "{{cluster}}", unit)


def _legend(labels: Sequence[str]) -> str:
    return "-".join(f"{{{{{label}}}}}" for label in labels)


def document() -> dict[str, object]:
    """The dashboard, as Grafana imports it."""
    others = tuple(of_declaration(metric) for metric in metrics.exported() if not shown(metric))
    return {
        "title": TITLE,
        "uid": UID,
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["isray"],
        "templating": {"list": [_data_source(), _clusters()]},
        "panels": list(_laid_out((*ROWS, ("All other metrics", others)))),
    }


def as_json() -> str:
    return json.dumps(document(), indent=1) + "\n"


def _data_source() -> dict[str, object]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _clusters() -> dict[str, object]:
    running = next(metric for metric in metrics.exported() if metric.name == metrics.NODE_RUNNING)
    return {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({running.series}, cluster)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(rows: Sequence[tuple[str, tuple[Panel, ...]]]) -> Iterator[dict[str, object]]:
    """The rows one below the other, on the grid of 24 columns."""
    number, top = 0, 0
    for title, panels in rows:
        yield {
            "id": (number := number + 1),
            "type": "row",
            "title": title,
            "panels": [],
            "gridPos": _at(0, top, _WIDTH, 1),
        }
        left, top = 0, top + 1
        for panel in panels:
            width, height = (_STAT_WIDTH, _STAT_HEIGHT) if panel.is_stat else (_PANEL_WIDTH, _HEIGHT)
            if left + width > _WIDTH:
                left, top = 0, top + height
            yield {"id": (number := number + 1), "gridPos": _at(left, top, width, height), **_drawn(panel)}
            left += width
        top += _HEIGHT


def _at(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _drawn(panel: Panel) -> dict[str, object]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    defaults: dict[str, object] = {"unit": panel.unit}
    if panel.is_stat:
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
    return {
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.is_stat else {},
    }


def _steps(panel: Panel) -> list[dict[str, object]]:
    """Colours from the lowest value up: a step holds from its value on, and counts are whole numbers."""
    steps: list[dict[str, object]] = [{"color": "green" if panel.bad_below is None else "red", "value": None}]
    if panel.bad_below is not None:
        steps.append({"color": "green", "value": panel.bad_below})
    if panel.bad_above is not None:
        steps.append({"color": "red", "value": panel.bad_above + 1})
    return steps
