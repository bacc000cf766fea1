"""Conformance: replays recorded decisions of Apache Kafka's controller code and compares the protocol core's.

A vector is a JSON line of one of two kinds. A controller trace has `steps` (`traces.py`). A partition change has the
state of a partition, a request, and the recorded answer: `protocol.controller.partition_change` answers the request,
and every field of the record, of the state after it, and the error are compared. Order within ELR and last known ELR
carries no meaning and is not compared; order within replicas and ISR is.

The two switches of a partition change choose the generation: without `elr_enabled` it is `kip-497`, with
`use_last_known_leader` `kip-966-elr`, else `kip-966`. Rows have no separate field for the last known leader, so it is
not tracked here.

A row that is not answered as recorded is a mismatch, unless declared departures explain it (`departures.py`).

A file that is not made of such rows, all of them, is wrong input and not a mismatch: every field is validated
strictly and nothing is skipped. A gzip file is recognised by its first two bytes, whatever its name.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from experiments.conformance import traces as conformance_traces
from experiments.conformance.departures import Departure, explanation
from experiments.conformance.shapes import (
    Brokers,
    BrokersOrNone,
    Difference,
    PartitionShape,
    RecoveryName,
    Replicas,
    compare,
    state_fields,
)
from experiments.conformance.traces import ControllerTraceRow
from experiments.support.errors import InputError
from experiments.support.fields import StrictModel
from experiments.support.yaml_input import validated_json
from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change

_STEPS = re.compile(rb'"steps"\s*:')


class RecordShape(StrictModel):
    """The recorded change: `None` is unchanged, as are leader -2 and leader recovery state -1."""

    isr: Brokers | None
    leader: Annotated[int, Field(ge=-2)]
    replicas: Replicas | None
    removing_replicas: Brokers | None
    adding_replicas: Brokers | None
    leader_recovery_state: Annotated[int, Field(ge=-1, le=1)]
    elr: Brokers | None
    last_known_elr: BrokersOrNone | None


class PartitionChangeRow(StrictModel):
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
class Mismatch:
    """A row (counted from 1) and all its differences."""

    row: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class DepartedRow(Mismatch):
    """A row whose differences follow from `departures`."""

    departures: tuple[Departure, ...]


@dataclass(frozen=True, slots=True)
class FileResult:
    """The number of `passed` rows of a file, then mismatches and departures in the order of the file."""

    file: str
    kind: str
    passed: int
    mismatches: tuple[Mismatch, ...]
    departed: tuple[DepartedRow, ...]

    @property
    def failed(self) -> int:
        return len(self.mismatches)


def replay_file(path: Path) -> FileResult:
    """Replays all rows of a file. InputError (file, row, field) if it cannot be read or is not made of rows."""
    rows = [_parse(path, number, line) for number, line in enumerate(_lines(path), start=1)]
    kind = "controller trace" if isinstance(rows[0], ControllerTraceRow) else "partition change"
    mismatches: list[Mismatch] = []
    departed: list[DepartedRow] = []
    for number, row in enumerate(rows, start=1):
        unlike = _row_differences(row)
        if not unlike:
            continue
        departures = explanation(partial(_row_differences, row))
        if departures:
            departed.append(DepartedRow(number, unlike, departures))
        else:
            mismatches.append(Mismatch(number, unlike))
    passed = len(rows) - len(mismatches) - len(departed)
    return FileResult(str(path), kind, passed, tuple(mismatches), tuple(departed))


def _row_differences(
    row: PartitionChangeRow | ControllerTraceRow, kafka_rules: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    if isinstance(row, ControllerTraceRow):
        return conformance_traces.differences(row, kafka_rules)
    return differences(row, kafka_rules)


def differences(row: PartitionChangeRow, kafka_rules: frozenset[str] = frozenset()) -> tuple[Difference, ...]:
    """The fields in which the core's answer, under these of Kafka's rules, differs from the recorded one."""
    recovery = LeaderRecoveryState[row.partition.leader_recovery_state]
    before = PartitionState(**row.partition.model_dump() | {"leader_recovery_state": recovery})
    record = decide("vector", 0, before, _request(row, kafka_rules))
    after = before if record is None else replay_change(before, record)
    unlike = [
        *compare("record", row.record, _record_fields(record)),
        *compare("after", row.after, state_fields(after)),
    ]
    if row.error is not None:
        unlike.append(Difference("error", row.error, None))
    return tuple(unlike)


def _lines(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except OSError as error:
        allowed = "a readable file of JSON lines, gzip or not"
        raise InputError(str(path), "", error.strerror or error, allowed) from error
    except (EOFError, zlib.error) as error:
        raise InputError(str(path), "", f"damaged gzip data ({error})", "a whole gzip file") from error
    if not content.strip():
        raise InputError(str(path), "", "no rows", "one JSON object per line")
    return content.removesuffix(b"\n").split(b"\n")


def _parse(path: Path, number: int, line: bytes) -> PartitionChangeRow | ControllerTraceRow:
    """A row of either kind; any other row is validated as a partition change."""
    try:
        if _STEPS.search(line):
            return validated_json(ControllerTraceRow, line, str(path))
        return validated_json(PartitionChangeRow, line, str(path))
    except InputError as error:
        field = f"row {number}: {error.field}" if error.field else f"row {number}"
        raise InputError(str(path), field, error.found, error.allowed) from error


def _request(row: PartitionChangeRow, kafka_rules: frozenset[str]) -> ChangeRequest:
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
        kafka_rules=kafka_rules,
    )


def _record_fields(record: PartitionChangeRecord | None) -> dict[str, object] | None:
    if record is None:
        return None
    named_alike = {name: getattr(record, name) for name in RecordShape.model_fields if name != "elr"}
    return named_alike | {"elr": record.eligible_leader_replicas}
