"""What whole clusters measure, per trial: incidents, years with a loss, and the time in which some topic fails writes.

An *incident* is a chain of losses of one trial (records acknowledged with acks=all), of any partitions, each at most
`INCIDENT_MS` after the one before. Losses that one failure causes come hours apart, as its brokers return one by one,
while two failures that lose records within a day of each other by chance are rare: at one incident a year, 1 in 365.
An incident hits a partition once, however often the partition loses records in it.

The years of a trial are its whole ones, from its begin on; a trial that is shorter than a year is one span of that
length (`estimation/clusters.py` makes a year of it). A stationary start makes all years alike.

A topic cannot be written while any of its partitions cannot, and some topic while any partition of the cluster cannot.

A trial of a cluster has one weight, by which its exposure is more or less than its partition-years. Values are in units
whose ratio to the exposure is the number that is published: a count times the partitions is one per cluster-year.
"""

from __future__ import annotations

import numpy as np

from experiments.studies.design.cluster import Cluster
from experiments.studies.pipeline.rows import Trace, Values
from experiments.studies.trace.kinds import Loss
from experiments.studies.trace.metrics import INCIDENTS, SOME_UNWRITABLE, of_topic
from experiments.studies.trace.schema import INCIDENT_MS, YEAR_MS

Measures = dict[str, Values]


def of_cluster(trace: Trace, cluster: Cluster, exposure: Values, topics: tuple[str, ...]) -> dict[str, Measures]:
    """The fields of `schemas.METRIC_FIELDS` of every trial, by metric. `exposure`: of the trials, in partition-years;
    `topics`: those that the study publishes."""
    first, hit = incidents(trace)
    trials, partitions = len(trace.trials), cluster.partitions
    count = np.bincount(first, minlength=trials)
    sizes = np.bincount(first, hit, trials), np.bincount(first, hit * hit, trials)
    largest = np.zeros(trials)
    np.maximum.at(largest, first, hit)
    some, years = (count > 0).astype(float), trace.durations_ms / YEAR_MS * partitions
    found = {
        INCIDENTS: plain_measures(count * partitions, count, count * partitions**2, some * partitions),
        "partitions_per_incident": plain_measures(sizes[0], count, sizes[1], largest),
        "any_loss_probability": _years(trace, years),
        SOME_UNWRITABLE: _unwritable(trace, np.ones(trace.partitions, bool), partitions),
    }
    for topic in topics:
        index = cluster.topics.index(topic) if topic in cluster.topics else -1
        members = np.array([any(index == member[0] for member in each.members) for each in cluster.classes])
        found[of_topic(topic)] = _unwritable(trace, members, partitions)
    return {name: _weighted(name, measures, exposure / years) for name, measures in found.items()}


def _weighted(name: str, measures: Measures, weight: Values) -> Measures:
    """The fields of plain trials as those of trials of some weight; squared sizes of a mean are weighted once."""
    squared = ("weight_squares",) if name == "partitions_per_incident" else ("weight_squares", "size_squares")
    return {
        name: values if name == "events" else values * (weight * weight if name in squared else weight)
        for name, values in measures.items()
    }


def incidents(trace: Trace) -> tuple[Values, Values]:
    """The trial of each incident, counted from the batch's first, and how many partitions the incident hits."""
    rows = trace.rows.of_kinds(Loss)
    trial, time_ms = rows["trial"] - trace.first, rows["time_ms"]
    begins = (np.diff(trial, prepend=-1) != 0) | (np.diff(time_ms, prepend=0) > INCIDENT_MS)
    number = np.cumsum(begins) - 1
    pairs = np.unique(np.stack([number, rows["partition"]]), axis=1)
    hit = np.bincount(pairs[0], trace.counts[pairs[1]], int(begins.sum()))
    return trial[begins], hit


def _years(trace: Trace, exposure: Values) -> Measures:
    """The share of a trial's years that have a loss, times its exposure."""
    rows, trials = trace.rows.of_kinds(Loss), len(trace.trials)
    years = np.maximum(1, trace.durations_ms // YEAR_MS)
    trial, year = rows["trial"] - trace.first, rows["time_ms"] // YEAR_MS
    within = year < years[trial]
    lossy = np.unique(np.stack([trial[within], year[within]]), axis=1)[0]
    count = np.bincount(lossy, minlength=trials)
    none = np.zeros(trials)
    return plain_measures(count / years * exposure, count, none, none)


def _unwritable(trace: Trace, members: Values, partitions: int) -> Measures:
    """The time in which any of the partitions fails writes, in partition-years of the whole cluster."""
    found, trials = trace.intervals, len(trace.trials)
    chosen = np.flatnonzero(found["unwritable"] & members[found["partition"]])
    trial = found["trial"][chosen].astype(np.int64) - trace.first
    offset = trial * (int(trace.durations_ms.max(initial=0)) + 1)
    begin, end = found["start_ms"][chosen] + offset, found["end_ms"][chosen] + offset
    order = np.argsort(begin, kind="stable")
    trial, begin, end = trial[order], begin[order], end[order]
    before = np.append(-1, np.maximum.accumulate(end))[: len(end)]
    length = np.maximum(0, end - np.maximum(begin, before))
    events = np.bincount(trial[begin > before], minlength=trials)
    value = np.bincount(trial, length.astype(float), trials) * partitions / YEAR_MS
    none = np.zeros(trials)
    return plain_measures(value, events, none, none)


def plain_measures(value: Values, events: Values, size_squares: Values, largest_size: Values) -> Measures:
    """The fields of `schemas.METRIC_FIELDS` of plain trials, whose weight is 1."""
    weight = events.astype(float)
    return {
        "value": value.astype(float),
        "events": events,
        "weight": weight,
        "weight_squares": weight,
        "largest_weight": (events > 0).astype(float),
        "size_squares": size_squares.astype(float),
        "largest_size": largest_size.astype(float),
    }
