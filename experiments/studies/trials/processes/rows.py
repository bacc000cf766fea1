"""What is recorded while a trial runs on processes, and the trace that follows from it.

Nodes report their trace events when they are polled, so events of different nodes arrive out of order; their times are
of one clock (one machine, or machines that keep time by NTP). The recording is therefore sorted by time after the
trial, and replayed through the same `PartitionStates` that a simulated trial feeds as it runs. One order is forced: a
replica becomes leader after the controller has elected it. Times of a recording are the cluster's, in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from experiments.engines.port import TraceEvent
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import simulated_partitions
from experiments.studies.trace.kinds import (
    Acknowledged,
    Crash,
    End,
    Impaired,
    Observation,
    Restarted,
    Restored,
    Stamped,
    Start,
    Throughput,
)
from experiments.studies.trials.states import PartitionStates
from protocol.errors import ErrorCode
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.controller import BrokerRegistered, PartitionChanged
from protocol.events.node import ProduceCompleted
from protocol.ids import Epoch, NodeId, TimeMs, TopicPartition


class Failed(NamedTuple):
    """A broker was ended from `time_ms` on; at `gone_ms` its process was gone (`clean`: was asked to end)."""

    time_ms: TimeMs
    gone_ms: TimeMs
    broker: NodeId
    kind: str
    cause: str = ""


class Started(NamedTuple):
    """A broker's process was created."""

    time_ms: TimeMs
    broker: NodeId


class Changed(NamedTuple):
    """An impairment of a broker begins or `ends`; `impairment`: its kind, `cause`: in words."""

    time_ms: TimeMs
    broker: NodeId
    impairment: str
    cause: str
    ends: bool


class Lost(NamedTuple):
    """The log of the leader that was elected at `time_ms` lacks `records` acknowledged records."""

    time_ms: TimeMs
    partition: TopicPartition
    leader: NodeId
    records: int


@dataclass(slots=True)
class TrialEvents:
    """`events`: the nodes' trace events in the order of arrival, of the kinds in `USED`; `sent_ms`: when writes were
    sent, by command. The measurement lasts from `begins_ms` to `ends_ms`. `throughput`: records per second before
    it."""

    events: list[TraceEvent] = field(default_factory=list)
    sent_ms: dict[int, TimeMs] = field(default_factory=dict)
    injected: list[Failed | Started | Changed] = field(default_factory=list)
    losses: list[Lost] = field(default_factory=list)
    begins_ms: TimeMs = 0
    ends_ms: TimeMs = 0
    throughput: int = 0


USED = (PartitionChanged, BecameLeader, HighWatermarkAdvanced, ProduceCompleted, BrokerRegistered)
"""The kinds of trace events that a recording has."""
Item = TraceEvent | Failed | Started | Changed | Lost


def trace_rows(recording: TrialEvents, params: CellParameters) -> list[Stamped]:
    """The rows of the trial, in real ms since the measurement began."""
    return _Replay(recording, params).run()


