"""Silver: the fate of every record that was produced, and the check of the losses that the simulator counted.

A record is acknowledged or not; with acks=all it is then in the logs of the whole ISR, and consumers can read it
(`visible_ms`; unknown for acks=1, where the high watermark follows later). An election *cuts* the log of a partition at
`offset` if the new leader's log lacks records from there on that were acknowledged before. The record is lost by the
first cut at or below its offset after its acknowledgement; it is `durable` if no election of the trial cuts it off.
At a checkpoint all replicas have all records; of those acknowledged before it only the last one is followed on.

The simulator counts losses by comparing payloads as it elects. Here they follow from offsets and leader epochs, by
matching records with elections; `disagreements` compares the two, trial by trial.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from experiments.studies.pipeline.cuts import first_at_or_below
from experiments.studies.pipeline.rows import Rows, Trace, Values
from experiments.studies.pipeline.schemas import DISAGREEMENTS, SILVER, Nullable, table
from experiments.studies.trace.schema import ACKED, ACKS_1_LOSS, CHECKPOINT, ELECTED, FOLLOWED, LOSS, PRODUCED


def records(trace: Trace) -> pa.Table:
    """One row per produced record, with the columns of `schemas.SILVER["records"]`."""
    followed = _followed(trace)
    produced, cut = _fates(trace, followed)
    acked = produced.have("detail", ACKED)
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


def _followed(trace: Trace) -> Rows:
    """The rows that follow records, by partition and in their order."""
    rows = trace.rows.of(*sorted(FOLLOWED))
    return rows.sorted(trace.groups(rows["trial"], rows["partition"]))


def _fates(trace: Trace, followed: Rows) -> tuple[Rows, Values]:
    """The records, and for each the position among the rows `followed` of the election that lost it, or -1."""
    group, position = trace.groups(followed["trial"], followed["partition"]), np.arange(len(followed))
    produced, acked = followed.have("kind", PRODUCED), followed.have("detail", ACKED)
    acked &= produced
    new = np.diff(group, prepend=-1) != 0
    first = np.maximum.accumulate(np.where(new, position, 0))
    last_acked = _running(acked, first)
    checkpoint = _running(followed.have("kind", CHECKPOINT), first)
    followed_from = np.where(checkpoint >= 0, last_acked[checkpoint], -1)
    highest = _highest(np.where(acked, followed["offset"], -1), group)
    cuts = np.flatnonzero(followed.have("kind", ELECTED) & (followed["offset"] <= highest) & (highest >= 0))
    at = np.flatnonzero(produced)
    begin = np.searchsorted(cuts, at)
    later = np.searchsorted(group[cuts], group[at], side="right")
    end = np.minimum(later, _until(followed_from[cuts], at, begin, later))
    end = np.where(acked[at], end, begin)
    cut = first_at_or_below(followed["offset"][cuts], begin, end, followed["offset"][at])
    return followed.where(produced), np.where(cut >= 0, np.append(cuts, -1)[cut], -1)


def _running(mask: Values, first: Values) -> Values:
    """The position of the last row so far, in its group, for which `mask` is true; -1 without one. `first`: the
    position of each row's group."""
    last = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return np.where(last >= first, last, -1)


def _highest(offsets: Values, group: Values) -> Values:
    """The highest offset so far in the group."""
    span = int(offsets.max(initial=0)) + 2
    highest: Values = np.maximum.accumulate(group * span + offsets + 1) - group * span - 1
    return highest


def _until(followed_from: Values, at: Values, begin: Values, end: Values) -> Values:
    """Up to which of the cuts from `begin` to `end` a record at position `at` is followed: to the first one after a
    checkpoint that dropped it. `followed_from` does not decrease within a group."""
    # Positions ascend over groups too, so that one ascending array serves all groups.
    ascending = np.maximum.accumulate(followed_from) if len(followed_from) else followed_from
    return np.clip(np.searchsorted(ascending, at, side="right"), begin, end)


def disagreements(trace: Trace) -> pa.Table:
    """One row per partition of a trial in which the records that were lost are not those that the simulator counted:
    cell, trial, partition, counted, found. A partition whose records were not followed is left out."""
    followed = _followed(trace)
    produced, cut = _fates(trace, followed)
    counted = trace.rows.of(LOSS, ACKS_1_LOSS)
    group = trace.groups(produced["trial"], produced["partition"])
    most = len(trace.trials) * trace.partitions
    found = np.bincount(group, cut >= 0, most).astype(np.int64)
    totals = np.zeros(most, np.int64)
    np.add.at(totals, trace.groups(counted["trial"], counted["partition"]), counted["value"])
    differ = np.flatnonzero((np.bincount(group, minlength=most) > 0) & (totals != found))
    columns = {
        "trial": differ // trace.partitions + trace.first,
        "partition": differ % trace.partitions,
        "counted": totals[differ],
        "found": found[differ],
    }
    return table(DISAGREEMENTS, trace.cell, columns)
