"""The file format of a recording: what a run leaves behind so that it can be checked later, on any machine.

A folder with these files, text in JSON lines:

    trace.jsonl      [TIME_MS, NODE, KIND, [TOPIC, PARTITION] | null, FIELDS] per trace event (`protocol/events`)
    metadata.jsonl   {TYPE: FIELDS} per record of the controller's metadata log, from its start
    history.jsonl    {KIND: FIELDS} per operation of the clients (`experiments.check.history`), fields in order:
                     {"invoked": [SEND, PRODUCER, [TOPIC, PARTITION], SIZE, IDEMPOTENT, TIME_MS, DIGEST]}
                     {"ended": [SEND, FIRST, SIZE, "acknowledged" | "appended" | "failed" | "unknown", OFFSET,
                                TIME_MS]}
                     {"seen": [READER, [TOPIC, PARTITION], [[OFFSET, LEADER_EPOCH, SEND, FIRST, SIZE], ...],
                               HIGH_WATERMARK, TIME_MS]}
    logs/TOPIC-PARTITION.broker-N   the final log of a replica: OFFSET LEADER_EPOCH SEND FIRST SIZE per run of records
    recording.json   what was run, and the digest of each other file; written last
    recording-open.json    instead of it, while the run goes on or where it ended too early: what was run, and how far
                           the files belong together

TIME_MS is -1 where it is not known, and DIGEST 0 where records carry their names (`names.py`); an operation may end
before them. All times count from `began_unix_ms` of the manifest, where it has one.

To the events of the nodes the engine adds `life_began` when it starts a node, and `life_ended` when the experiment
kills the node or changes its disk. The lines are in the order in which the engine received the events; docs/check.md
says what times and order mean for the checks. `recording.json` is renamed into place when all other files are on the
disk: a recording with neither manifest is incomplete, a file with another digest is damaged, and both are wrong input.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar, get_args

from pydantic import Field, TypeAdapter

from experiments.check.history import FinalPartition, Operation, RecordRange
from experiments.engines.port import ClusterSpec, Engine, EngineName, TraceEvent
from experiments.support.atomic import write_text
from experiments.support.build import is_compiled
from experiments.support.errors import InputError
from experiments.support.fields import AsTuple, ReleaseName, StrictModel
from experiments.support.yaml_input import validated
from protocol.config import ClusterConfig, ConfigError
from protocol.events.registry import EventError, decode, detail_of
from protocol.features import Generation
from protocol.ids import TimeMs, TopicPartition
from protocol.kafka_release import NEWEST, KafkaRelease
from protocol.messages.base import Message, from_json, json_values
from protocol.messages.records import MetadataRecord

TRACE, METADATA, HISTORY, LOGS, MANIFEST = "trace.jsonl", "metadata.jsonl", "history.jsonl", "logs", "recording.json"
OPEN_MANIFEST = "recording-open.json"
_STREAMS = (TRACE, METADATA, HISTORY)
"""The files that grow while a run goes on."""
ALLOWED = "a complete recording, as the run wrote it"
Item = TypeVar("Item")


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

    def log_file(self, broker: int) -> str:
        return f"{LOGS}/{self.name}.broker-{broker}"


class Header(StrictModel):
    """What was run. `config` are the static configs of the nodes. `nothing_may_be_lost`: the faults of the run can
    cause no loss, so that every loss is a violation, beyond tolerance too. `began_unix_ms` is the Unix time from which
    all times count, None where they are virtual. `others_write`: the history is that of the users of a cluster, not of
    all who write to it.
    """

    format: Literal["isray-recording"] = "isray-recording"
    version: Literal[1] = 1
    what: str
    engine: EngineName
    seed: int
    generation: str
    kafka_release: ReleaseName = NEWEST.value
    brokers: Annotated[int, Field(ge=1)]
    controllers: Annotated[int, Field(ge=1)]
    config: dict[str, str | int | float | bool]
    nothing_may_be_lost: bool = False
    began_unix_ms: int | None = None
    others_write: bool = False

    @classmethod
    def of(
        cls,
        what: str,
        engine: EngineName,
        spec: ClusterSpec,
        *,
        nothing_may_be_lost: bool = False,
        began_unix_ms: TimeMs | None = None,
        others_write: bool = False,
    ) -> Header:
        """The header of a run of a cluster."""
        return Header(
            what=what,
            engine=engine,
            seed=spec.seed,
            generation=spec.config.generation.value,
            kafka_release=spec.config.kafka_release.value,
            brokers=spec.brokers,
            controllers=max(1, spec.controllers),
            config=dict(spec.config.values),
            nothing_may_be_lost=nothing_may_be_lost,
            began_unix_ms=began_unix_ms,
            others_write=others_write,
        )

    def spec(self) -> ClusterSpec:
        """The cluster that was run. ConfigError or ValueError where the config or the generation is not valid."""
        config = ClusterConfig.of(
            Generation(self.generation), self.config, kafka_release=KafkaRelease(self.kafka_release)
        )
        return ClusterSpec(self.brokers, self.controllers, config, self.seed)


class Manifest(Header):
    """The content of `recording.json`."""

    finals: Annotated[tuple[_Final, ...], AsTuple]
    digests: dict[str, str]


class OpenManifest(Header):
    """The content of `recording-open.json`, beside a recording that is not complete: as of `until_ms` the first `sizes`
    bytes of the files belong together.
    """

    until_ms: int
    sizes: dict[str, int]


# -- the history -----------------------------------------------------------------------------------------------------

_OPERATIONS: dict[str, TypeAdapter[Operation]] = {it.__name__.lower(): TypeAdapter(it) for it in get_args(Operation)}


class HistoryWriter:
    """Locks the file and appends to it. InputError where another writer has it, or it holds something."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise InputError(str(path), "", "another writer", "one writer at a time") from error
        if self._file.tell():
            self._file.close()
            raise InputError(str(path), "", "a history", "no file, or an empty one")

    def write(self, operation: Operation) -> None:
        line = json.dumps({type(operation).__name__.lower(): operation}, separators=(",", ":"))
        self._file.write(f"{line}\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class HistoryReader:
    """The operations in the first `size` bytes of a file (None: all), in order. After they were read `is_torn` shows
    whether the last line was torn.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self._path = path
        self._size = size
        self.is_torn = False

    def __iter__(self) -> Iterator[Operation]:
        """InputError, with the line number, for a line that is no operation."""
        with self._path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(_until(file, self._size), 1):
                if not line.endswith("\n"):
                    self.is_torn = True
                    return
                try:
                    [(name, fields)] = json.loads(line).items()
                    operation = _OPERATIONS[name].validate_python(fields)
                except (ValueError, KeyError, AttributeError) as error:
                    raise InputError(str(self._path), f"line {number}", line.strip()[:80], "an operation") from error
                yield operation


def _until(lines: Iterable[str], size: int | None) -> Iterator[str]:
    """The lines that end within the first `size` bytes, all where it is None."""
    left = size
    for line in lines:
        if left is not None:
            left -= len(line.encode())
            if left < 0:
                return
        yield line


# -- writing -----------------------------------------------------------------------------------------------------------


def expect_new(folder: Path, option: str) -> None:
    """InputError where the folder holds anything, or cannot be made or written to."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(option, "", str(folder), "a folder that is empty or does not exist")
    expect_writable(folder, option)


def expect_writable(folder: Path, option: str) -> None:
    """InputError where the folder cannot be made or written to."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(option, "", f"{folder}, and {there} cannot be written to", "a folder that you may write to")


class RecordingWriter:
    """Writes a recording to a folder that is new or empty. InputError where it holds a trace."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._history = HistoryWriter(folder / HISTORY)
        try:
            self._trace = (folder / TRACE).open("x", encoding="utf-8")
        except FileExistsError as error:
            self._history.close()
            raise InputError(str(folder), "", "a trace", "a folder that is empty or does not exist") from error
        self._resources = ExitStack()
        self._resources.callback(self._history.close)
        self._resources.callback(self._trace.close)

    def record(self, engine: Engine) -> None:
        """Appends the trace events of the engine, whose nodes are not started yet, until the writer is closed."""
        self._resources.callback(engine.record_to(self.event))

    def event(self, event: TraceEvent) -> None:
        trace = event.trace
        line = (event.time_ms, event.node, trace.kind, trace.about(), detail_of(trace))
        self._trace.write(json.dumps(line, separators=(",", ":")) + "\n")

    def operation(self, operation: Operation) -> None:
        self._history.write(operation)

    def flush(self) -> None:
        self._trace.flush()
        self._history.flush()

    def close(self) -> None:
        """Ends writing; without `finish` the recording is incomplete."""
        self._resources.close()

    def remove(self) -> None:
        """Ends writing, and removes the files of the recording, not its folder."""
        self.close()
        for name in _STREAMS:
            (self.folder / name).unlink(missing_ok=True)

    def metadata(self, records: Iterable[MetadataRecord]) -> None:
        """Appends records of the metadata log, in their order."""
        with (self.folder / METADATA).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({type(it).__name__: json_values(it)}) + "\n" for it in records)

    def mark(self, header: Header, until_ms: TimeMs) -> None:
        """Declares that what was written so far belongs together, as of `until_ms`."""
        self.flush()
        sizes = {name: path.stat().st_size for name in _STREAMS if (path := self.folder / name).exists()}
        found = OpenManifest(**dict(header), until_ms=until_ms, sizes=sizes)
        write_text(self.folder / OPEN_MANIFEST, found.model_dump_json(indent=1) + "\n")

    def finish(self, header: Header, finals: Iterable[FinalPartition]) -> None:
        """Writes the final logs and, last, `recording.json`. Nothing more can be written."""
        self.metadata(())
        known = [self._write_logs(final) for final in finals]
        self.close()
        names = [*_STREAMS, *(final.log_file(broker) for final in known for broker in final.replicas)]
        digests = {name: _digest(self.folder / name, sync=True) for name in names}
        manifest = Manifest(**dict(header), finals=tuple(known), digests=digests)
        write_text(self.folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
        (self.folder / OPEN_MANIFEST).unlink(missing_ok=True)

    def _write_logs(self, final: FinalPartition) -> _Final:
        (self.folder / LOGS).mkdir(exist_ok=True)
        logs = {"replicas": tuple(final.replicas), "start": final.start, "settled": final.settled}
        known = _Final.model_validate({**final.partition._asdict(), "leader": final.leader, **logs})
        for broker, runs in final.replicas.items():
            with (self.folder / known.log_file(broker)).open("w", encoding="utf-8") as file:
                file.writelines(" ".join(map(str, run)) + "\n" for run in runs)
        return known


def _digest(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        if sync:
            os.fsync(file.fileno())
    return found.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lines(Generic[Item]):
    """The items in the lines of the first `size` bytes of a file (None: all), read again by each iteration. InputError
    for a line that has none.
    """

    path: Path
    parse: Callable[[str], Item]
    size: int | None = None

    def __iter__(self) -> Iterator[Item]:
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(_until(file, self.size), 1):
                try:
                    item = self.parse(line)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    found = str(error) if isinstance(error, EventError) else line.strip()[:80]
                    raise InputError(str(self.path), f"line {number}", found, ALLOWED) from error
                yield item


def _run(line: str) -> RecordRange:
    offset, epoch, send, first, size = map(int, line.split())
    return RecordRange(offset, epoch, send, first, size)


def _event(line: str) -> TraceEvent:
    time_ms, node, kind, partition, detail = json.loads(line)
    name = None if partition is None else TopicPartition(*partition)
    return TraceEvent(time_ms, node, decode(kind, name, detail))


def _record(line: str) -> MetadataRecord:
    [(name, fields)] = json.loads(line).items()
    record = from_json(Message.REGISTRY[name], json.dumps(fields))
    if not isinstance(record, MetadataRecord):
        raise ValueError(f"{name} is no record of the metadata log")
    return record


class Recording:
    """A recording: a complete one, or, where `is_complete` is False, the last consistent prefix of one that is still
    being written or was not completed. InputError where there is neither or a file is damaged, and in a compiled build,
    whose trace events do not know the types of their fields.
    """

    def __init__(self, folder: Path) -> None:
        if is_compiled():
            raise InputError("this build", "", "compiled", "the interpreted sources, which read recordings")
        self.folder = folder
        self.is_complete = (folder / MANIFEST).exists() or not (folder / OPEN_MANIFEST).exists()
        self._open = None if self.is_complete else _read_manifest(OpenManifest, folder / OPEN_MANIFEST)
        self._whole = None if self._open is not None else _manifest(folder)
        for name, digest in ({} if self._whole is None else self._whole.digests).items():
            path = folder / name
            if not path.is_file():
                raise InputError(str(path), "", "no file", ALLOWED)
            if _digest(path) != digest:
                raise InputError(str(path), "", "a damaged file", ALLOWED)
        for name, size in ({} if self._open is None else self._open.sizes).items():
            if not (folder / name).is_file() or (folder / name).stat().st_size < size:
                raise InputError(str(folder / name), "", f"fewer than {size} bytes", "the file as the run wrote it")
        try:
            self.spec = self.manifest.spec()
        except (ConfigError, ValueError) as error:
            raise InputError(str(folder / MANIFEST), "config", str(error), ALLOWED) from error
        self.records = tuple(_Lines(folder / METADATA, _record, self._size(METADATA)))

    @property
    def manifest(self) -> Header:
        found = self._open or self._whole
        assert found is not None
        return found

    @property
    def until_ms(self) -> TimeMs | None:
        """The time of the last mark of a recording that is not complete."""
        return None if self._open is None else self._open.until_ms

    @property
    def is_being_written(self) -> bool:
        """Whether another process has the recording open to write."""
        with (self.folder / HISTORY).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _size(self, name: str) -> int | None:
        return None if self._open is None else self._open.sizes.get(name, 0)

    def events(self) -> Iterator[TraceEvent]:
        """The trace events in the order in which the engine received them. InputError for a line that is no event."""
        return iter(_Lines(self.folder / TRACE, _event, self._size(TRACE)))

    def operations(self) -> Iterator[Operation]:
        return iter(HistoryReader(self.folder / HISTORY, self._size(HISTORY)))

    def finals(self) -> list[FinalPartition]:
        """The final logs, read from their files as they are iterated; none of a recording that is not complete."""
        finals = []
        for final in () if self._whole is None else self._whole.finals:
            logs = {broker: _Lines(self.folder / final.log_file(broker), _run) for broker in final.replicas}
            finals.append(FinalPartition(final.name, final.leader, logs, final.start, final.settled))
        return finals


Found = TypeVar("Found", bound=Header)


def _read_manifest(kind: type[Found], path: Path) -> Found:
    """InputError where the file cannot be read, or has other content."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", getattr(error, "strerror", None) or "no text", ALLOWED) from error
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise InputError(str(path), "", "no JSON", ALLOWED) from error
    return validated(kind, raw, str(path), as_json=True)


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    found = _read_manifest(Manifest, path)
    listed = {final.log_file(broker) for final in found.finals for broker in final.replicas}
    missing = sorted({TRACE, METADATA, HISTORY, *listed} ^ set(found.digests))
    if missing:
        raise InputError(str(path), "digests", missing[0], "one digest for each file of the recording")
    if any(final.leader not in final.replicas for final in found.finals):
        raise InputError(str(path), "finals", "a leader without a log", ALLOWED)
    return found