class _Replay:
    def __init__(self, recording: TrialEvents, params: CellParameters) -> None:
        self._recording = recording
        self._states = PartitionStates(
            simulated_partitions(params), params.delivery_timeout_ms, self._add, self._call_at
        )
        self._due: list[tuple[TimeMs, int, Callable[[], None]]] = []
        self._numbers = count()
        self._rows: list[Stamped] = []
        self._now_ms = recording.begins_ms
        self._gone_ms = recording.begins_ms
        self._measuring = False
        self._starting: dict[NodeId, TimeMs] = {}

    def run(self) -> list[Stamped]:
        recording = self._recording
        for item in _in_order(recording):
            if item.time_ms >= recording.ends_ms:
                break
            self._advance(item.time_ms)
            self._handle(item)
        self._advance(recording.ends_ms)
        self._add(End())
        return self._rows

    def _call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> None:
        heappush(self._due, (at_ms, next(self._numbers), action))

    def _advance(self, until_ms: TimeMs) -> None:
        """Carries out the actions that are due by then, and sets the time."""
        while self._due and self._due[0][0] <= until_ms:
            at_ms, _, action = heappop(self._due)
            self._set_time(at_ms)
            action()
        self._set_time(until_ms)

    def _set_time(self, at_ms: TimeMs) -> None:
        """Begins the measurement, too, once all that came before it has been handled."""
        if not self._measuring and at_ms >= self._recording.begins_ms:
            self._measuring = True
            self._states.add_all()
            self._add(Throughput(self._recording.throughput))
        self._now_ms = max(self._now_ms, at_ms)

    def _add(self, what: Observation) -> None:
        if self._measuring:
            self._rows.append(Stamped(self._now_ms - self._recording.begins_ms, what))

    def _handle(self, item: Item) -> None:
        if isinstance(item, Failed):
            self._add(Crash(item.broker, item.kind, item.cause))
            if item.kind != "clean":
                self._gone_ms = max(self._gone_ms, item.gone_ms)
                self._states.handle_crash(item.time_ms, item.broker)
        elif isinstance(item, Started):
            self._starting[item.broker] = item.time_ms
            self._add(Start(item.broker))
        elif isinstance(item, Changed):
            self._handle_impairment(item)
        elif isinstance(item, Lost):
            self._states.handle_loss(item.leader, item.partition, item.records)
        else:
            self._handle_event(item)

    def _handle_impairment(self, item: Changed) -> None:
        self._add((Restored if item.ends else Impaired)(item.broker, item.impairment, item.cause))
        self._states.handle_impairment(item.time_ms, item.broker, item.impairment, item.ends)

    def _handle_event(self, event: TraceEvent) -> None:
        trace, states = event.trace, self._states
        if isinstance(trace, PartitionChanged):
            states.handle_change(event.time_ms, trace)
        elif isinstance(trace, BecameLeader):
            states.handle_regression(event.node, trace)
            states.handle_leader(event.node, trace)
        elif isinstance(trace, HighWatermarkAdvanced):
            states.handle_high_watermark(trace)
        elif isinstance(trace, BrokerRegistered):
            if not trace.fenced and trace.broker in self._starting:
                self._add(Restarted(trace.broker, event.time_ms - self._starting.pop(trace.broker)))
        elif isinstance(trace, ProduceCompleted) and trace.is_acknowledged:
            self._handle_acknowledgement(event.time_ms, trace)
        elif isinstance(trace, ProduceCompleted) and trace.error == ErrorCode.NOT_ENOUGH_REPLICAS.name:
            states.handle_refusal(trace.partition, self._recording.sent_ms.get(trace.command_id, 0))

    def _handle_acknowledgement(self, at_ms: TimeMs, trace: ProduceCompleted) -> None:
        """An acknowledgement that arrives while a broker is being killed may be the last of that broker."""
        sent_ms = self._recording.sent_ms.get(trace.command_id)
        if sent_ms is None:
            return
        self._add(Acknowledged(trace.partition.partition, max(0, at_ms - sent_ms)))
        if at_ms > self._gone_ms:
            self._states.handle_acknowledgement(at_ms, trace.partition, sent_ms=at_ms)


def _in_order(recording: TrialEvents) -> list[Item]:
    """All that was recorded, by time; what has equal times in the order of causes."""

    def rank(item: Item) -> int:
        if not isinstance(item, TraceEvent):
            return 1
        return 0 if isinstance(item.trace, PartitionChanged) else 2

    items = (*recording.injected, *recording.losses, *_events(recording.events))
    return sorted(items, key=lambda item: (item.time_ms, rank(item)))


def _events(events: list[TraceEvent]) -> Iterator[TraceEvent]:
    """The events, those of new leaders not before their elections."""
    elected_ms: dict[tuple[TopicPartition, Epoch], TimeMs] = {}
    for event in events:
        if isinstance(event.trace, PartitionChanged):
            key = (event.trace.partition, event.trace.leader_epoch)
            elected_ms[key] = min(event.time_ms, elected_ms.get(key, event.time_ms))
    for event in events:
        if isinstance(event.trace, BecameLeader):
            known_ms = elected_ms.get((event.trace.partition, event.trace.leader_epoch), event.time_ms)
            yield replace(event, time_ms=max(event.time_ms, known_ms))
        else:
            yield event
