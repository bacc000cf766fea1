"""The file format of a recording: what a run leaves behind so that it can be checked later, on any machine.

A folder with these files, text in JSON lines:

    trace.jsonl      [TIME_MS, NODE, KIND, [TOPIC, PARTITION] | null, FIELDS] per trace event (`protocol/events`)
    metadata.jsonl   {TYPE: FIELDS} per record of the controller's metadata log, from its start
    history.jsonl    the operations of the clients with their outcomes (`history_file.py`)
    logs/TOPIC-PARTITION.broker-N   the final log of a replica: OFFSET LEADER_EPOCH SEND FIRST SIZE per run of records
    recording.json   what was run, and the digest of each other file; written last

The engine adds two kinds of events to those of the nodes: `life_began` when it starts a node, and `life_ended` when the
experiment kills the node or changes its disk.

**Time and order.** Each node has its own clock; no check looks at times. The lines are in the order in which the engine
received the events: in sim the order in which they happened; on ray only the order within a node is known, and between
nodes what causality gives. docs/check.md says what follows for the checks.

**Complete or not.** `recording.json` is renamed into place when all other files are on the disk. A recording without it
is incomplete, and a file with another digest is damaged; both are wrong input.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from experiments.check.history import FinalPartition, Operation, RecordRange
from experiments.check.history_file import HistoryReader, HistoryWriter
from experiments.engines.port import ClusterSpec, Engine, TraceEvent
from experiments.support.atomic import write_text
from experiments.support.build import is_compiled
from experiments.support.errors import InputError
from experiments.support.fields import AsTuple, StrictModel
from experiments.support.yaml_input import validated
from protocol.config import ClusterConfig, ConfigError, Generation
from protocol.events.registry import EventError, decode, detail_of
from protocol.ids import TopicPartition
from protocol.messages.base import Message, from_json, json_values
from protocol.messages.records import MetadataRecord

TRACE, METADATA, HISTORY, LOGS, MANIFEST = "trace.jsonl", "metadata.jsonl", "history.jsonl", "logs", "recording.json"
ALLOWED = "a complete recording, as the run wrote it"
_CHUNK = 1 << 20


class _Final(StrictModel):
    """Final logs of one partition; `replicas` are the brokers that have a file."""

    topic: str
    partition: Annotated[int, Field(ge=0)]
    leader: int
    replicas: Annotated[tuple[int, ...], AsTuple]
    start: Annotated[int, Field(ge=0)] = 0
    settled: int | None = None

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Manifest(StrictModel):
    """The content of `recording.json`. `config` are the static configs of the nodes. `nothing_may_be_lost`: the faults
    of the run can cause no loss, so that every loss is a violation, beyond tolerance too.
    """

    format: Literal["isray-recording"] = "isray-recording"
    version: Literal[1] = 1
    what: str
    engine: Literal["sim", "ray"]
    seed: int
    generation: str
    brokers: Annotated[int, Field(ge=1)]
    controllers: Annotated[int, Field(ge=1)]
    config: dict[str, str | int | float | bool]
    nothing_may_be_lost: bool = False
    finals: Annotated[tuple[_Final, ...], AsTuple]
    digests: dict[str, str]

    def spec(self) -> ClusterSpec:
        """The cluster that was run. ConfigError or ValueError where the config or the generation is not valid."""
        config = ClusterConfig.of(Generation(self.generation), self.config)
        return ClusterSpec(self.brokers, self.controllers, config, self.seed)


# -- writing -----------------------------------------------------------------------------------------------------------


def expect_new(folder: Path, option: str) -> None:
    """InputError where the folder holds anything."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(option, "", str(folder), "a folder that is empty or does not exist")


