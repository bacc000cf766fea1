"""What the failures of each cause had to do with the harms of a batch: the table that `estimation/growth.py` reweights.

A *cycle* lasts while a broker is down or impaired, or a partition is not whole: no leader that serves, fewer in the ISR
than at best, members of an ELR, a recovery that is not complete, or writes that wait. A harm (a loss, an interval in
which writes fail) belongs to the cycle that it is in, with the events of each cause that came in it before. Failures
with a shared cause are one event if they are at most its window apart. Own failures are expected of brokers that run,
shared events always."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

import numpy as np
import pyarrow as pa

from experiments.studies.design.estimator import choose
from experiments.studies.design.impairments import Domain
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.design.targets import INCIDENTS, WRITABLE
from experiments.studies.estimation.growth import Cause, Cycle, Harms, Reweighting
from experiments.studies.failures.sources import impairment_sources, poisson_sources
from experiments.studies.pipeline.rows import Trace, Values
from experiments.studies.pipeline.schemas import SILVER, table
from experiments.studies.trace.kinds import AcknowledgedLoss, Crash, Impaired, Observation, Restored, Start
from experiments.studies.trace.schema import YEAR_MS

OWN = "broker"
LOSS, UNWRITABLE, CYCLE = "loss", "unwritable", "cycle"
TABLE = "harms"


class Model(NamedTuple):
    """What the table needs of a cell: `causes` by name, the brokers, the windows of bursts by cause."""

    causes: Mapping[str, Cause]
    brokers: int
    windows_ms: Mapping[str, int]


def model_of(params: CellParameters) -> Model:
    """The causes of a cell that come at a constant rate, by the names of their groups."""
    detection_ms, mttf = params.detection_ms or 0, params.broker_mttf
    longest = (params.longest_absence_ms + detection_ms) / YEAR_MS
    rates, absences = dict[str, float](), dict[str, float]()
    if mttf is not None and mttf.dist == "exponential" and params.failures is None:
        rates[OWN], absences[OWN] = params.brokers * YEAR_MS / mttf.mean_ms, longest
    for source in (*poisson_sources(params), *impairment_sources(params)):
        rates[source.group] = rates.get(source.group, 0.0) + source.events_per_year
        absences[source.group] = longest
    for source in impairment_sources(params):
        away_ms = source.down.mean_ms + detection_ms
        away_ms += 0 if params.catch_up is None else params.catch_up.needed_ms(round(away_ms), lost_disk=False)
        absences[source.group] = min(longest, away_ms / YEAR_MS)
    causes = {}
    for name, rate in rates.items():
        longer = sum(rates[other] for other, absence in absences.items() if absence > absences[name])
        causes[name] = Cause(name, rate, absences[name], longer, longest)
    return Model(causes, params.brokers, {burst.cause: burst.window_ms for burst in params.burst})


def group_of(cause: str) -> str:
    """The group of a cause as the trace names it: `rack 0 power` is one of `rack power`."""
    domain, number, name = (*cause.split(" ", 2), "", "")[:3]
    return f"{domain} {name}" if domain in get_args(Domain) and number.isdigit() and name else cause


class _Cycles(NamedTuple):
    """The cycles of a batch, and the integral of the number of brokers that are down. Times are those of the trials one
    after the other."""

    begins: Values
    ends: Values
    times: Values
    down_ms: Values

    def begin_of(self, at: Values) -> Values:
        """When the cycle began that a time is in; the time itself if it is in none."""
        number = np.searchsorted(self.begins, at, side="right") - 1
        inside = (number >= 0) & (at <= self.ends[np.maximum(number, 0)]) if len(self.begins) else at < 0
        return np.where(inside, self.begins[np.maximum(number, 0)], at) if len(self.begins) else at

    def down(self, at: Values) -> Values:
        """The integral until then."""
        found: Values = np.interp(at, self.times, self.down_ms) if len(self.times) else np.zeros(len(at))
        return found


def harms(models: Mapping[str, Model], trace: Trace) -> pa.Table:
    """One row per trial, cause, kind of harm and number of events since the cycle began, and one per cause and number
    of events of a cycle, with the columns of `schemas.SILVER["harms"]`."""
    model, span = models[trace.cell], int(trace.durations_ms.max()) + 1
    offsets = (np.arange(len(trace.trials)) * span).astype(np.int64)
    failures = trace.rows.of_kinds(Crash, Impaired)
    cycles = _cycles(trace, offsets)
    causes = failures.texts("cause")
    groups: Values = np.array([group_of(text) for text in causes.distinct], object)
    at = failures["time_ms"] + offsets[failures["trial"] - trace.first]
    rows: list[tuple[object, ...]] = []
    for name in model.causes:
        times = np.sort(at[(groups == name)[causes.codes]]) if len(at) else at
        if name != OWN:
            times = times[np.diff(times, prepend=-span) > model.windows_ms.get(name, 0)]
        for what, where, value, weight in _found(trace, offsets, cycles):
            begin = cycles.begin_of(where)
            events = np.searchsorted(times, where, side="right") - np.searchsorted(times, begin, side="left")
            passed = where - begin
            if name == OWN:
                passed = passed - (cycles.down(where) - cycles.down(begin)) / model.brokers
            expected = passed * model.causes[name].events_per_year / YEAR_MS
            trial = trace.first + where // span if what != CYCLE else np.full(len(where), trace.first)
            rows += [(name, what, *row) for row in _grouped(trial, events, expected, value, weight, what == CYCLE)]
    names = ("cause", "what", "trial", "events", "expected", "value", "weight", "weight_squares")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    return table(SILVER[TABLE], trace.cell, lambda name: pa.array(columns[name]))


def _spans(trace: Trace, offsets: Values, begin: type[Observation], end: type[Observation]) -> tuple[Values, Values]:
    """When brokers went down (or were impaired), and when that ended; a trial's begin and end stand in for what it does
    not have."""
    found = trace.rows.of_kinds(begin, end)
    causes = found.texts("cause").codes if begin is Impaired else np.zeros(len(found), int)
    order = np.lexsort((found["time_ms"], causes, found["node"], found["trial"]))
    trial, node, cause = found["trial"][order], found["node"][order], causes[order]
    offset, is_begin = offsets[trial - trace.first], found.are(begin)[order]
    time_ms = found["time_ms"][order] + offset
    is_first = np.append(True, (np.diff(trial) != 0) | (np.diff(node) != 0) | (np.diff(cause) != 0))[: len(trial)]
    is_last = np.append(is_first[1:], True)[: len(trial)]
    ends = np.where(is_last, offset + trace.durations_ms[trial - trace.first], np.roll(time_ms, -1))[is_begin]
    missing = is_first & ~is_begin
    return np.concatenate([time_ms[is_begin], offset[missing]]), np.concatenate([ends, time_ms[missing]])


def _cycles(trace: Trace, offsets: Values) -> _Cycles:
    found, (down, up) = trace.intervals, _spans(trace, offsets, Crash, Start)
    impaired, restored = _spans(trace, offsets, Impaired, Restored)
    whole = found["online"] & ~found["stalled"] & ~found["recovering"] & (found["elr_size"] == 0)
    whole &= found["isr_size"] >= found["isr_size"].max(initial=0)
    offset = offsets[found["trial"] - trace.first][~whole]
    begins = np.concatenate([down, impaired, found["start_ms"][~whole] + offset])
    ends = np.concatenate([up, restored, found["end_ms"][~whole] + offset])
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    is_new = np.append(True, begins[1:] > ends[:-1])[: len(begins)]
    times = np.concatenate([down, up])
    turn = np.argsort(times, kind="stable")
    number = np.concatenate([np.ones(len(down)), -np.ones(len(up))])[turn].cumsum()
    down_ms = np.append(0.0, (number[:-1] * np.diff(times[turn])).cumsum())[: len(times)]
    return _Cycles(begins[is_new], ends[np.append(is_new[1:], True)[: len(ends)]], times[turn], down_ms)


def _found(trace: Trace, offsets: Values, cycles: _Cycles) -> Iterator[tuple[str, Values, Values, Values]]:
    """The harms by kind, and the cycles: when, how much, with which weight."""
    losses, found = trace.rows.of_kinds(AcknowledgedLoss), trace.intervals
    weight = losses["weight"]
    yield LOSS, losses["time_ms"] + offsets[losses["trial"] - trace.first], weight, weight
    failing = found["unwritable"]
    weight = found["weight"][failing]
    at = (found["start_ms"] + offsets[found["trial"] - trace.first])[failing]
    yield UNWRITABLE, at, weight * found["length_ms"][failing] / YEAR_MS, weight
    at = trace.rows["time_ms"] + offsets[trace.rows["trial"] - trace.first]
    weight = trace.rows["weight"][np.searchsorted(at, cycles.ends)]
    yield CYCLE, cycles.ends, np.ones(len(weight)), weight


def _grouped(
    trial: Values, events: Values, expected: Values, value: Values, weight: Values, is_cycle: bool
) -> Iterator[tuple[object, ...]]:
    """The sums by trial and number of events; of `expected` the mean by value. Of cycles, the least `expected` and the
    largest `weight`."""
    pairs, which = np.unique(np.stack([trial, events]), axis=1, return_inverse=True)
    which, count = which.ravel(), pairs.shape[1]
    total = np.bincount(which, value, count)
    mean = np.bincount(which, value * expected, count) / np.where(total > 0.0, total, 1.0)
    sums: Values = np.bincount(which, weight, count)
    squares = np.bincount(which, weight * weight, count)
    if is_cycle:
        mean, sums = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(mean, which, expected)
        np.maximum.at(sums, which, weight)
    columns = (*pairs, mean, total, sums, squares)
    yield from zip(*(column.tolist() for column in columns), strict=True)


def reweighting_of(study: StudyPlan, rows: pa.Table) -> list[Reweighting | None]:
    """What `estimation/growth.py` needs of each cell of the study, from all rows of the table; None for cells whose
    trials are no plain sequence of cycles (splitting), whose failures are drawn by a function of a script, or whose
    losses count in incidents of a cluster."""
    found = defaultdict[int, dict[str, dict[str, Harms]]](lambda: {INCIDENTS: {}, WRITABLE: {}})
    frame = rows.to_pandas().sort_values(["cell", "cause", "what", "trial", "events"], kind="stable")
    for (cell, cause), each in frame.groupby(["cell", "cause"], sort=True):
        of = each[each["what"] == CYCLE].groupby("events").agg({"expected": "min", "weight": "max"})
        in_cycles = choose(study.cells[cell].parameters, study.functions is not None).in_cycles
        cycles = {
            int(row.Index): Cycle(float(row.expected), float(row.weight) if in_cycles else None)
            for row in of.itertuples()
        }
        for what, target in ((LOSS, INCIDENTS), (UNWRITABLE, WRITABLE)):
            of = each[each["what"] == what]
            names = ("events", "expected", "value", "weight", "weight_squares")
            arrays = {name: of[name].to_numpy(float) for name in names}
            trial = np.unique(of["trial"].to_numpy(), return_inverse=True)[1]
            found[cell][target][str(cause)] = Harms(trial=trial, cycles=cycles, **arrays)
    is_drawn = study.functions is not None and study.functions.failure_model is not None
    return [
        None
        if is_drawn
        or cell.parameters.cluster is not None
        or choose(cell.parameters, study.functions is not None).estimator == "splitting"
        else Reweighting(model_of(cell.parameters).causes, found[cell.index])
        for cell in study.cells
    ]
