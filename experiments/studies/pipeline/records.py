"""Silver: the fate of every record, what losses are checked with, and what consumers read.

A record is acknowledged or not; with acks=all it is then in the logs of the whole ISR, and consumers can read it
(`visible_ms`; unknown for acks=1, where the high watermark follows later). An election *cuts* the log of a partition at
`offset` if the new leader's log lacks records from there on that were acknowledged before. The record is lost by the
first cut at or below its offset after its acknowledgement; it is `durable` if no election of the trial cuts it off.
At a checkpoint all replicas have all records; of those acknowledged before it only the last one is followed on.

The simulator counts losses by comparing payloads as it elects. Here they follow from the offsets of records and
elections; `cuts` and `counts` are what the two are compared by (`spark.py`).

A consumer reads below the high watermark. A later election whose leader's log lacks records from `offset` on removes
what the consumer had read from there on: so many of the records of a read are `undone`, from the first such election on
(`undone_ms`). The consumer itself notices when it next reads: a row with the outcome `diverged` or `out_of_range`
(`trials/reader.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from experiments.studies.pipeline.rows import Trace, TraceRows, Values, first_at_or_below
from experiments.studies.pipeline.schemas import READS, SILVER, Nullable, table
from experiments.studies.trace.kinds import (
    ACKED,
    FETCHED,
    FOLLOWED,
    Acks1Loss,
    Checkpoint,
    Elected,
    Loss,
    Produced,
    Read,
)


def records(trace: Trace) -> pa.Table:
    """One row per produced record, with the columns of `schemas.SILVER["records"]`."""
    followed = _followed(trace)
    produced, cut = _fates(trace, followed)
    acked = produced.have_text("detail", ACKED)
    lost = cut >= 0
    columns = {
        "sent_ms": produced["time_ms"] - produced["value"],
        "outcome": produced.texts("detail").at(np.arange(len(produced))),
        "acknowledged_ms": Nullable(produced["time_ms"], ~acked),
        "visible_ms": Nullable(produced["time_ms"], ~(acked & trace.acks_all)),
        "durable": acked & ~lost,
        "lost_ms": Nullable(followed["time_ms"][cut], ~lost),
        "lost_epoch": Nullable(followed["epoch"][cut], ~lost),
        "weight": np.exp(produced["log_weight"]),
    }
    return table(SILVER["records"], trace.cell, produced, **columns)


def _followed(trace: Trace) -> TraceRows:
    """The rows that follow records, by partition and in their order."""
    rows = trace.rows.of_kinds(*FOLLOWED)
    return rows.sorted(trace.groups(rows["trial"], rows["partition"]))


def _fates(trace: Trace, followed: TraceRows) -> tuple[TraceRows, Values]:
    """The records, and for each the position among the rows `followed` of the election that lost it, or -1."""
    found = _find_cuts(trace, followed)
    produced = followed.are(Produced)
    at = np.flatnonzero(produced)
    begin = np.searchsorted(found.at, at)
    later = np.searchsorted(found.group[found.at], found.group[at], side="right")
    end = np.minimum(later, _until(found.since, at, begin, later))
    end = np.where(found.acked[at], end, begin)
    cut = first_at_or_below(followed["offset"][found.at], begin, end, followed["offset"][at])
    return followed.where(produced), np.where(cut >= 0, np.append(found.at, -1)[cut], -1)


class _Cuts(NamedTuple):
    """`group`, `acked`: of every row, the number of its partition, and whether it is a record that was acknowledged.
    `at`: the positions of the elections that cut acknowledged records off. `since`: the position of the first record
    that was still followed when each of them happened, -1 for all."""

    group: Values
    acked: Values
    at: Values
    since: Values


def _find_cuts(trace: Trace, followed: TraceRows) -> _Cuts:
    group, position = trace.groups(followed["trial"], followed["partition"]), np.arange(len(followed))
    acked = followed.are(Produced) & followed.have_text("detail", ACKED)
    new = np.diff(group, prepend=-1) != 0
    first = np.maximum.accumulate(np.where(new, position, 0))
    last_acked = _running(acked, first)
    checkpoint = _running(followed.are(Checkpoint), first)
    highest = _highest(np.where(acked, followed["offset"], -1), group)
    at = np.flatnonzero(followed.are(Elected) & (followed["offset"] <= highest) & (highest >= 0))
    since = np.where(checkpoint >= 0, last_acked[checkpoint], -1)[at]
    return _Cuts(group, acked, at, since)


def _at(positions: Values, length: int) -> Values:
    """A mask that is true at these positions."""
    mask = np.zeros(length, bool)
    mask[positions] = True
    return mask


def _running(mask: Values, first: Values) -> Values:
    """The last row so far, in its group, for which `mask` is true, or -1. `first`: where each row's group begins."""
    last = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return np.where(last >= first, last, -1)


def _highest(offsets: Values, group: Values) -> Values:
    """The highest offset so far in the group."""
    span = int(offsets.max(initial=0)) + 2
    highest: Values = np.maximum.accumulate(group * span + offsets + 1) - group * span - 1
    return highest


def _until(since: Values, at: Values, begin: Values, end: Values) -> Values:
    """Up to which of the cuts from `begin` to `end` a record at position `at` is followed: to the first one after a
    checkpoint that dropped it. `since` does not decrease within a group."""
    # Positions ascend over groups too, so that one ascending array serves all groups.
    ascending = np.maximum.accumulate(since) if len(since) else since
    return np.clip(np.searchsorted(ascending, at, side="right"), begin, end)


def cuts(trace: Trace) -> pa.Table:
    """One row per election that cuts records off which were acknowledged before it, with the columns of
    `schemas.SILVER["cuts"]`. It loses the acknowledged records at `offset` and above whose `seq` is at least `since`
    and below its own: those that were followed when it happened."""
    followed = _followed(trace)
    found = _find_cuts(trace, followed)
    since = np.where(found.since >= 0, followed["seq"][found.since], 0)
    return table(SILVER["cuts"], trace.cell, followed.where(_at(found.at, len(followed))), since=since)


def counts(trace: Trace) -> pa.Table:
    """One row per partition of a trial whose records were followed: how many were produced, and how many acknowledged
    ones the simulator counted as lost; the columns of `schemas.SILVER["counts"]`."""
    produced, counted = trace.rows.of_kinds(Produced), trace.rows.of_kinds(Loss, Acks1Loss)
    most = len(trace.trials) * trace.partitions
    records = np.bincount(trace.groups(produced["trial"], produced["partition"]), minlength=most)
    lost = np.zeros(most, np.int64)
    np.add.at(lost, trace.groups(counted["trial"], counted["partition"]), counted["value"])
    (group,) = np.nonzero(records)
    columns = {
        "trial": group // trace.partitions + trace.first,
        "partition": group % trace.partitions,
        "records": records[group],
        "lost": lost[group],
    }
    return table(SILVER["counts"], trace.cell, columns)


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
