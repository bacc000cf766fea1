"""What is recorded while a trial runs on processes; all times are the cluster's time in ms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.engines.port import TraceEvent
from protocol.ids import NodeId, TimeMs, TopicPartition


class Failed(NamedTuple):
    """A broker was ended from `at_ms` on; at `gone_ms` its process took no more part (for `clean`, a controlled
    shutdown, when it was requested)."""

    at_ms: TimeMs
    gone_ms: TimeMs
    broker: NodeId
    kind: str


class Started(NamedTuple):
    """A broker's process was created at `at_ms`."""

    at_ms: TimeMs
    broker: NodeId


class Lost(NamedTuple):
    """The log of the leader that was elected at `at_ms` lacks so many acknowledged records."""

    at_ms: TimeMs
    partition: TopicPartition
    leader: NodeId
    records: int


@dataclass(slots=True)
class TrialEvents:
    """One trial. `events` are the nodes' trace events in the order of their arrival, of the kinds that `rows.py` uses;
    `sent_ms` has the time of each write by its command id. The measurement lasts from `begins_ms` to `ends_ms`.
    `throughput`: acknowledged records per second before the measurement.
    """

    events: list[TraceEvent] = field(default_factory=list)
    sent_ms: dict[int, TimeMs] = field(default_factory=dict)
    injected: list[Failed | Started] = field(default_factory=list)
    losses: list[Lost] = field(default_factory=list)
    begins_ms: TimeMs = 0
    ends_ms: TimeMs = 0
    throughput: int = 0
