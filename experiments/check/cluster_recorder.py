"""The recording of a cluster of one's own (`isray up --trace`): what the supervisor taps, as files of `recording.py`.

The recording grows while the cluster runs, and can be checked at any time up to its last mark. Times count from the
start of the recording. In memory is only what the client has under way. A send that the client does not answer before
it ends has an unknown outcome, and so has one that is under way at the end of the recording.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from experiments.check.client_history import ACKS_ALL, result_of
from experiments.check.engine_recorder import MARK_EVERY_MS, begun
from experiments.check.history import Ended, FinalPartition, Invoked, RecordRange, Seen
from experiments.check.recording import Header
from experiments.engines.port import ClusterSpec, TraceEvent
from experiments.engines.ray.tap import CallerCall, FinalLogs, RecordsRead, SendBegan, SendEnded
from protocol.config import ENABLE_IDEMPOTENCE
from protocol.ids import TimeMs
from protocol.messages.records import MetadataRecord


class RunningRecording:
    """A `ClusterRecorder` that writes the recording of the cluster `name` to a folder, new or empty. InputError where
    it holds anything or cannot be written.
    """

    def __init__(self, folder: Path, name: str, spec: ClusterSpec, began_unix_ms: TimeMs) -> None:
        self._header = Header.of(name, "ray", spec, began_unix_ms=began_unix_ms, others_write=True)
        self._writer = begun(folder, self._header)
        self._began_ms = began_unix_ms
        self._is_idempotent = bool(spec.config.values[ENABLE_IDEMPOTENCE])
        self._under_way: dict[int, list[range]] = {}
        self._marked_ms = began_unix_ms

    def event(self, event: TraceEvent) -> None:
        self._writer.event(replace(event, time_ms=event.time_ms - self._began_ms))

    def call(self, call: CallerCall) -> None:
        at_ms = call.time_ms - self._began_ms
        match call:
            case SendBegan(_, send, producer, partition, size, acks, digest):
                self._under_way[send] = [range(size)]
                idempotent = acks == ACKS_ALL and self._is_idempotent
                self._writer.operation(Invoked(send, producer, partition, size, idempotent, at_ms, digest))
            case SendEnded(_, send, acks, part) if send in self._under_way:
                self._under_way[send] = [*without(self._under_way[send], part.first, part.count)]
                if not self._under_way[send]:
                    del self._under_way[send]
                result = result_of(part, acks)
                self._writer.operation(Ended(send, part.first, part.count, result, part.base_offset, at_ms))
            case RecordsRead(_, reader, partition, runs, mark):
                found = tuple(RecordRange(*run) for run in runs)
                self._writer.operation(Seen(reader, partition, found, mark, at_ms))

    def forget_client(self) -> None:
        for send, left in self._under_way.items():
            for part in left:
                self._writer.operation(Ended(send, part.start, len(part), "unknown"))
        self._under_way.clear()

    def metadata(self, records: Sequence[MetadataRecord]) -> None:
        self._writer.metadata(records)

    def mark(self, now_ms: TimeMs) -> None:
        if now_ms - self._marked_ms >= MARK_EVERY_MS:
            self._marked_ms = now_ms
            self._writer.mark(self._header, now_ms - self._began_ms)

    def finish(self, finals: Iterable[FinalLogs]) -> None:
        self.forget_client()
        self._writer.finish(self._header, (_final(found) for found in finals))

    def close(self) -> None:
        with suppress(OSError):  # what cannot be written any more is behind the last mark
            self._writer.close()


def recorder_of(folder: Path, name: str, spec: ClusterSpec) -> RunningRecording:
    """The recorder of a cluster that starts now."""
    return RunningRecording(folder, name, spec, time.time_ns() // 1_000_000)


def without(ranges: Iterable[range], first: int, count: int) -> Iterator[range]:
    """The parts of these ranges that do not lie in `first .. first + count - 1`."""
    for part in ranges:
        for rest in (range(part.start, min(part.stop, first)), range(max(part.start, first + count), part.stop)):
            if rest:
                yield rest


def _final(found: FinalLogs) -> FinalPartition:
    replicas = {broker: (RecordRange(*run) for run in runs) for broker, runs in found.replicas.items()}
    return FinalPartition(found.partition, found.leader, replicas, found.start, found.settled)
