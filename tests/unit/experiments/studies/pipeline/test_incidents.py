"""The numbers of whole clusters, of traces by hand: incidents, years with a loss, time in which topics fail writes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.studies.design.cluster import Cluster, PartitionClass
from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.clusters import cluster_interval, mean_size, probability
from experiments.studies.estimation.intervals import assumed_sizes
from experiments.studies.estimation.moments import Estimate, Sums
from experiments.studies.pipeline.incidents import INCIDENT_MS, of_cluster
from experiments.studies.pipeline.rows import Trace
from experiments.studies.pipeline.silver import reasons
from experiments.studies.pipeline.trials import per_trial
from experiments.studies.trace.kinds import Attributed, Stamped
from experiments.studies.trace.metrics import BY_NAME
from experiments.studies.trace.schema import YEAR_MS, TraceRow
from tests.unit.experiments.studies.pipeline.test_silver import state, trace_of

HOUR_MS = 3_600_000
CLUSTER = Cluster(
    placement="random",
    brokers=(0, 1, 2),
    racks=(),
    topics=("a", "b"),
    classes=(
        PartitionClass((0, 1), 2, "all", ((0, 5, 0),)),
        PartitionClass((1, 2), 2, "all", ((0, 1, 5), (1, 2, 0))),
    ),
)
"""Five partitions of topic a in one class; one of a and two of b in the other: 8 partitions."""


def trial(years: float, *rows: TraceRow) -> list[TraceRow]:
    begin = [state(0, 0, 0, "0,1"), state(0, 1, 0, "1,2")._replace(partition=1)]
    return [*begin, *rows, TraceRow(round(years * YEAR_MS), "end")]


def loss(time_ms: int, partition: int) -> TraceRow:
    return TraceRow(time_ms, "loss", partition, node=1, value=3)


def attribution(metric: str, reason: str, amount: int) -> TraceRow:
    """One event of the first class."""
    return Stamped(5, Attributed(0, metric, reason, "broker (lossy)", 1, amount), 0.0).row()


def cluster_trace(*trials: list[TraceRow]) -> Trace:
    return replace(trace_of(*trials, partitions=2), cluster=CLUSTER)


def column(trace: Trace, metric: str, field: str = "value") -> list[float]:
    return [row[metric][field] for row in per_trial(trace, topics=("a", "b")).to_pylist()]


def test_a_loss_counts_for_each_partition_of_its_class() -> None:
    trace = cluster_trace(trial(1, loss(5, 0), loss(9, 1)))
    assert column(trace, "loss_rate") == [5 + 3]
    assert column(trace, "lost_records_per_year") == [3 * 5 + 3 * 3]
    assert column(trace, "loss_rate", "events") == [2]
    assert column(trace, "loss_rate", "size_squares") == [25 + 9]
    assert per_trial(trace)["partition_years"].to_pylist() == [8.0]
    assert per_trial(trace)["exposure"].to_pylist() == pytest.approx([8.0])


def test_reasons_count_for_each_partition_of_a_class() -> None:
    """A loss in each class is 5 + 3 by weight, and two events; 2 min and 1 min of an outage are 2 x 5 + 1 x 3
    partition-minutes. Those of a trial of half the weight are half as many."""
    lost = attribution("loss_rate", "all-copies-lost", 7)
    out = attribution("unwritable_fraction", "too-few-alive", 60_000)
    rows = [lost, lost._replace(partition=1), out._replace(value=120_000), out._replace(partition=1, epoch=0)]
    halved = [row._replace(log_weight=math.log(0.5)) for row in rows]
    found = reasons(cluster_trace(trial(1, *rows), trial(1, *halved))).to_pylist()
    columns = ("trial", "reason", "events", "weight", "minutes")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (0, "all-copies-lost", 2, 8.0, 0.0),
        (0, "too-few-alive", 1, 5.0, 13.0),
        (1, "all-copies-lost", 2, 4.0, 0.0),
        (1, "too-few-alive", 1, 2.5, 6.5),
    ]


def test_losses_within_a_day_of_each_other_are_one_incident() -> None:
    """The first trial: a chain of three losses, the last more than a day after the first, hits both classes, 8
    partitions; another incident, a millisecond too late for the chain, hits 5. The second trial has none; that of the
    third starts again, though its time continues that of the first."""
    chain = [loss(HOUR_MS, 0), loss(HOUR_MS + INCIDENT_MS, 1), loss(HOUR_MS + 2 * INCIDENT_MS, 0)]
    late = loss(HOUR_MS + 3 * INCIDENT_MS + 1, 0)
    trace = cluster_trace(trial(1, *chain, late), trial(1), trial(1, loss(late.time_ms, 1)))
    assert column(trace, "incidents_per_year") == [2 * 8, 0, 8]
    assert column(trace, "incidents_per_year", "events") == [2, 0, 1]
    assert column(trace, "partitions_per_incident") == [8 + 5, 0, 3]
    assert column(trace, "partitions_per_incident", "size_squares") == [64 + 25, 0, 9]


def test_years_with_a_loss_are_shares_of_a_trial() -> None:
    """2.5 years are two whole ones: losses in the first (two of them) count once, one in the last half year not."""
    trace = cluster_trace(trial(2.5, loss(5, 0), loss(9, 1), loss(round(2.2 * YEAR_MS), 0)), trial(0.5, loss(5, 0)))
    assert column(trace, "any_loss_probability") == pytest.approx([0.5 * 2.5 * 8, 1.0 * 0.5 * 8])


def test_a_topic_is_not_writable_while_any_of_its_partitions_is_not() -> None:
    """Class 0 fails writes in [10 h, 20 h), class 1 in [15 h, 30 h) and [40 h, 41 h): some partition for 21 h. Topic a
    is in both classes, topic b in class 1 alone, for 16 h."""
    unable = [(10, 0, True), (15, 1, True), (20, 0, False), (30, 1, False), (40, 1, True), (41, 1, False)]
    rows = [state(hour * HOUR_MS, 0, hour, "0,1")._replace(partition=index, expired=now) for hour, index, now in unable]
    trace = cluster_trace(trial(1), trial(1, *rows))
    hours = {name: np.array(column(trace, name)) / 8 * YEAR_MS / HOUR_MS for name in BY_NAME if "some" in name}
    assert hours["some_unwritable_fraction"] == pytest.approx([0, 21])
    assert np.array(column(trace, "unwritable_fraction_of_a")) / 8 * YEAR_MS / HOUR_MS == pytest.approx([0, 21])
    assert np.array(column(trace, "unwritable_fraction_of_b")) / 8 * YEAR_MS / HOUR_MS == pytest.approx([0, 16])
    assert column(trace, "some_unwritable_fraction", "events") == [0, 2]
    assert column(trace, "unwritable_fraction")[1] * YEAR_MS / HOUR_MS == pytest.approx(5 * 10 + 3 * 16)


def sums_of(trace: Trace, metric: str) -> Sums:
    rows = per_trial(trace, topics=("a", "b")).to_pylist()
    x, w = (np.array([row[metric]["value"] for row in rows]), np.array([row["exposure"] for row in rows]))
    fields = ("events", "weight", "weight_squares", "size_squares")
    total = {name: sum(row[metric][name] for row in rows) for name in fields}
    most = {name: max(row[metric][name] for row in rows) for name in ("largest_weight", "largest_size")}
    products = {"value_squares": float(x @ x), "exposure_squares": float(w @ w), "value_exposure": float(x @ w)}
    years = sum(row["partition_years"] for row in rows)
    return Sums(trials=len(rows), value=x.sum(), exposure=w.sum(), years=years, **total, **most, **products)


def estimate(trace: Trace, metric: str) -> Estimate:
    size = {"incidents": 8.0}
    return cluster_interval(BY_NAME[metric], sums_of(trace, metric), size, CLUSTER.partitions)


def test_incidents_are_not_losses() -> None:
    """36 cluster-years with 6 incidents, each of which hits all 8 partitions: the rate of losses times the partitions
    is 48 / 36 a year, and yet only a sixth of the years have any. Garwood's limits of 6 events in 36 years are
    chi2(0.025; 12) / 72 and chi2(0.975; 14) / 72; those of 6 of 36 years are Clopper and Pearson's (here of the
    effective number of trials, adjusted by t, so a little wider)."""
    hit = trial(1, loss(5, 0), loss(7, 1))
    trace = cluster_trace(*[hit] * 6, *[trial(1)] * 30)
    losses = sums_of(trace, "loss_rate")
    assert losses.ratio * 8 == pytest.approx(48 / 36)
    found = estimate(trace, "incidents_per_year")
    assert (found.estimate, found.events) == (pytest.approx(6 / 36), 6)
    assert found.ci_low == pytest.approx(4.4038 / 72, rel=0.02)
    assert found.ci_high == pytest.approx(26.1189 / 72, rel=0.02)
    years = estimate(trace, "any_loss_probability")
    assert years.estimate == pytest.approx(6 / 36)
    assert (years.ci_low, years.ci_high) == (pytest.approx(0.0637, abs=0.006), pytest.approx(0.3281, abs=0.012))
    sizes = estimate(trace, "partitions_per_incident")
    assert (sizes.estimate, sizes.ci_low, sizes.ci_high) == (8.0, 8.0, 8.0)


def test_nothing_seen_bounds_incidents_by_cluster_years() -> None:
    """-ln 0.05 / 20 incidents a year, and 1 - 0.05^(1/20) of the years: both of 20 cluster-years."""
    trace = cluster_trace(*[trial(1)] * 20)
    assert estimate(trace, "incidents_per_year").ci_high == pytest.approx(-math.log(0.05) / 20)
    found = estimate(trace, "any_loss_probability")
    assert (found.one_sided, found.ci_high) == (True, pytest.approx(1 - 0.05 ** (1 / 20)))
    assert estimate(trace, "partitions_per_incident") == Estimate(0.0, 0.0, 8.0, one_sided=True)


@pytest.mark.parametrize(("years", "expected"), [(0.25, 1 - 0.7**4), (0.5, 1 - 0.7**2), (1.0, 0.3), (3.0, 0.3)])
def test_the_probability_of_a_year_does_not_depend_on_how_long_trials_are(years: float, expected: float) -> None:
    """Of 20 trials 6 have a loss in each of their years. If the spans of a year are independent, one of four has a loss
    with probability 1 - (1 - p)^4."""
    hits = [loss(5 + year * YEAR_MS, 0) for year in range(math.ceil(years))]
    trace = cluster_trace(*[trial(years, *hits)] * 6, *[trial(years)] * 14)
    found = estimate(trace, "any_loss_probability")
    assert found.estimate == pytest.approx(expected)
    assert found.ci_low < found.estimate < found.ci_high < 1.0


def test_nothing_seen_does_not_show_that_partitions_fail_one_by_one() -> None:
    """With no loss in 20 cluster-years an incident that hits all 8 partitions has at most the rate -ln 0.05 / 20, so a
    partition at most that one, too, and not an eighth of it; likewise the time in which it fails writes."""
    params = CellParameters(brokers=3, partitions=8, replication_factor=2, cluster=CLUSTER)
    sizes, trace = assumed_sizes(params), cluster_trace(*[trial(1)] * 20)
    bound, years = -math.log(0.05) / 20, assumed_sizes(CellParameters(replication_factor=2))["unwritable"]
    for metric, expected in (
        ("loss_rate", bound),
        ("incidents_per_year", bound),
        ("unwritable_fraction", bound * years),
        ("some_unwritable_fraction", bound * years),
    ):
        found = cluster_interval(BY_NAME[metric], sums_of(trace, metric), sizes, CLUSTER.partitions)
        assert found.ci_high == pytest.approx(expected), metric


def test_limits_of_the_mean_size_are_students() -> None:
    """Sizes 2, 4, 6: mean 4, standard error 2 / sqrt(3), t(0.975; 2) = 4.3027; the lower limit is not below 1."""
    sums = Sums(3, 12.0, 0.0, 1.0, 1.0, 0.0, 1.0, 3, 3.0, 3.0, 1.0, 4.0 + 16.0 + 36.0, 6.0)
    found = mean_size(sums, 100)
    assert (found.estimate, found.ci_low, found.ci_high) == (
        4.0,
        1.0,
        pytest.approx(4.0 + 4.3027 * 2 / math.sqrt(3), 1e-4),
    )
    one = replace(sums, value=4.0, events=1, weight=1.0, weight_squares=1.0, size_squares=16.0)
    assert (mean_size(one, 100).ci_low, mean_size(one, 100).ci_high) == (1.0, 100.0)


def test_all_years_with_a_loss_are_certain() -> None:
    trace = cluster_trace(*[trial(1, loss(5, 0))] * 10)
    found = probability(sums_of(trace, "any_loss_probability"), 1.0)
    assert (found.estimate, found.ci_high) == (1.0, 1.0)
    assert found.ci_low == pytest.approx(0.025 ** (1 / 10))


def test_a_topic_that_a_cluster_lacks_is_always_writable() -> None:
    trace = cluster_trace(trial(1))
    found = of_cluster(trace, CLUSTER, np.array([8.0]), ("elsewhere",))
    assert found["unwritable_fraction_of_elsewhere"]["value"].tolist() == [0.0]
