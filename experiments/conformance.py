"""Conformance: does the protocol core decide as Apache Kafka's own controller code did?

A vector is a JSON line: the state of a partition, a request, and the recorded answer. `replay_file` gives each state
and request to `protocol.controller.partition_change` and compares every field of the record, of the state after it,
and the error, with the answer. Order within ELR and last known ELR carries no meaning and is not compared; order
within replicas and ISR is.

The two switches of a row choose the generation: without `elr_enabled` it is `kip-497`, with `use_last_known_leader`
`kip-966-elr`, else `kip-966`. Rows know no last known leader in a field of its own, so that it is not tracked here.

A file that is not made of such rows, all of them, is wrong input and not a mismatch: every field is validated
strictly and nothing is skipped. A gzip file is told by its first two bytes, whatever its name.
"""

from __future__ import annotations

import gzip
import reprlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.errors import InputError
from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change

PARTITION_CHANGE = "partition change"
GZIP_MAGIC = b"\x1f\x8b"
READABLE = "a readable file of JSON lines, gzip or not"
ONLY_ROWS = "partition change rows; controller traces are not supported by this version"
UNORDERED = frozenset({"elr", "last_known_elr"})

Broker = Annotated[int, Field(ge=0)]
Brokers = tuple[Broker, ...]
BrokersOrNone = tuple[Annotated[int, Field(ge=-1)], ...]
"""Kafka's first phase may record "no leader" (-1) as the last known leader."""
Replicas = Annotated[Brokers, Field(min_length=1)]
RecoveryName = Literal["RECOVERED", "RECOVERING"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PartitionShape(_Strict):
    """The state of a partition in a vector."""

    replicas: Replicas
    isr: Brokers
    elr: Brokers
    last_known_elr: BrokersOrNone
    adding_replicas: Brokers
    removing_replicas: Brokers
    leader: Annotated[int, Field(ge=-1)]
    leader_recovery_state: RecoveryName
    leader_epoch: Annotated[int, Field(ge=0)]
    partition_epoch: Annotated[int, Field(ge=0)]


class RecordShape(_Strict):
    """The recorded change: `None` is unchanged, as are leader -2 and leader recovery state -1."""

    isr: Brokers | None
    leader: Annotated[int, Field(ge=-2)]
    replicas: Replicas | None
    removing_replicas: Brokers | None
    adding_replicas: Brokers | None
    leader_recovery_state: Annotated[int, Field(ge=-1, le=1)]
    elr: Brokers | None
    last_known_elr: BrokersOrNone | None


class PartitionChangeRow(_Strict):
    """One line of a partition change file: state and request, then the answer (`record`, `after`, `error`)."""

    partition: PartitionShape
    min_isr: Annotated[int, Field(ge=1)]
    acceptable_leaders: Brokers
    election: Election
    elr_enabled: bool
    use_last_known_leader: bool
    target_isr: Brokers | None
    target_replicas: Replicas | None
    target_adding: Brokers | None
    target_removing: Brokers | None
    unclean_shutdown_replicas: Brokers | None
    target_leader_recovery_state: RecoveryName | None
    record: RecordShape | None
    after: PartitionShape | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One field (dotted path) in which the answer is not the recorded one."""

    field: str
    expected: Any
    found: Any


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A row (counted from 1) and all its differences."""

    row: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one file: `passed` rows and the mismatches, in the order of the file."""

    file: str
    kind: str
    passed: int
    mismatches: tuple[Mismatch, ...]

    @property
    def failed(self) -> int:
        return len(self.mismatches)


def replay_file(path: Path) -> FileResult:
    """Replays all rows of a file. Raises InputError (file, row, field) if it cannot be read or is not made of rows."""
    rows = [_parse(path, number, line) for number, line in enumerate(_lines(path), start=1)]
    found = ((number, differences(row)) for number, row in enumerate(rows, start=1))
    mismatches = tuple(Mismatch(number, unlike) for number, unlike in found if unlike)
    return FileResult(str(path), PARTITION_CHANGE, len(rows) - len(mismatches), mismatches)


def differences(row: PartitionChangeRow) -> tuple[Difference, ...]:
    """The fields of record, state after and error in which the core's answer differs from the recorded one."""
    before = _state(row.partition)
    record = decide("vector", 0, before, _request(row))
    after = before if record is None else replay_change(before, record)
    unlike = [
        *_compare("record", _fields(row.record), None if record is None else _record_fields(record)),
        *_compare("after", _fields(row.after), _state_fields(after)),
    ]
    if row.error is not None:
        unlike.append(Difference("error", row.error, None))
    return tuple(unlike)


def _lines(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes()
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
    except OSError as error:
        raise InputError(str(path), "", error.strerror or error, READABLE) from error
    except (EOFError, zlib.error) as error:
        raise InputError(str(path), "", f"damaged gzip data ({error})", "a whole gzip file") from error
    if not content.strip():
        raise InputError(str(path), "", "no rows", "one JSON object per line")
    return content.removesuffix(b"\n").split(b"\n")


def _parse(path: Path, number: int, line: bytes) -> PartitionChangeRow:
    try:
        return PartitionChangeRow.model_validate_json(line)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    if any(problem["loc"] == ("steps",) for problem in problems):
        raise InputError(str(path), f"row {number}: steps", "a controller trace", ONLY_ROWS)
    problem = problems[0]
    found = "nothing" if problem["type"] == "missing" else reprlib.repr(problem["input"])
    field = ".".join(str(part) for part in problem["loc"])
    raise InputError(str(path), f"row {number}: {field}" if field else f"row {number}", found, problem["msg"])


def _state(shape: PartitionShape) -> PartitionState:
    fields = shape.model_dump()
    return PartitionState(**fields | {"leader_recovery_state": LeaderRecoveryState[shape.leader_recovery_state]})


def _request(row: PartitionChangeRow) -> ChangeRequest:
    recovery = row.target_leader_recovery_state
    return ChangeRequest(
        min_isr=row.min_isr,
        is_acceptable_leader=frozenset(row.acceptable_leaders).__contains__,
        elr_enabled=row.elr_enabled,
        use_last_known_leader=row.use_last_known_leader,
        election=row.election,
        target_isr=row.target_isr,
        target_replicas=row.target_replicas,
        target_adding=row.target_adding,
        target_removing=row.target_removing,
        target_leader_recovery_state=None if recovery is None else LeaderRecoveryState[recovery],
        unclean_shutdown_replicas=row.unclean_shutdown_replicas,
    )


def _fields(shape: _Strict | None) -> dict[str, Any] | None:
    return None if shape is None else shape.model_dump()


def _record_fields(record: PartitionChangeRecord) -> dict[str, Any]:
    named_alike = {name: getattr(record, name) for name in RecordShape.model_fields if name != "elr"}
    return named_alike | {"elr": record.eligible_leader_replicas}


def _state_fields(state: PartitionState) -> dict[str, Any]:
    fields = {name: getattr(state, name) for name in PartitionShape.model_fields}
    return fields | {"leader_recovery_state": state.leader_recovery_state.name}


def _compare(what: str, expected: dict[str, Any] | None, found: dict[str, Any] | None) -> list[Difference]:
    if expected is None or found is None:
        return [] if expected is found else [Difference(what, expected, found)]
    return [
        Difference(f"{what}.{name}", value, found[name])
        for name, value in expected.items()
        if _comparable(name, value) != _comparable(name, found[name])
    ]


def _comparable(name: str, value: Any) -> Any:
    return sorted(value) if name in UNORDERED and value is not None else value
