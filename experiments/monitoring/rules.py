"""The rules of Prometheus: sums that dashboards and alerts share, and alerts.

An alert states what an operator acts on: a partition that cannot be written or read, records that may be lost, a node
or a quorum that is down. Each waits so long that a failover, which ends within the broker's session timeout, raises
none.
"""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from experiments.monitoring.promql import PromQL, metric_named
from protocol import metrics

PAGE = "docs/how-to/watch-a-cluster.md"
_ALL = PromQL()


@dataclass(frozen=True, slots=True)
class Recording:
    """A rule that stores the value of `query` under a name of its own."""

    query: str
    name: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert while `query` has a value, once it has had one for `after`. `summary` may name the labels of a value."""

    name: str
    query: str
    after: str
    severity: str
    summary: str


def _recording(name: str, operation: str, query: str) -> Recording:
    return Recording(query, f"cluster:{metric_named(name).name.replace('.', '_')}:{operation}")


UNDER_REPLICATED = _recording(metrics.UNDER_REPLICATED, "sum", _ALL.of_running(metrics.UNDER_REPLICATED))
AT_MIN_ISR = _recording(metrics.AT_MIN_ISR, "sum", _ALL.of_running(metrics.AT_MIN_ISR))
OFFLINE = _recording(metrics.OFFLINE, "sum", _ALL.of_active_controller(metrics.OFFLINE))
BELOW_MIN_ISR = _recording(metrics.UNDER_MIN_ISR, "sum", _ALL.of_active_controller(metrics.UNDER_MIN_ISR))
ACTIVE_CONTROLLERS = _recording(metrics.ACTIVE_CONTROLLER, "sum", _ALL.total(metrics.ACTIVE_CONTROLLER))
BYTES_IN = _recording(metrics.BYTES_IN, "rate5m", _ALL.rate(metrics.BYTES_IN))
MESSAGES_IN = _recording(metrics.MESSAGES_IN, "rate5m", _ALL.rate(metrics.MESSAGES_IN))
REQUEST_P99 = _recording(metrics.REQUEST_MS, "p99_5m", _ALL.quantile(0.99, metrics.REQUEST_MS, "request"))
RECORDINGS = (
    UNDER_REPLICATED,
    AT_MIN_ISR,
    OFFLINE,
    BELOW_MIN_ISR,
    ACTIVE_CONTROLLERS,
    BYTES_IN,
    MESSAGES_IN,
    REQUEST_P99,
)


_IN = "in cluster {{ $labels.cluster }}"
ALERTS = (
    Alert(
        "OfflinePartitions",
        f"{OFFLINE.name} > 0",
        "1m",
        "critical",
        f"{{{{ $value }}}} partitions {_IN} have no leader",
    ),
    Alert(
        "PartitionsBelowMinIsr",
        f"{BELOW_MIN_ISR.name} > 0",
        "1m",
        "critical",
        f"{{{{ $value }}}} partitions {_IN} refuse acks=all: their ISR is below min ISR",
    ),
    Alert(
        "UncleanElection",
        f"increase({_ALL.series(metrics.UNCLEAN_ELECTIONS)}[10m]) > 0",
        "0m",
        "critical",
        f"{{{{ $labels.node }}}} {_IN} elected a leader outside ISR and ELR: acknowledged records may be lost",
    ),
    Alert(
        "ElectionWaitsForUser",
        f"{_ALL.of_active_controller(metrics.MANUAL_ELECTION_REQUIRED)} > 0",
        "1m",
        "critical",
        f"{{{{ $value }}}} partitions {_IN} get a leader only by a command (isray leader-election)",
    ),
    Alert("NoActiveController", f"{ACTIVE_CONTROLLERS.name} < 1", "30s", "critical", f"no controller is active {_IN}"),
    Alert(
        "NodeDown",
        f"{_ALL.series(metrics.NODE_RUNNING)} == 0",
        "1m",
        "warning",
        f"{{{{ $labels.node }}}} {_IN} has ended (isray node list says why)",
    ),
    Alert(
        "FencedBrokers",
        f"{_ALL.of_active_controller(metrics.FENCED_BROKERS)} > 0",
        "2m",
        "warning",
        f"{{{{ $value }}}} brokers {_IN} are registered and fenced",
    ),
    Alert(
        "UnderReplicatedPartitions",
        f"{UNDER_REPLICATED.name} > 0",
        "5m",
        "warning",
        f"{{{{ $value }}}} partitions {_IN} have fewer replicas in sync than replicas",
    ),
    Alert(
        "MetadataLogLags",
        f"max by (cluster) ({_ALL.series(metrics.RAFT_HIGH_WATERMARK)}) - on (cluster) group_right "
        f"{_ALL.of_running(metrics.RAFT_HIGH_WATERMARK, 'node', aggregate='max')} > 1000",
        "2m",
        "warning",
        f"{{{{ $labels.node }}}} {_IN} is {{{{ $value }}}} records of metadata behind",
    ),
)


def document() -> dict[str, object]:
    """The rule file, as Prometheus reads it."""
    recordings = [{"record": rule.name, "expr": rule.query} for rule in RECORDINGS]
    alerts = [
        {
            "alert": f"Isray{alert.name}",
            "expr": alert.query,
            "for": alert.after,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": f"Alerts in {PAGE} say what to do."},
        }
        for alert in ALERTS
    ]
    groups = [{"name": "isray-sums", "rules": recordings}, {"name": "isray-alerts", "rules": alerts}]
    return {"groups": groups}


def as_yaml() -> str:
    return yaml.safe_dump(document(), sort_keys=False, width=100_000)
