"""The trace of a trial: its rows, its rules, and the Parquet schema of `trace/`.

A trace lists, in time order, what a study measures. A `state` row is written when the state of a partition changes, so
that quantities over time (offline, rejecting, stalled) are sums of intervals between `state` rows. Each counted event
(loss, unclean recovery, regression of the high watermark) is a row of its own, and so is each measured time: the
failover that clients saw, and on real processes (engine `ray`) also acknowledgements, restarts and the throughput.

A simulated trial also lists what its losses can be computed from again: each write with its offset (`produced`), each
leader with the offset from which on its log lacks what the leader before it had (`elected`), and when all replicas have
all records, so that only the last one is followed on (`checkpoint`). The simulator finds losses by comparing the
records' payloads; the pipeline finds them by joining these rows, and compares (`pipeline/checks.py`).

Rules, which :func:`check_trace` enforces before a row is written to disk: times do not decrease; the first row of each
partition is a `state` at time 0; the last row of the trial, and only it, is `end`, at the trial's duration (in
importance sampling after it, where a cycle is completed); `loss` carries a positive number of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

STATE: Final = "state"
LOSS: Final = "loss"
ACKS_1_LOSS: Final = "acks_1_loss"
ACKNOWLEDGED_LOSS: Final = "acknowledged_loss"
UNCLEAN_RECOVERY: Final = "unclean_recovery"
HW_REGRESSION: Final = "hw_regression"
CRASH: Final = "crash"
START: Final = "start"
END: Final = "end"
PRODUCED: Final = "produced"
ELECTED: Final = "elected"
CHECKPOINT: Final = "checkpoint"
READ: Final = "read"
RECOVERY: Final = "recovery"
FAILOVER: Final = "failover"
ACKNOWLEDGED: Final = "acknowledged"
RESTARTED: Final = "restarted"
THROUGHPUT: Final = "throughput"
MEASURED: Final = frozenset({FAILOVER, ACKNOWLEDGED, RESTARTED, THROUGHPUT})
"""Kinds whose rows carry a measurement in `value`: see :class:`TraceRow`."""
FOLLOWED: Final = frozenset({PRODUCED, ELECTED, CHECKPOINT})
"""Kinds whose rows follow the single records."""
KINDS: Final = (
    MEASURED
    | FOLLOWED
    | {STATE, LOSS, ACKS_1_LOSS, ACKNOWLEDGED_LOSS, UNCLEAN_RECOVERY, HW_REGRESSION, RECOVERY, CRASH, START, END, READ}
)
ACKED: Final = "acked"
UNKNOWN: Final = "unknown"
FETCHED: Final = "fetched"
DIVERGED: Final = "diverged"
OUT_OF_RANGE: Final = "out_of_range"
VERSION: Final = 3
"""Of the trace's columns and rules."""

VERSION_KEY: Final = "isray.trace.version"
"""Key of the version in the metadata of a file's schema."""

YEAR_MS: Final = 365 * 86_400_000
NONE: Final = -1
"""No partition, no node, no leader."""


