"""The rules of a trace, for the rows of many trials at once, as arrays: what a file from disk has to keep.

They are declared by the kinds (`kinds.py`). A worker checks its trials before it writes, and the analysis every file
that it reads: a file may come from another program, and a trace that breaks a rule would give wrong numbers in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.studies.trace.kinds import KINDS, LAYOUTS, Observation
from experiments.studies.trace.schema import NONE, Values

_LIMITS = sorted({each for layout in LAYOUTS.values() for each in layout.columns.values() if each.least is not None})
COLUMNS = ("trial", "seq", "time_ms", "kind", "partition", *dict.fromkeys(limit.column for limit in _LIMITS))
"""The columns that the rules are about."""


class Broken(NamedTuple):
    """A rule that is broken: the columns that it is about, what was found, and what is allowed."""

    columns: str
    found: str
    allowed: str


def broken_rule(rows: pa.Table, trials: pa.Table) -> Broken | None:
    """The first rule that the rows of a batch break, None for a whole trace. `rows`: at least the columns `COLUMNS`;
    `trials`: the batch's table, with `trial`, `trace_rows`, `duration_ms`, `partitions` of each of its trials."""
    lengths, numbers = trials["trace_rows"].to_numpy(), trials["trial"].to_numpy()
    if len(rows) != lengths.sum():
        return Broken("", f"{len(rows)} rows", f"{lengths.sum()}, as its trials count them")
    if (lengths < 1).any():
        return Broken("trace_rows", "a trial without rows", "rows that begin with states and finish with `end`")
    index = np.repeat(np.arange(len(lengths)), lengths)
    ends = lengths.cumsum() - 1
    starts = ends + 1 - lengths
    whole = np.array_equal(rows["trial"].to_numpy(), numbers[index])
    if not whole or not np.array_equal(rows["seq"].to_numpy(), np.arange(len(index)) - starts[index]):
        allowed = "the rows of each trial once, numbered from 0"
        return Broken("trial, seq", "rows of a trial twice or out of order", allowed)
    kinds = rows["kind"].combine_chunks().dictionary_encode()
    unknown = sorted(set(kinds.dictionary.to_pylist()) - KINDS.keys())
    if unknown:
        return Broken("kind", unknown[0], f"one of {', '.join(sorted(KINDS))}")
    return _broken_in_time(rows, trials, index, ends) or _broken_by_kind(rows, trials, index, kinds)


def _are(kinds: pa.DictionaryArray, holds: Callable[[type[Observation]], bool]) -> NDArray[np.bool_]:
    """Whether something holds for the kind of each row."""
    wanted = np.array([holds(KINDS[name]) for name in kinds.dictionary.to_pylist()], bool)
    found: NDArray[np.bool_] = wanted[kinds.indices.to_numpy()]
    return found


def _broken_in_time(rows: pa.Table, trials: pa.Table, index: Values, ends: Values) -> Broken | None:
    times, numbers = rows["time_ms"].to_numpy(), trials["trial"].to_numpy()
    back = np.diff(times, prepend=times[0]) < 0
    back[ends[:-1] + 1] = False
    if back.any():
        return Broken("time_ms", f"time that goes back in trial {numbers[index[back.argmax()]]}", "rows in time order")
    late = times[ends] != trials["duration_ms"].to_numpy()
    if late.any():
        first = int(late.argmax())
        found = f"{times[ends[first]]} in the last row of trial {numbers[first]}"
        return Broken("time_ms", found, f"{trials['duration_ms'][first]}, as its row in trials/ says")
    return None


def _broken_by_kind(rows: pa.Table, trials: pa.Table, index: Values, kinds: pa.DictionaryArray) -> Broken | None:
    numbers, partitions = trials["trial"].to_numpy(), trials["partitions"].to_numpy()
    is_end = _are(kinds, lambda kind: kind.ENDS_TRIAL)
    last = np.append(index[1:] != index[:-1], True)
    if (is_end != last).any():
        found = f"another row than the last one, or none, in trial {numbers[index[(is_end != last).argmax()]]}"
        return Broken("kind", found, "`end` in the last row of each trial only")
    for limit in _LIMITS:
        limited = [kind for kind, layout in LAYOUTS.items() if limit in layout.columns.values()]
        low = _are(kinds, limited.__contains__) & (rows[limit.column].to_numpy() < limit.least)
        if low.any():
            found = f"{limit.below} in trial {numbers[index[low.argmax()]]}"
            return Broken(limit.column, found, f"at least {limit.least}")
    partition = rows["partition"].to_numpy()
    outside = (partition < NONE) | (partition >= partitions[index])
    if outside.any():
        at = outside.argmax()
        found = f"{partition[at]} in trial {numbers[index[at]]}"
        return Broken("partition", found, f"{NONE} to {partitions[index[at]] - 1}")
    return _broken_begin(rows, numbers, partitions, index, _are(kinds, lambda kind: kind.BEGINS_PARTITION))


def _broken_begin(rows: pa.Table, numbers: Values, partitions: Values, index: Values, states: Values) -> Broken | None:
    """Unless each partition begins with a state at time 0."""
    partition, times = rows["partition"].to_numpy(), rows["time_ms"].to_numpy()
    before = partitions.cumsum() - partitions
    named = np.flatnonzero(partition != NONE)
    first = np.full(partitions.sum(), -1)
    first[(before[index] + partition)[named][::-1]] = named[::-1]
    wrong = (first < 0) | ~states[first] | (times[first] != 0)
    if wrong.any():
        group = int(wrong.argmax())
        trial = int(np.searchsorted(before, group, side="right")) - 1
        found = f"no state of partition {group - before[trial]} at the begin of trial {numbers[trial]}"
        return Broken("kind, time_ms", found, "a `state` at 0 ms as the first row of each partition")
    return None
