"""Silver: the fate of every record, what losses are checked with, and what consumers read.

A record that is acknowledged with acks=all is in the logs of the whole ISR, and consumers can read it (`visible_ms`;
unknown for acks=1, where the high watermark follows later). An election *cuts* the log of a partition at `offset` if
the new leader's log lacks records from there on that were acknowledged before. The record is lost by the first cut at
or below its offset after its acknowledgement. At a checkpoint all replicas have all records; of those acknowledged
before it only the last one is followed on.

A later election whose leader's log lacks records from `offset` on removes what a consumer had read from there on: so
many of the records of a read are `undone`, from the first such election on (`undone_ms`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from experiments.studies.pipeline.rows import Trace, TraceRows, Values, first_at_or_below
from experiments.studies.pipeline.schemas import READS, SILVER, table
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
    followed, group, at, since = _find_cuts(trace)
    position = np.flatnonzero(followed.are(Produced))
    produced = followed.at(position)
    acked = produced.have_text("detail", ACKED)
    begin = np.searchsorted(at, position)
    end = np.searchsorted(group[at], group[position], side="right")
    # A record is followed up to the first cut after a checkpoint that dropped it. `since` does not decrease within a
    # partition, and positions ascend over partitions too, so that one ascending array serves all of them.
    end = np.clip(np.searchsorted(np.maximum.accumulate(since), position, side="right"), begin, end)
    cut = first_at_or_below(followed["offset"][at], begin, np.where(acked, end, begin), produced["offset"])
    lost, election = cut >= 0, np.append(at, -1)[cut]
    columns = {
        "sent_ms": produced["time_ms"] - produced["value"],
        "outcome": produced.text("detail"),
        "acknowledged_ms": pa.array(produced["time_ms"], mask=~acked),
        "visible_ms": pa.array(produced["time_ms"], mask=~(acked & trace.visible[produced["partition"]])),
        "durable": acked & ~lost,
        "lost_ms": pa.array(followed["time_ms"][election], mask=~lost),
        "lost_epoch": pa.array(followed["epoch"][election], mask=~lost),
    }
    return table(SILVER["records"], trace.cell, produced.__getitem__, **columns)


class _Cuts(NamedTuple):
    """`followed`, `group`: the rows that follow records, by partition and in their order, and the numbers of their
    partitions. `at`: the positions of the elections that cut acknowledged records off. `since`: the position of the
    first record that was still followed when each of them happened, -1 for all."""

    followed: TraceRows
    group: Values
    at: Values
    since: Values


def _find_cuts(trace: Trace) -> _Cuts:
    followed, group = trace.by_partition(*FOLLOWED)
    acked = followed.are(Produced) & followed.have_text("detail", ACKED)
    new = np.diff(group, prepend=-1) != 0
    first = np.maximum.accumulate(np.where(new, np.arange(len(followed)), 0))
    last_acked = _running(acked, first)
    checkpoint = _running(followed.are(Checkpoint), first)
    span = int(followed["offset"].max(initial=0)) + 2
    acked_offsets = group * span + np.where(acked, followed["offset"], -1) + 1
    highest = np.maximum.accumulate(acked_offsets) - group * span - 1  # so far, within the partition
    at = np.flatnonzero(followed.are(Elected) & (followed["offset"] <= highest) & (highest >= 0))
    return _Cuts(followed, group, at, np.where(checkpoint >= 0, last_acked[checkpoint], -1)[at])


def _running(mask: Values, first: Values) -> Values:
    """The last row so far, in its group, for which `mask` is true, or -1. `first`: where each row's group begins."""
    last = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return np.where(last >= first, last, -1)


def cuts(trace: Trace) -> pa.Table:
    """One row per election that cuts records off which were acknowledged before it, with the columns of
    `schemas.SILVER["cuts"]`. It loses the acknowledged records at `offset` and above whose `seq` is at least `since`
    and below its own: those that were followed when it happened."""
    followed, _, at, position = _find_cuts(trace)
    since = np.where(position >= 0, followed["seq"][position], 0)
    return table(SILVER["cuts"], trace.cell, followed.at(at).__getitem__, since=since)


def counts(trace: Trace) -> pa.Table:
    """One row per partition of a trial whose records were followed: how many were produced, and how many acknowledged
    ones the simulator counted as lost; the columns of `schemas.SILVER["counts"]`."""
    (_, produced), (counted, losing) = trace.by_partition(Produced), trace.by_partition(Loss, Acks1Loss)
    most = len(trace.trials) * trace.partitions
    records = np.bincount(produced, minlength=most)
    lost = np.zeros(most, np.int64)
    np.add.at(lost, losing, counted["value"])
    (group,) = np.nonzero(records)
    columns = {
        "trial": group // trace.partitions + trace.first,
        "partition": group % trace.partitions,
        "records": records[group],
        "lost": lost[group],
    }
    return table(SILVER["counts"], trace.cell, columns.__getitem__)


def reads(trace: Trace) -> pa.Table:
    """One row per read that returned records or made the consumer go back, with the columns of `schemas.READS`."""
    rows, group = trace.by_partition(Read, Elected)
    read = rows.are(Read)
    elections, at = np.flatnonzero(~read), np.flatnonzero(read)
    offsets = rows["offset"][elections]
    found = rows.at(at)
    fetched, stop = found.have_text("detail", FETCHED), found["offset"] + found["value"]
    begin = np.searchsorted(elections, at)
    lowest = _lowest_from(offsets, group[elections], begin, group[at])
    undone = fetched & (lowest < stop)
    end = np.where(undone, len(elections), begin)
    first = first_at_or_below(offsets, begin, end, stop - 1)
    columns = {
        "leader": found["node"],
        "outcome": found.text("detail"),
        "records": found["value"],
        "undone": np.where(undone, stop - np.maximum(found["offset"], lowest), 0),
        "undone_ms": pa.array(np.append(rows["time_ms"][elections], 0)[first], mask=~undone),
    }
    return table(READS, trace.cell, found.__getitem__, **columns)


def _lowest_from(offsets: Values, group: Values, begin: Values, wanted: Values) -> Values:
    """The lowest offset from each position on to the end of the `wanted` group; the largest number without any."""
    none = np.iinfo(np.int64).max
    lowest = np.append(offsets, none)
    for last in np.flatnonzero(np.diff(group, append=-1) != 0)[::-1].tolist():
        start = int(np.searchsorted(group, group[last]))
        lowest[start : last + 1] = np.minimum.accumulate(lowest[start : last + 1][::-1])[::-1]
    return np.where(np.append(group, -1)[begin] == wanted, lowest[begin], none)