class TraceRow(NamedTuple):
    """One event of a trial.

    `time_ms`: virtual time since the trial began. `kind`: one of :data:`KINDS`. `partition`, `node`: -1 where the row
    concerns none. A `state` row describes its partition from now on: `leader` (-1 = offline), `leader_serves` (False
    = a leader is recorded but does not answer), `isr_size` (0 without a leader), `elr_size`, `min_isr` (effective),
    `stalls` (writes wait for a replica that has crashed or is slow: a member of the ISR, with acks=all, or the leader),
    `expired` (writes have waited for longer than the delivery timeout, and none has been acknowledged since).
    `value`: for `loss` and `acks_1_loss`, the records lost in this event, acknowledged with acks=all or
    acks=1; for `acknowledged_loss` the same number, or 0 for an election that loses what the followers had not fetched
    (acks=1). For `failover`, the ms from the crash of the leader
    (`node`) to the first acknowledgement of a write that was sent after it; for `acknowledged`, the ms from the sending
    of a write to its acknowledgement; for `restarted`, the ms from the start of a broker's process until the controller
    has unfenced it; for `throughput`, acknowledged records per second. These are in real time where the study
    compresses time. Otherwise 0. `detail`: for `crash`, `clean`,
    `unclean`, `lossy` or `disk`; otherwise empty. `log_weight`: the natural logarithm of the likelihood ratio of the
    failures so far, 0 in plain sampling. It weights an event, and the interval that a `state` or `end` row ends.

    `epoch`: the leader epoch, for `state` and `elected`. `isr`, `elr`: the members as the controller has them, broker
    ids joined by commas, for `state`; `recovering`: whether the leader has yet to report that it recovered from an
    unclean election. `produced`: a write has ended; `detail` is `acked`, `unknown` (its leader has gone) or the error,
    `value` the ms since it was sent, `offset` that of the record (-1 if unknown). `elected`: the replica on `node` has
    become leader with the log end offset `value`; from `offset` on its log does not have the records of the leader
    before it. `checkpoint`: of the records acknowledged so far only the last one, at `offset`, is followed on.
    `recovery`: an unclean recovery was decided, `node` elected; `detail` says which replicas answered what, and why it
    was elected. `read`, where the study has a consumer: with `detail` `fetched` it has read `value` records from
    `offset` on from the leader on `node`, the last one of leader epoch `epoch`. With `diverged` (KIP-320) or
    `out_of_range` that leader's log lacks the last `value` records that the consumer has read, which goes on at
    `offset`.
    """

    time_ms: int
    kind: str
    partition: int = NONE
    node: int = NONE
    leader: int = NONE
    leader_serves: bool = False
    isr_size: int = 0
    elr_size: int = 0
    min_isr: int = 0
    value: int = 0
    detail: str = ""
    log_weight: float = 0.0
    epoch: int = NONE
    isr: str = ""
    elr: str = ""
    recovering: bool = False
    offset: int = NONE
    stalls: bool = False
    expired: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial returns: its trace in time order, and hash and number of events of the engine's full event trace.

    `custom`: the values of a script's metrics, in their order (`scripting/functions.py`).
    """

    rows: list[TraceRow]
    trace_hash: str
    events: int
    custom: tuple[float, ...] = ()


class TraceError(AssertionError):
    """A trial produced a trace that breaks the rules of this module: a defect of the trial, not of the user's input."""


def columns(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """A Parquet schema without nulls."""
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


TRACE_SCHEMA: Final = columns(
    ("cell", pa.string()),
    ("trial", pa.int32()),
    ("seq", pa.int32()),
    ("time_ms", pa.int64()),
    ("kind", pa.string()),
    ("partition", pa.int32()),
    ("node", pa.int32()),
    ("leader", pa.int32()),
    ("leader_serves", pa.bool_()),
    ("isr_size", pa.int32()),
    ("elr_size", pa.int32()),
    ("min_isr", pa.int32()),
    ("value", pa.int64()),
    ("detail", pa.string()),
    ("log_weight", pa.float64()),
    ("epoch", pa.int32()),
    ("isr", pa.string()),
    ("elr", pa.string()),
    ("recovering", pa.bool_()),
    ("offset", pa.int64()),
    ("stalls", pa.bool_()),
    ("expired", pa.bool_()),
).with_metadata({VERSION_KEY: str(VERSION)})
"""`trace/`: the rows of :class:`TraceRow` with the cell's digest, the trial and the row's number within the trial."""


def check_trace(rows: list[TraceRow], partitions: int, duration_ms: int) -> None:
    """Raises :class:`TraceError` unless `rows` keep the rules of this module."""
    if not rows or rows[-1].kind != END or rows[-1].time_ms < duration_ms:
        found = rows[-1] if rows else "no rows"
        raise TraceError(f"the last row must be `end`, at {duration_ms} ms or later; found {found}")
    seen: set[int] = set()
    before_ms = 0
    for row in rows:
        if row.kind not in KINDS or (row.kind == END and row is not rows[-1]):
            raise TraceError(f"unexpected kind in {row}")
        if row.time_ms < before_ms:
            raise TraceError(f"time goes back from {before_ms} ms to {row}")
        if row.kind in (LOSS, ACKS_1_LOSS) and row.value < 1:
            raise TraceError(f"a loss of no records: {row}")
        if row.partition != NONE and row.partition not in seen:
            if row.kind != STATE or row.time_ms != 0:
                raise TraceError(f"partition {row.partition} must begin with a `state` at 0 ms; found {row}")
            seen.add(row.partition)
        before_ms = row.time_ms
    if seen != set(range(partitions)):
        raise TraceError(f"states of partitions {sorted(seen)}; expected 0..{partitions - 1}")
