"""The metrics of a study, each declared once: its name, its words, and how it is measured and estimated.

`gold/cells.json`, the tables, the report, the stopping rule of the sweep and the Spark pipeline all follow `METRICS`.
Rates are per partition-year (a year is 365 days). The definitions of the fractions of time in terms of a partition's
state are in `pipeline/silver.py`; the formulas of the intervals in `estimation/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.studies.trace.kinds import (
    AcknowledgedLoss,
    Acks1Loss,
    HwRegression,
    Loss,
    Observation,
    UncleanRecovery,
)


@dataclass(frozen=True, slots=True)
class Estimator:
    """How the values of a cell's trials become one number: its unit, and the method of its interval, in words."""

    unit: str
    interval: str


RATE = Estimator(
    "per partition-year",
    "exact Poisson (Garwood), for weighted or clustered events gamma limits (Fay and Feuer) with the variance "
    "over trials",
)
FRACTION = Estimator(
    "share of time", "Clopper-Pearson on the effective sample size (Korn-Graubard) with t, widened for few episodes"
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A published number.

    `name`: its key in `gold/cells.json`. `column`: where `trials/` holds its value. `title`
    and `meaning`: its words in tables and in the report. A rate counts the rows of the kind `counts` in a trial's
    trace, or adds up their `value` if `sums_values`; a fraction is the share of partition-time in which the boolean
    `column` of `silver/intervals` is true. Rows and times count with their weights.
    """

    name: str
    column: str
    estimator: Estimator
    title: str
    meaning: str
    counts: type[Observation] = Observation
    sums_values: bool = False


UNWRITABLE = "unwritable_fraction"
WRITABLE = "writable_fraction"
"""The rest of the time, in `gold/cells.json` and tables: 1 - `unwritable_fraction`."""
ACKNOWLEDGED_LOSS_RATE = "acknowledged_loss_rate"
"""The rate of losses that compares cells of different acks."""
METRICS = (
    Metric("loss_rate", "losses", RATE, "loss events", "times that acknowledged acks=all records were lost", Loss),
    Metric(
        "lost_records_per_year",
        "lost_records",
        RATE,
        "lost records",
        "acknowledged acks=all records lost, of the few that are written around failures (in the simulator one, with a "
        "finite `flush_interval` two): cells of different flush policies cannot be compared by it",
        Loss,
        True,
    ),
    Metric("offline_fraction", "offline", FRACTION, "offline", "time without a leader"),
    Metric(
        "reject_fraction",
        "refuses",
        FRACTION,
        "rejecting",
        "time with fewer than min ISR replicas in sync, so that acks=all writes are rejected, with or without a leader",
    ),
    Metric(
        "stall_fraction",
        "stalled",
        FRACTION,
        "stalled",
        "time in which a leader is recorded and writes wait for an answer: the leader has crashed or is slow, or, with "
        "acks=all, a member of the ISR has crashed or is slow and has not left the ISR yet",
    ),
    Metric(
        UNWRITABLE,
        "unwritable",
        FRACTION,
        "not writable",
        "time in which a write (with the cell's acks) fails, since it is not acknowledged within `delivery_timeout`: "
        "`writable_fraction` is the rest, and the next four lines are its causes",
    ),
    Metric(
        "unwritable_offline_fraction",
        "unwritable_offline",
        FRACTION,
        "not writable: no leader",
        "of the time that is not writable, that without a leader",
    ),
    Metric(
        "unwritable_leader_fraction",
        "unwritable_leader",
        FRACTION,
        "not writable: leader",
        "of the time that is not writable, that in which the recorded leader has crashed",
    ),
    Metric(
        "unwritable_isr_fraction",
        "unwritable_isr",
        FRACTION,
        "not writable: ISR",
        "of the time that is not writable, that in which the leader is slow or waits for a member of the ISR",
    ),
    Metric(
        "unwritable_refused_fraction",
        "unwritable_refused",
        FRACTION,
        "not writable: refused",
        "of the time that is not writable, that in which a leader refuses acks=all for too small an ISR",
    ),
    Metric(
        "unclean_recoveries_per_year",
        "unclean_recoveries",
        RATE,
        "unclean recoveries",
        "elections of a leader that may lack acknowledged records",
        UncleanRecovery,
    ),
    Metric(
        "high_watermark_regressions_per_year",
        "hw_regressions",
        RATE,
        "high watermark regressions",
        "times that the high watermark that consumers see decreased",
        HwRegression,
    ),
    Metric(
        "acks_1_loss_rate",
        "acks_1_losses",
        RATE,
        "acks=1 loss events",
        "times that records acknowledged with acks=1 were lost (0 with acks=all); records in flight to the followers "
        "when their leader crashes are not counted",
        Acks1Loss,
    ),
    Metric(
        ACKNOWLEDGED_LOSS_RATE,
        "acknowledged_losses",
        RATE,
        "acknowledged loss events",
        "times that acknowledged records were lost, whatever acks is: `loss_rate` with acks=all; with acks=1 "
        "`acks_1_loss_rate` and each election of another leader after a crash of the leader, which under load loses "
        "the records that no follower has fetched yet",
        AcknowledgedLoss,
    ),
)

CAUSES = tuple(metric for metric in METRICS if metric.name.startswith("unwritable_") and metric.name != UNWRITABLE)
"""The parts of `unwritable_fraction`, which add up to it."""
RATES = {metric.name: metric for metric in METRICS if metric.estimator is RATE}
FRACTIONS = {metric.name: metric for metric in METRICS if metric.estimator is FRACTION}
