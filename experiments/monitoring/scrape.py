"""The configuration of a Prometheus that scrapes a Ray cluster.

Ray's head writes the metrics ports of all its Ray nodes to a file of service discovery, and keeps it up to date, if it
has a dashboard. A private Ray of `isray up` has none; its ports are named one by one. Of what Ray nodes serve, only
series of isray are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import yaml

SERVICE_DISCOVERY = PurePosixPath("/tmp/ray/prom_metrics_service_discovery.json")
RULE_FILE = "prometheus-rules.yaml"
KEPT = "ray_(isray|kafka)_.*"
INTERVAL = "15s"
"""Ray's nodes take the values of their processes every 10 s unless `metrics_report_interval_ms` says otherwise."""


def document(targets: Sequence[str] = (), discovery: PurePosixPath = SERVICE_DISCOVERY) -> dict[str, object]:
    """The configuration for the metrics ports `targets` (host:port), else for those in the file `discovery`."""
    found = {"static_configs": [{"targets": list(targets)}]} if targets else {"file_sd_configs": [_files(discovery)]}
    job = {
        "job_name": "isray",
        **found,
        "metric_relabel_configs": [{"source_labels": ["__name__"], "regex": KEPT, "action": "keep"}],
    }
    return {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [RULE_FILE],
        "scrape_configs": [job],
    }


def _files(discovery: PurePosixPath) -> dict[str, object]:
    return {"files": [str(discovery)], "refresh_interval": "30s"}


def as_yaml(targets: Sequence[str] = (), discovery: PurePosixPath = SERVICE_DISCOVERY) -> str:
    return yaml.safe_dump(document(targets, discovery), sort_keys=False)
