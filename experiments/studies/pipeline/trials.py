"""Silver: what each trial measured, one row per trial.

Everything is weighted: an event with the likelihood ratio of its row, time with that of the row that ends its interval
(`trace/kinds.py`). Rows of one trial with equal weights are a *part* of the trial, and are added up first, as whole
numbers (milliseconds, events, records). Then the parts, of which plain sampling has one, are added up in ascending
order of their weights. So a trial has the same values, to the last bit, whatever batch it is in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from experiments.studies.design.study import MetricDeclaration
from experiments.studies.pipeline.incidents import of_cluster, plain_measures
from experiments.studies.pipeline.rows import Trace, Values
from experiments.studies.pipeline.schemas import METRIC_FIELDS, table, trial_columns
from experiments.studies.trace.kinds import State
from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES
from experiments.studies.trace.schema import YEAR_MS


class _Parts:
    """Rows by trial and weight. `trial`, `weight`: those of the parts; `trials`: of the batch."""

    def __init__(self, trial: Values, weight: Values, trials: int) -> None:
        self._order = np.lexsort((weight, trial))
        trial, weight = trial[self._order], weight[self._order]
        new = (np.diff(trial, prepend=-1) != 0) | (np.diff(weight, prepend=0.0) != 0.0)
        self._starts = np.flatnonzero(new)
        self.trial, self.weight, self._trials = trial[new], weight[new], trials
        self._firsts = np.flatnonzero(np.diff(self.trial, prepend=-1))

    def total(self, values: Values) -> Values:
        """The sums of whole numbers over the rows of each part."""
        return _reduced(np.add, values.astype(np.int64)[self._order], self._starts)

    def most(self, values: Values) -> Values:
        """The largest number of each part."""
        return _reduced(np.maximum, values.astype(np.int64)[self._order], self._starts)

    def summed(self, parts: Values) -> Values:
        """The sums over the parts of each trial, in ascending order of their weights; 0 without parts."""
        return self._by_trial(_reduced(np.add, parts, self._firsts))

    def largest(self, parts: Values) -> Values:
        """The largest number of the parts of each trial, at least 0."""
        return self._by_trial(_reduced(np.maximum, parts, self._firsts))

    def _by_trial(self, values: Values) -> Values:
        found = np.zeros(self._trials, values.dtype)
        found[self.trial[self._firsts]] = values
        return found


def _reduced(operation: np.ufunc, values: Values, starts: Values) -> Values:
    """`operation` over each slice from one start to the next."""
    found: Values = operation.reduceat(values, starts) if len(starts) else values
    return found


Measures = dict[str, Values]
"""The fields of `schemas.METRIC_FIELDS`, of every trial."""


def per_trial(trace: Trace, custom: Sequence[MetricDeclaration] = (), topics: tuple[str, ...] = ()) -> pa.Table:
    """One row per trial with the columns of `schemas.trial_columns`: partition_years, exposure, the number of `state`
    rows, the controls, and for each metric, those of a script (`custom`) and of a cluster and its `topics` too, its
    value (weighted; a share of time is measured in partition-years), the number of events or episodes, and the sums and
    maxima of their weights and sizes."""
    exposure, shares = _shares(trace)
    clusters = {} if trace.cluster is None else of_cluster(trace, trace.cluster, exposure, topics)
    metrics = shares | _rates(trace) | clusters | _custom(trace, custom, exposure)
    count = len(trace.trials)
    states = np.bincount(trace.rows.of_kinds(State)["trial"] - trace.first, minlength=count)
    columns = {
        "trial": np.arange(trace.first, trace.first + count),
        "partitions": np.full(count, trace.partitions),
        "partition_years": int(trace.counts.sum()) * trace.durations_ms / YEAR_MS,
        "exposure": exposure,
        "states": states,
    }
    controls = ("controls", "control_exposure", "control_exposure_mean", "control", "control_mean")
    columns |= {name: trace.trials[name].combine_chunks() for name in controls}
    structs = {
        name: pa.StructArray.from_arrays([pa.array(measures[field]) for field in METRIC_FIELDS], METRIC_FIELDS)
        for name, measures in metrics.items()
    }
    names = (*(metric.name for metric in METRICS), *clusters, *(metric.name for metric in custom))
    return table(trial_columns(names), trace.cell, columns.__getitem__, **structs)


def _shares(trace: Trace) -> tuple[Values, dict[str, Measures]]:
    """The exposure of each trial, and the shares of time."""
    found, copies = trace.intervals, trace.counts[trace.intervals["partition"]]
    parts = _Parts(found["trial"] - trace.first, found["weight"], len(trace.trials))
    metrics = {}
    for metric in FRACTIONS.values():
        length_ms = parts.total(found["length_ms"] * copies * found[metric.column])
        measures = _weighted(parts, parts.total(found.episodes[metric.column]))
        none = np.zeros(len(trace.trials))
        measures |= {"value": parts.summed(parts.weight * length_ms) / YEAR_MS}
        metrics[metric.name] = measures | {"size_squares": none, "largest_size": none}
    return parts.summed(parts.weight * parts.total(found["length_ms"] * copies)) / YEAR_MS, metrics


def _weighted(parts: _Parts, events: Values) -> Measures:
    """The number of events of each trial, with the sums of their weights and the largest one."""
    return {
        "events": parts.summed(events),
        "weight": parts.summed(parts.weight * events),
        "weight_squares": parts.summed(parts.weight * parts.weight * events),
        "largest_weight": parts.largest(np.where(events > 0, parts.weight, 0.0)),
    }


def _rates(trace: Trace) -> dict[str, Measures]:
    """The rates: an event's size is 1, or the row's value where the rate adds up values, for each partition that the
    row stands for."""
    metrics = {}
    for metric in RATES.values():
        rows = trace.rows.of_kinds(metric.counts)
        parts = _Parts(rows["trial"] - trace.first, rows["weight"], len(trace.trials))
        size = trace.counts[rows["partition"]] * (rows["value"] if metric.sums_values else 1)
        weight = parts.weight
        metrics[metric.name] = _weighted(parts, parts.total(np.ones(len(rows), np.int64))) | {
            "value": parts.summed(weight * parts.total(size)),
            "size_squares": parts.summed(weight * weight * parts.total(size * size)),
            "largest_size": np.maximum(parts.largest(weight * parts.most(size)), 0.0),
        }
    return metrics


def _custom(trace: Trace, metrics: Sequence[MetricDeclaration], exposure: Values) -> dict[str, Measures]:
    """The metrics of a script, from the values in `trials/`, in the form of the built-in ones. A rate's value is the
    number of events. A share of the trial, measured in partition-years as the built-in shares of time are, is one
    episode. Trials with functions are plain ones, of weight 1."""
    found = {}
    raw = np.array(trace.trials["custom"].to_pylist(), float).reshape(len(trace.trials), -1)
    for index, metric in enumerate(metrics):
        value, share = raw[:, index], metric.unit == "fraction"
        events = (value > 0.0).astype(np.int64) if share else np.ceil(value).astype(np.int64)
        none, some = np.zeros(len(value)), events > 0
        sizes = (none, none) if share else (value, some)
        found[metric.name] = plain_measures(value * exposure if share else value, events, *sizes)
    return found
