"""Conformance: replays recorded decisions of Apache Kafka's controller code and compares the protocol core's.

A vector is a JSON line of one of four kinds. A controller trace has `steps`, of one partition (`traces.py`) or of
several topics (`cluster_traces.py`, where a step has `partitions`). A quorum trace has `quorum`, one replica of the
metadata log (`quorum.py`). A partition change has the state of a partition, a request, and the recorded answer:
`protocol.controller.partition_change` answers the request, and every field of the record, of the state after it, and
the error are compared. Order within ELR and last known ELR carries no meaning and is not compared; order within
replicas and ISR is.

The two switches of a partition change choose the generation: without `elr_enabled` it is `kip-497`, with
`use_last_known_leader` `kip-966-elr`, else `kip-966`. Rows have no separate field for the last known leader, so it is
not tracked here.

A file may begin with a line `{"kafka_release": "4.4.0"}`, the release of Kafka whose code gave the answers; the rows
are replayed under the rules of that release (`protocol/kafka_release.py`). A file that does not say its release is
replayed under the newest rules that give the fewest mismatches.

A row that is not answered as recorded is a mismatch, unless declared departures explain it (`departures.py`).

A file that is not made of such rows, all of them, is wrong input and not a mismatch: every field is validated
strictly and nothing is skipped. A gzip file is recognised by its first two bytes, whatever its name.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from experiments.conformance import cluster_traces, quorum
from experiments.conformance import traces as conformance_traces
from experiments.conformance.cluster_traces import ClusterTraceRow
from experiments.conformance.departures import Departure, explanation, quorum_explanation
from experiments.conformance.quorum_rows import QuorumRow
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
from experiments.support.fields import RELEASE, StrictModel
from experiments.support.yaml_input import validated_json
from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.errors import UndecidableError
from protocol.kafka_release import KafkaRelease, kafka_release
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change

_QUORUM = re.compile(rb'\s*\{\s*"quorum"')
_STEPS = re.compile(rb'"steps"\s*:')
_ONE_PARTITION = re.compile(rb'"effective_min_insync_replicas"\s*:')
_RELEASE = re.compile(rb'\s*\{\s*"kafka_release"')


def _release(text: object) -> KafkaRelease:
    try:
        return kafka_release(str(text))
    except ValueError as error:
        raise ValueError(f"allowed: {RELEASE.form}") from error


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


class ReleaseLine(StrictModel):
    """The first line of a file that says its release."""

    kafka_release: Annotated[KafkaRelease, BeforeValidator(_release)]


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


Row = PartitionChangeRow | ControllerTraceRow | ClusterTraceRow | QuorumRow
_KINDS = {
    PartitionChangeRow: "partition change",
    ControllerTraceRow: "controller trace",
    ClusterTraceRow: "cluster trace",
    QuorumRow: "quorum trace",
}


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
    """The number of `passed` rows of a file, then mismatches and departures in the order of the file. `release` is the
    release whose rules were in force; not `is_stated`: it was found by the rows."""

    file: str
    kind: str
    release: KafkaRelease
    is_stated: bool
    passed: int
    mismatches: tuple[Mismatch, ...]
    departed: tuple[DepartedRow, ...]

    @property
    def failed(self) -> int:
        return len(self.mismatches)


def replay_file(path: Path, release: KafkaRelease | None = None) -> FileResult:
    """Replays all rows of a file; `release` is that of a file that does not say its own. InputError (file, row, field)
    if the file cannot be read, is not made of rows, or says another release."""
    lines = _lines(path)
    if _RELEASE.match(lines[0]):
        stated = validated_json(ReleaseLine, lines.pop(0), str(path)).kafka_release
        if release not in (None, stated):
            raise InputError("--kafka", "", release.value, f"{stated.value}, the release that {path} says")
        release = stated
    rows = [parsed_row(path, number, line) for number, line in enumerate(lines, start=1)]
    if not rows:
        raise InputError(str(path), "", "no rows", "one JSON object per line")
    if release is not None:
        return _replayed(path, rows, release, is_stated=True)
    found: list[FileResult] = []
    for fitting in reversed(KafkaRelease):
        found.append(_replayed(path, rows, fitting, is_stated=False))
        if not found[-1].failed:
            break
    return min(found, key=lambda result: result.failed)


def _replayed(path: Path, rows: Sequence[Row], release: KafkaRelease, is_stated: bool) -> FileResult:
    kind = _KINDS[type(rows[0])]
    mismatches: list[Mismatch] = []
    departed: list[DepartedRow] = []
    for number, row in enumerate(rows, start=1):
        unlike = row_differences(row, release)
        if not unlike:
            continue
        explain = quorum_explanation if isinstance(row, QuorumRow) else explanation
        departures = explain(partial(row_differences, row, release))
        if departures:
            departed.append(DepartedRow(number, unlike, departures))
        else:
            mismatches.append(Mismatch(number, unlike))
    passed = len(rows) - len(mismatches) - len(departed)
    return FileResult(str(path), kind, release, is_stated, passed, tuple(mismatches), tuple(departed))


def row_differences(
    row: Row, kafka_release: KafkaRelease, kafka_rules: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    """The fields in which the core's answers, for this release and these of Kafka's rules, are not as recorded."""
    if isinstance(row, QuorumRow):
        return quorum.differences(row, kafka_rules)
    if isinstance(row, ControllerTraceRow):
        return conformance_traces.differences(row, kafka_release, kafka_rules)
    if isinstance(row, ClusterTraceRow):
        return cluster_traces.differences(row, kafka_release, kafka_rules)
    return differences(row, kafka_release, kafka_rules)


def differences(
    row: PartitionChangeRow, kafka_release: KafkaRelease, kafka_rules: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    """The fields in which the core's answer, for this release and under these of Kafka's rules, differs from the
    recorded one."""
    recovery = LeaderRecoveryState[row.partition.leader_recovery_state]
    before = PartitionState(**row.partition.model_dump() | {"leader_recovery_state": recovery})
    try:
        record = decide("vector", 0, before, _request(row, kafka_release, kafka_rules))
    except UndecidableError as failure:
        return (Difference("error", row.error, str(failure)),)
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


def parsed_row(path: Path, number: int, line: bytes) -> Row:
    """A row of any kind; a row of no kind is validated as a partition change. InputError for any other line."""
    try:
        if _QUORUM.match(line):
            return validated_json(QuorumRow, line, str(path))
        if _STEPS.search(line):
            if _ONE_PARTITION.search(line):
                return validated_json(ControllerTraceRow, line, str(path))
            return validated_json(ClusterTraceRow, line, str(path))
        return validated_json(PartitionChangeRow, line, str(path))
    except InputError as error:
        field = f"row {number}: {error.field}" if error.field else f"row {number}"
        raise InputError(str(path), field, error.found, error.allowed) from error


def _request(row: PartitionChangeRow, kafka_release: KafkaRelease, kafka_rules: frozenset[str]) -> ChangeRequest:
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
        kafka_release=kafka_release,
    )


def _record_fields(record: PartitionChangeRecord | None) -> dict[str, object] | None:
    if record is None:
        return None
    named_alike = {name: getattr(record, name) for name in RecordShape.model_fields if name != "elr"}
    return named_alike | {"elr": record.eligible_leader_replicas}
