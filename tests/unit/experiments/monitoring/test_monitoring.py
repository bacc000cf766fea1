"""The dashboard, the rules and the scrape configuration, against the declarations of the metrics."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml

from experiments.monitoring import dashboard, rules, scrape
from experiments.monitoring.promql import PromQL
from experiments.support.build import PACKAGES_FOLDER
from protocol import metrics
from tests.promql import labels_used, series_used

DASHBOARD: dict[str, Any] = json.loads(dashboard.as_json())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [rule for group in yaml.safe_load(rules.as_yaml())["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]
SERIES = {
    f"{metric.series}{suffix}": {"cluster", "node", *metric.labels, *(("le",) if suffix == "_bucket" else ())}
    for metric in metrics.exported()
    for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}
"""The labels of each declared series, by its name."""
RECORDED = {rule["record"] for rule in RULES if "record" in rule}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_has_declared_series_and_labels(query: str) -> None:
    used = series_used(query)
    assert used <= SERIES.keys() | RECORDED
    known = set().union(*(SERIES.get(name, {"cluster", "request"}) for name in used))
    assert labels_used(query) <= known
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_legend_has_labels_that_its_query_keeps(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        kept = re.search(r"by \(([^)]*)\)", target["expr"])
        assert kept is not None
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named
        assert named <= set(kept[1].split(", "))


def test_every_exported_metric_has_a_panel() -> None:
    shown = set().union(*(series_used(target["expr"]) for panel in PANELS for target in panel["targets"]))
    assert [
        metric.name for metric in metrics.exported() if not any(name.startswith(metric.series) for name in shown)
    ] == []


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    placed = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in placed)
    for one, other in combinations(placed, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_alerts_have_what_prometheus_needs_and_the_page_explains_each() -> None:
    page = (PACKAGES_FOLDER / rules.PAGE).read_text(encoding="utf-8")
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len(alerts) == len(rules.ALERTS)
    for alert in alerts:
        assert f"`{alert['alert']}`" in page
        assert re.fullmatch(r"\d+[sm]", alert["for"])
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"])) <= {"cluster", "node"}


def test_the_queries_of_one_metric_by_hand() -> None:
    ask = PromQL('{cluster="c"}', "1m")
    assert ask.rate(metrics.BYTES_IN, "topic") == (
        'sum by (cluster, topic) (rate(ray_kafka_server_bytes_in_total{cluster="c"}[1m]))'
    )
    assert ask.of_running(metrics.LEADER_COUNT, "node") == (
        'sum by (cluster, node) (ray_kafka_server_leader_count{cluster="c"} * on (cluster, node) group_left '
        'max by (cluster, node) (ray_isray_node_running{cluster="c"}))'
    )
    assert ask.of_active_controller(metrics.OFFLINE) == (
        'sum by (cluster) (ray_kafka_controller_offline_partitions_count{cluster="c"} * on (cluster, node) group_left '
        'max by (cluster, node) (ray_kafka_controller_active_controller_count{cluster="c"}))'
    )
    assert ask.quantile(0.99, metrics.REQUEST_MS) == (
        'histogram_quantile(0.99, sum by (cluster, le) (rate(ray_kafka_network_total_time_ms_bucket{cluster="c"}[1m])))'
    )
    assert ask.of_running(metrics.RAFT_EPOCH, aggregate="max") == (
        'max by (cluster) (ray_kafka_server_raft_current_epoch{cluster="c"} and on (cluster, node) '
        'max by (cluster, node) (ray_isray_node_running{cluster="c"}) == 1)'
    )


def test_a_configuration_finds_nodes_by_file_or_by_name_and_keeps_the_series_of_isray() -> None:
    [job] = yaml.safe_load(scrape.as_yaml())["scrape_configs"]
    assert job["file_sd_configs"][0]["files"] == ["/tmp/ray/prom_metrics_service_discovery.json"]
    [named] = yaml.safe_load(scrape.as_yaml(["10.0.0.1:8080"]))["scrape_configs"]
    assert (named["static_configs"], "file_sd_configs" in named) == ([{"targets": ["10.0.0.1:8080"]}], False)
    [keep] = job["metric_relabel_configs"]
    assert all(re.fullmatch(keep["regex"], name) for name in SERIES)
    assert not re.fullmatch(keep["regex"], "ray_node_cpu_utilization")


def test_a_metric_of_kafka_is_named_after_its_mbean() -> None:
    """Domain and name in snake case; `PerSec` is left to the rate, and `raft-metrics` is `raft`."""
    named = [metric for metric in (*metrics.NODE_METRICS.values(), *metrics.POLLED_METRICS.values()) if metric.mbean]
    assert len(named) > 10
    for metric in named:
        domain, _, name = metric.mbean.replace(":type=raft-metrics,attribute=", ".raft:,name=").partition(":")
        last = name.partition("name=")[2].partition(",")[0].removesuffix("PerSec").replace("-", "_")
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower()
        assert metric.name == f"{domain.replace('.', '_')}_{snake}"
