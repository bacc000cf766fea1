"""The log of a node, which Ray keeps with its actor: standard error, a file per process that the dashboard shows.

A line is the sentence of a trace event, as in the story of a run, with wall-clock time and level: state changes,
elections, recoveries, refusals, failures of disks. Events that only carry data on have none. Lines are written when the
events are fetched, so not while the node handles an input, and at most `BURST` at once and `PER_SECOND` in the long
run; the events beyond that are counted. A node that is killed has not logged its last events.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TextIO

from protocol.events import broker, controller, host, node, store
from protocol.events.base import Trace
from protocol.events.registry import detail_of
from protocol.ids import TimeMs

BURST, PER_SECOND = 200, 20
_ERRORS = (broker.StorageFailed, host.EventsLost)
_WARNINGS = (
    broker.DataLossRoutineBegan,
    broker.LogReset,
    broker.LogTruncated,
    controller.AlertRaised,
    controller.RecoveryCancelled,
    controller.RecoveryDecided,
    controller.SessionExpired,
    host.MessageMalformed,
    host.RecordsDropped,
    host.TracesDropped,
    node.ProduceCompleted,
    node.RequestRefused,
    store.StoreAlert,
    store.StoreSessionEnded,
)
_WITHOUT_SENTENCE = (host.MessageMalformed, host.RecordsDropped, host.TracesDropped, node.RequestRefused)
"""Events that stories leave out and an operator wants to see; a line has their fields."""


class NodeLog:
    """The log of one node, on `stream` (standard error); `now_ms` is its clock."""

    def __init__(self, name: str, now_ms: Callable[[], TimeMs], stream: TextIO | None = None) -> None:
        self._name = name
        self._now_ms = now_ms
        self._stream = stream or sys.stderr
        self._credit: float = BURST
        self._credited_ms = now_ms()
        self._left_out = 0

    def write(self, events: Iterable[tuple[TimeMs, Trace]]) -> None:
        """Logs the events that have a line, as far as the rate allows."""
        now_ms = self._now_ms()
        self._credit = min(BURST, self._credit + (now_ms - self._credited_ms) * PER_SECOND / 1000)
        self._credited_ms = now_ms
        lines = []
        for time_ms, trace in events:
            if type(trace) in _SILENT:
                continue
            text = line_of(trace) if self._credit >= 1 else "?"
            if text and self._credit < 1:
                self._left_out += 1
            elif text:
                self._credit -= 1
                lines.append(self._line(time_ms, level_of(trace), text))
        if self._left_out and self._credit >= 1:
            lines.append(self._line(now_ms, "WARNING", f"{self._left_out} events were not logged, at this rate"))
            self._left_out = 0
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()

    def note(self, level: str, text: str) -> None:
        """Logs a line about the process."""
        self._stream.write(self._line(self._now_ms(), level, text))
        self._stream.flush()

    def _line(self, time_ms: TimeMs, level: str, text: str) -> str:
        at = datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        return f"{at} UTC {level} {self._name}: {text}\n"


_SILENT = frozenset({broker.RecordsAppended, broker.RecordsFetched, broker.HighWatermarkAdvanced})
"""The events of the data path, none of which has a line."""


def line_of(trace: Trace) -> str:
    """The event in words; empty where the log leaves it out."""
    if isinstance(trace, _WITHOUT_SENTENCE):
        fields = ", ".join(f"{name} {value}" for name, value in detail_of(trace).items())
        return trace.sentence() or f"{trace.kind}: {fields}"
    return trace.sentence()


def level_of(trace: Trace) -> str:
    return "ERROR" if isinstance(trace, _ERRORS) else "WARNING" if isinstance(trace, _WARNINGS) else "INFO"
