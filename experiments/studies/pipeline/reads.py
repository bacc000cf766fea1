"""Silver: what consumers read, and which of these records an election removed later.

A consumer reads below the high watermark. A later election whose leader's log lacks records from `offset` on removes
what the consumer had read from there on: so many of the records of a read are `undone`, from the first such election on
(`undone_ms`). The consumer itself notices when it next reads: a row with the outcome `diverged` or `out_of_range`
(`trials/reader.py`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from experiments.studies.pipeline.rows import Trace, Values, first_at_or_below
from experiments.studies.pipeline.schemas import READS, Nullable, table
from experiments.studies.trace.kinds import FETCHED, Elected, Read


def reads(trace: Trace) -> pa.Table:
    """One row per read that returned records or made the consumer go back, with the columns of `schemas.READS`."""
    rows = trace.rows.of_kinds(Read, Elected)
    rows = rows.sorted(trace.groups(rows["trial"], rows["partition"]))
    group, read = trace.groups(rows["trial"], rows["partition"]), rows.are(Read)
    elections, at = np.flatnonzero(~read), np.flatnonzero(read)
    offsets = rows["offset"][elections]
    found = rows.where(read)
    fetched, stop = found.have_text("detail", FETCHED), found["offset"] + found["value"]
    begin = np.searchsorted(elections, at)
    lowest = _lowest_from(offsets, group[elections], begin, group[at])
    undone = fetched & (lowest < stop)
    end = np.where(undone, len(elections), begin)
    first = first_at_or_below(offsets, begin, end, stop - 1)
    columns = {
        "leader": found["node"],
        "outcome": found.texts("detail").at(np.arange(len(found))),
        "records": found["value"],
        "undone": np.where(undone, stop - np.maximum(found["offset"], lowest), 0),
        "undone_ms": Nullable(np.append(rows["time_ms"][elections], 0)[first], ~undone),
        "weight": np.exp(found["log_weight"]),
    }
    return table(READS, trace.cell, found, **columns)


def _lowest_from(offsets: Values, group: Values, begin: Values, wanted: Values) -> Values:
    """The lowest offset from each position on to the end of the `wanted` group; the largest number without any."""
    none = np.iinfo(np.int64).max
    lowest = np.append(offsets, none)
    for last in np.flatnonzero(np.diff(group, append=-1) != 0)[::-1].tolist():
        start = int(np.searchsorted(group, group[last]))
        lowest[start : last + 1] = np.minimum.accumulate(lowest[start : last + 1][::-1])[::-1]
    return np.where(np.append(group, -1)[begin] == wanted, lowest[begin], none)
