"""The rules of a trace, for the rows of many trials at once, as arrays: what a file from disk has to keep.

They are declared by the kinds (`kinds.py`). A worker checks its trials before it writes, and the analysis every file
that it reads: a file may come from another program, and a trace that breaks a rule would give wrong numbers in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    seq = np.arange(len(index)) - (lengths.cumsum() - lengths)[index]
    if not (np.array_equal(rows["trial"], numbers[index]) and np.array_equal(rows["seq"], seq)):
        allowed = "the rows of each trial once, numbered from 0"
        return Broken("trial, seq", "rows of a trial twice or out of order", allowed)
    kinds = rows["kind"].combine_chunks().dictionary_encode()
    unknown = sorted(set(kinds.dictionary.to_pylist()) - KINDS.keys())
    if unknown:
        return Broken("kind", unknown[0], f"one of {', '.join(sorted(KINDS))}")
    return next(_broken(rows, trials, index, kinds), None)


def _are(kinds: pa.DictionaryArray, holds: Callable[[type[Observation]], bool]) -> NDArray[np.bool_]:
    """Whether something holds for the kind of each row."""
    wanted = np.array([holds(KINDS[name]) for name in kinds.dictionary.to_pylist()], bool)
    found: NDArray[np.bool_] = wanted[kinds.indices.to_numpy()]
    return found


def _broken(rows: pa.Table, trials: pa.Table, index: Values, kinds: pa.DictionaryArray) -> Iterator[Broken]:
    """What breaks a rule of times, kinds and partitions; `index`: of each row's trial among `trials`."""
    times, partition = rows["time_ms"].to_numpy(), rows["partition"].to_numpy()
    numbers, partitions = trials["trial"].to_numpy(), trials["partitions"].to_numpy()
    last = np.append(index[1:] != index[:-1], True)
    back = np.append(False, (np.diff(times) < 0) & ~last[:-1])
    if back.any():
        yield Broken("time_ms", f"time that goes back in trial {numbers[index[back.argmax()]]}", "rows in time order")
    late = times[last] != trials["duration_ms"].to_numpy()
    if late.any():
        trial = int(late.argmax())
        found = f"{times[last][trial]} in the last row of trial {numbers[trial]}"
        yield Broken("time_ms", found, f"{trials['duration_ms'][trial]}, as its row in trials/ says")
    misplaced = _are(kinds, lambda kind: kind.ENDS_TRIAL) != last
    if misplaced.any():
        found = f"another row than the last one, or none, in trial {numbers[index[misplaced.argmax()]]}"
        yield Broken("kind", found, "`end` in the last row of each trial only")
    for limit in _LIMITS:
        limited = [kind for kind, layout in LAYOUTS.items() if limit in layout.columns.values()]
        low = _are(kinds, limited.__contains__) & (rows[limit.column].to_numpy() < limit.least)
        if low.any():
            found = f"{limit.below} in trial {numbers[index[low.argmax()]]}"
            yield Broken(limit.column, found, f"at least {limit.least}")
    outside = (partition < NONE) | (partition >= partitions[index])
    if outside.any():
        at = outside.argmax()
        found = f"{partition[at]} in trial {numbers[index[at]]}"
        yield Broken("partition", found, f"{NONE} to {partitions[index[at]] - 1}")
    before = partitions.cumsum() - partitions
    named = np.flatnonzero(partition != NONE)
    first = np.full(partitions.sum(), -1)
    first[(before[index] + partition)[named][::-1]] = named[::-1]
    wrong = (first < 0) | ~_are(kinds, lambda kind: kind.BEGINS_PARTITION)[first] | (times[first] != 0)
    if wrong.any():
        group = int(wrong.argmax())
        trial = int(np.searchsorted(before, group, side="right")) - 1
        found = f"no state of partition {group - before[trial]} at the begin of trial {numbers[trial]}"
        yield Broken("kind, time_ms", found, "a `state` at 0 ms as the first row of each partition")
