"""From a cell's sums to the numbers of `gold/cells.json`: what each metric is, and which interval it gets.

Rates are per partition-year (a year is 365 days). `METRICS` is the one list of them: the document, the tables and the
report all follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.studies.model import Cell
from experiments.studies.statistics import FRACTION_METHOD, RATE_METHOD, Moments, fraction, rate


class Metric(NamedTuple):
    """A published number: its name, the column of a trial that it adds up, its kind, and how it is called in print."""

    name: str
    column: str
    kind: str
    title: str
    meaning: str

    @property
    def method(self) -> str:
        """The interval's method, in words."""
        return RATE_METHOD if self.kind == "rate" else FRACTION_METHOD


METRICS = (
    Metric(
        "loss_rate",
        "losses",
        "rate",
        "loss events",
        "events in which acks=all records, acknowledged before, were gone; per partition-year",
    ),
    Metric("lost_records_per_year", "lost_records", "rate", "lost records", "such records; per partition-year"),
    Metric("offline_fraction", "offline", "fraction", "offline", "share of time without a leader"),
    Metric(
        "reject_fraction",
        "refuses",
        "fraction",
        "refusing",
        "share of time with fewer than min ISR replicas in sync, so that acks=all is refused; leader or none",
    ),
    Metric(
        "stall_fraction", "stalled", "fraction", "stalled", "share of time with a leader on record that does not answer"
    ),
    Metric(
        "unclean_recoveries_per_year",
        "unclean_recoveries",
        "rate",
        "unclean recoveries",
        "elections of a leader that may lack acknowledged records; per partition-year",
    ),
    Metric(
        "high_watermark_regressions_per_year",
        "hw_regressions",
        "rate",
        "high watermark regressions",
        "times the high watermark that consumers see went back; per partition-year",
    ),
)


def cell_document(cell: Cell, sums: Mapping[str, Any]) -> dict[str, Any]:
    """One object of `gold/cells.json`. `sums`: the cell's row of `gold/cells` (`pipeline/gold.py`)."""
    document: dict[str, Any] = dict(cell.swept)
    document |= {"trials": sums["trials"], "partition_years": sums["partition_years"]}
    for metric in METRICS:
        per_trial = Moments(sums["trials"], sums[f"{metric.column}_sum"], sums[f"{metric.column}_squares"])
        if metric.kind == "fraction":
            estimate = fraction(per_trial)
        else:
            sizes = sums["loss_size_squares"] / per_trial.total if _sized(metric) and per_trial.total else 1.0
            estimate = rate(per_trial, sums["partition_years"], sizes)
        document[metric.name] = estimate.as_dict()
    document["failover_ms"] = {name: sums[f"failover_{name}_ms"] for name in ("p50", "p99", "max")}
    return document


def _sized(metric: Metric) -> bool:
    return metric.name == "lost_records_per_year"
