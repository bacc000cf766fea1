"""Queries about declared metrics, in PromQL.

Three facts of the exported series shape all of them (`protocol/metrics.py`, `actors/metrics.py`):

- Ray serves the gauges of a process that was killed for up to 20 s more. A sum over nodes leaves those out by the
  factor `isray_node_running`, which comes from the process that polls the nodes.
- Each controller exports the gauges of the cluster as far as it knows; those of the active one are right. The factor
  `kafka_controller_active_controller_count` selects it.
- A node of a Ray that serves several clusters has the label `cluster`, by which every sum is kept apart.

The right side of a factor is reduced to one series per node, since Ray serves the series of two supervisors for a
moment when a cluster is started again under its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol import metrics
from protocol.metrics import Metric

_EXPORTED = {metric.name: metric for metric in metrics.exported()}


def metric_named(name: str) -> Metric:
    """The exported metric of this name."""
    return _EXPORTED[name]


@dataclass(frozen=True, slots=True)
class PromQL:
    """Queries over the series that the selector `where` takes (`{...}`, empty: all); rates are over `window`."""

    where: str = ""
    window: str = "5m"

    def series(self, name: str, suffix: str = "") -> str:
        return f"{metric_named(name).series}{suffix}{self.where}"

    def of_running(self, name: str, *labels: str, aggregate: str = "sum") -> str:
        """A gauge over the nodes that run, by cluster and `labels`."""
        return self._times(name, metrics.NODE_RUNNING, labels, aggregate)

    def of_active_controller(self, name: str, *labels: str, aggregate: str = "sum") -> str:
        """A gauge of the active controller, by cluster and `labels`."""
        return self._times(name, metrics.ACTIVE_CONTROLLER, labels, aggregate)

    def _times(self, name: str, factor: str, labels: tuple[str, ...], aggregate: str) -> str:
        by = ", ".join(("cluster", *labels))
        one = f"max by (cluster, node) ({self.series(factor)})"
        if aggregate == "sum":
            return f"sum by ({by}) ({self.series(name)} * on (cluster, node) group_left {one})"
        return f"{aggregate} by ({by}) ({self.series(name)} and on (cluster, node) {one} == 1)"

    def total(self, name: str, *labels: str) -> str:
        """A gauge that is right as it is, by cluster and `labels`."""
        return f"sum by ({', '.join(('cluster', *labels))}) ({self.series(name)})"

    def rate(self, name: str, *labels: str, suffix: str = "") -> str:
        """Per second, by cluster and `labels`; `suffix` selects a part of a histogram."""
        return f"sum by ({', '.join(('cluster', *labels))}) (rate({self.series(name, suffix)}[{self.window}]))"

    def quantile(self, quantile: float, name: str, *labels: str) -> str:
        """A quantile of a histogram, by cluster and `labels`."""
        return f"histogram_quantile({quantile:g}, {self.rate(name, *labels, 'le', suffix='_bucket')})"