class RecordingWriter:
    """Writes a recording to a folder that is new or empty. InputError where it holds a trace."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._subscriptions = ExitStack()
        self._history = HistoryWriter(folder / HISTORY)
        try:
            self._trace = (folder / TRACE).open("x", encoding="utf-8")
        except FileExistsError as error:
            self._history.close()
            raise InputError(str(folder), "", "a trace", "a folder that is empty or does not exist") from error

    def record(self, engine: Engine) -> None:
        """Appends the trace events of the engine, whose nodes are not started yet, until the writer is closed."""
        self._subscriptions.callback(engine.record_to(self.event))

    def event(self, event: TraceEvent) -> None:
        """Appends a trace event."""
        trace = event.trace
        line = (event.time_ms, event.node, trace.kind, trace.about(), detail_of(trace))
        self._trace.write(json.dumps(line, separators=(",", ":")) + "\n")

    def operation(self, operation: Operation) -> None:
        """Appends an operation of the history."""
        self._history.write(operation)

    def flush(self) -> None:
        """Flushes the files' buffers to the operating system."""
        self._trace.flush()
        self._history.flush()

    def close(self) -> None:
        """Ends writing; without `finish` the recording is incomplete."""
        self._subscriptions.close()
        self._trace.close()
        self._history.close()

    def finish(
        self,
        what: str,
        engine: str,
        spec: ClusterSpec,
        metadata: Iterable[MetadataRecord],
        finals: Iterable[FinalPartition],
        *,
        nothing_may_be_lost: bool = False,
    ) -> None:
        """Writes the other files and, last, `recording.json`. `what` names the run; `nothing_may_be_lost` as in
        `Manifest`.
        """
        self.close()
        lines = (json.dumps({type(it).__name__: json_values(it)}) + "\n" for it in metadata)
        with (self.folder / METADATA).open("w", encoding="utf-8") as file:
            file.writelines(lines)
        known = [self._write_logs(final) for final in finals]
        names = [TRACE, METADATA, HISTORY, *(_log_file(final, broker) for final in known for broker in final.replicas)]
        manifest = Manifest(
            what=what,
            engine="ray" if engine == "ray" else "sim",
            seed=spec.seed,
            generation=spec.config.generation.value,
            brokers=spec.brokers,
            controllers=spec.controllers,
            config=dict(spec.config.values),
            nothing_may_be_lost=nothing_may_be_lost,
            finals=tuple(known),
            digests={name: _digest(self.folder / name, sync=True) for name in names},
        )
        write_text(self.folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")

    def _write_logs(self, final: FinalPartition) -> _Final:
        (self.folder / LOGS).mkdir(exist_ok=True)
        name = final.partition
        known = _Final(
            topic=name.topic,
            partition=name.partition,
            leader=final.leader,
            replicas=tuple(final.replicas),
            start=final.start,
            settled=final.settled,
        )
        for broker, runs in final.replicas.items():
            with (self.folder / _log_file(known, broker)).open("w", encoding="utf-8") as file:
                file.writelines(" ".join(map(str, run)) + "\n" for run in runs)
        return known


def _log_file(final: _Final, broker: int) -> str:
    return f"{LOGS}/{final.name}.broker-{broker}"


def _digest(path: Path, *, sync: bool = False) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
        if sync:
            os.fsync(file.fileno())
    return found.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


class LogFile:
    """The runs of records in a log's file, read again by each iteration."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[RecordRange]:
        with self._path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    offset, epoch, send, first, size = map(int, line.split())
                except ValueError as error:
                    raise _damaged(self._path, number, line) from error
                yield RecordRange(offset, epoch, send, first, size)


class Recording:
    """A complete recording. InputError where it is incomplete or a file is damaged, and in a compiled build, whose
    trace events do not know the types of their fields.
    """

    def __init__(self, folder: Path) -> None:
        if is_compiled():
            raise InputError("this build", "", "compiled", "the interpreted sources, which read recordings")
        self.folder = folder
        self.manifest = _manifest(folder)
        for name, digest in self.manifest.digests.items():
            path = folder / name
            if not path.is_file():
                raise InputError(str(path), "", "no file", ALLOWED)
            if _digest(path) != digest:
                raise InputError(str(path), "", "a damaged file", ALLOWED)
        try:
            self.spec = self.manifest.spec()
        except (ConfigError, ValueError) as error:
            raise InputError(str(folder / MANIFEST), "config", str(error), ALLOWED) from error
        self.records = tuple(_records(folder / METADATA))

    def events(self) -> Iterator[TraceEvent]:
        """The trace events in the order in which the engine received them. InputError for a line that is no event."""
        path = self.folder / TRACE
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    time_ms, node, kind, partition, detail = json.loads(line)
                    name = None if partition is None else TopicPartition(*partition)
                    trace = decode(kind, name, detail)
                except EventError as error:
                    raise InputError(str(path), f"line {number}", str(error), ALLOWED) from error
                except (ValueError, TypeError, AttributeError) as error:
                    raise _damaged(path, number, line) from error
                yield TraceEvent(time_ms, node, trace)

    def operations(self) -> Iterator[Operation]:
        """The history."""
        return iter(HistoryReader(self.folder / HISTORY))

    def finals(self) -> list[FinalPartition]:
        """The final logs, read from their files as they are iterated."""
        return [
            FinalPartition(
                final.name,
                final.leader,
                {broker: LogFile(self.folder / _log_file(final, broker)) for broker in final.replicas},
                final.start,
                final.settled,
            )
            for final in self.manifest.finals
        ]


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", getattr(error, "strerror", None) or "no text", ALLOWED) from error
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise InputError(str(path), "", "no JSON", ALLOWED) from error
    found = validated(Manifest, raw, str(path), as_json=True)
    listed = {_log_file(final, broker) for final in found.finals for broker in final.replicas}
    missing = sorted({TRACE, METADATA, HISTORY, *listed} ^ set(found.digests))
    if missing:
        raise InputError(str(path), "digests", missing[0], "one digest for each file of the recording")
    if any(final.leader not in final.replicas for final in found.finals):
        raise InputError(str(path), "finals", "a leader without a log", ALLOWED)
    return found


def _records(path: Path) -> Iterator[MetadataRecord]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                [(name, fields)] = json.loads(line).items()
                record = from_json(Message.REGISTRY[name], json.dumps(fields))
            except (ValueError, KeyError, AttributeError) as error:
                raise _damaged(path, number, line) from error
            if not isinstance(record, MetadataRecord):
                raise _damaged(path, number, line)
            yield record


def _damaged(path: Path, number: int, line: str) -> InputError:
    return InputError(str(path), f"line {number}", line.strip()[:80], ALLOWED)
