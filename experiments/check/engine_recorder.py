"""The recording of a running cluster whose engine itself sees what nodes decide (`isray up --engine kafka --trace`).

It has the trace events, the metadata log, and in the end the logs of in-sync replicas. The clients are those of others,
so it has no history: whether what they were told is true cannot be judged, and what has been lost is unknown. Records
are named by digests of their batches, by which replicas that differ are found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from experiments.check.final_logs import final_logs
from experiments.check.history import RecordRange
from experiments.check.recording import Header, RecordingWriter
from experiments.engines.port import Engine, TraceEvent
from experiments.support.errors import InputError
from protocol.client.records import BY_DIGEST
from protocol.ids import TimeMs
from protocol.messages.batch import RecordBatch

MARK_EVERY_MS = 1_000
_DIGEST_BYTES = 6


def begun(folder: Path, header: Header) -> RecordingWriter:
    """The writer of a recording that can be checked from now on. InputError where the folder holds anything, or cannot
    be written.
    """
    try:
        writer = RecordingWriter(folder)
        try:
            writer.metadata(())
            writer.mark(header, 0)
        except OSError:
            writer.remove()
            raise
    except OSError as error:
        found = f"{folder}, {error.strerror}"
        raise InputError("--trace", "", found, "a folder that is empty or can be created, with room") from error
    return writer


class EngineRecording:
    """Writes the recording of the cluster `name` on an engine, none of whose nodes has been started, to a folder, new
    or empty. Times count from the creation of the engine. InputError as for `begun`.

    Files are written by `mark`, `finish` and `close` only, which raise OSError where they cannot be.
    """

    def __init__(self, folder: Path, name: str, engine: Engine) -> None:
        began_ms = time.time_ns() // 1_000_000 - engine.now_ms()
        self._header = Header.of(name, engine.name, engine.spec, began_unix_ms=began_ms, others_write=True)
        self._writer = begun(folder, self._header)
        self._engine = engine
        self._events: list[TraceEvent] = []
        self._written = 0
        self._marked_ms: TimeMs = 0
        self._end = engine.record_to(self._events.append)

    def mark(self) -> None:
        """Writes what is new, at most once in `MARK_EVERY_MS`, and marks how far the files belong together."""
        if (now_ms := self._engine.now_ms()) - self._marked_ms >= MARK_EVERY_MS:
            self._marked_ms = now_ms
            self._write()
            self._writer.mark(self._header, now_ms)

    def _write(self) -> None:
        for event in self._events:
            self._writer.event(event)
        self._events.clear()
        records = self._engine.metadata_log()
        self._writer.metadata(records[self._written :])
        self._written = len(records)

    def finish(self) -> None:
        """Completes the recording of a cluster that still runs."""
        finals = final_logs(self._engine, named_by_digest)
        self._write()
        self._writer.finish(self._header, finals)

    def close(self) -> None:
        """Nothing more comes; without `finish` the recording ends at its last mark."""
        self._end()
        with suppress(OSError):  # what cannot be written any more is behind the last mark
            self._writer.close()


def named_by_digest(batch: RecordBatch) -> Iterator[RecordRange]:
    """The records of a batch as one run, which carries the digest of the payload in the place of a send."""
    digest = int.from_bytes(blake2b(batch.payload, digest_size=_DIGEST_BYTES).digest()) + 1
    yield RecordRange(batch.base_offset, batch.leader_epoch, BY_DIGEST - digest, 0, batch.record_count)
