"""The judge of a recording: the controller's states, the events of the nodes, the history of the clients.

What each of the three can show is said where it is judged: `check_metadata.py`, `check_events.py`, `history.py`.
Here they are put together. Loss, and reads that do not agree, are held against a partition only while it is within
tolerance; so it is everywhere (`truth.py`). A run that does nothing that could cost a record may say so in its
recording; then they are held against it without condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.check.check_events import SHOWN_BY_EVENTS, EventJudge
from experiments.check.check_metadata import UNCLEAN, Commits, MetadataHistory, Replay
from experiments.check.history import (
    DuplicatedRecord,
    Ended,
    Finding,
    Invoked,
    Operation,
    ReorderedRecords,
    ReplicasDiffer,
    Seen,
    Unanswered,
    judge,
)
from experiments.check.invariants import INVARIANTS
from experiments.check.recording import HISTORY, METADATA, Recording
from experiments.engines.port import Violation
from experiments.support.errors import InputError
from protocol.errors import ProtocolInvariantError
from protocol.ids import Offset, TopicPartition

ACKNOWLEDGED = "AcknowledgedIsCommitted"
HISTORY_FINDING = "History"
SHOWN_BY_METADATA = (
    "ValidControllerState",
    "ValidControllerIsrAndElr",
    "EpochsRise",
    "RecoveryStateKept",
    "ReassignmentKeepsMinIsr",
    "MinIsrRecoveryQuorum",
)
_ALWAYS_WRONG = (ReplicasDiffer, Unanswered, DuplicatedRecord, ReorderedRecords)


@dataclass(slots=True)
class Checked:
    """What a recording has shown. `looked_at` counts, by invariant, how often it was looked at; `violations` are in the
    order of their names and times; `unjudged` are lines about what the recording could not show.
    """

    what: str
    engine: str
    seed: int
    nothing_may_be_lost: bool = False
    events: int = 0
    operations: int = 0
    metadata_records: int = 0
    looked_at: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    within_tolerance: dict[str, bool] = field(default_factory=dict)
    unjudged: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The JSON document of `isray check`."""
        return asdict(self)


def check(recording: Recording) -> Checked:
    """Judges a recording. InputError where its files contradict each other in a way that no run brings about."""
    manifest = recording.manifest
    found = Checked(manifest.what, manifest.engine, manifest.seed)
    commits = Commits()
    for event in recording.events():
        commits.note(event)
        found.events += 1
    metadata = _replayed(recording, commits)
    metadata.unconditional = found.nothing_may_be_lost = manifest.nothing_may_be_lost
    found.metadata_records = metadata.records
    found.within_tolerance = {str(name): kept for name, kept in sorted(metadata.tolerant.items())}
    found.looked_at = dict.fromkeys((*SHOWN_BY_METADATA, UNCLEAN), sum(map(len, metadata.states.values())))
    found.violations += metadata.violations
    events = EventJudge(metadata)
    if metadata.records:
        for event in recording.events():
            events.note(event)
        events.finish()
    else:
        found.unjudged.append("no controller ran in the end whose metadata log could be read")
    found.looked_at |= events.counts
    found.violations += events.violations
    found.unjudged += events.gaps
    found.unjudged += [f"{name}: there were several of this name" for name in sorted(metadata.recreated)]
    _judge_history(recording, metadata, events, found)
    found.violations.sort(key=lambda it: (it.invariant, it.time_ms, it.detail))
    return found


def _replayed(recording: Recording, commits: Commits) -> MetadataHistory:
    try:
        return Replay(recording.spec, recording.records, commits).run()
    except ProtocolInvariantError as error:
        path = recording.folder / METADATA
        raise InputError(str(path), "", str(error), "the records of a metadata log, from its start") from error


# -- clients -----------------------------------------------------------------------------------------------------------


def _judge_history(recording: Recording, metadata: MetadataHistory, events: EventJudge, found: Checked) -> None:
    finals = recording.finals()
    told = _Told({final.partition: final.settled for final in finals}, metadata, events)
    try:
        findings = judge(told.of(recording), finals)
    except ValueError as error:
        path = recording.folder / HISTORY
        raise InputError(str(path), "", str(error), "a history that fits the final logs") from error
    found.operations = told.operations
    found.unjudged += [f"{name}: nobody led it in the end" for name in sorted(told.without_log)]
    found.looked_at |= {HISTORY_FINDING: told.operations, ACKNOWLEDGED: told.acknowledged}
    found.violations += told.violations
    for finding in findings:
        if _counts(finding, metadata):
            name = f"{HISTORY_FINDING}.{type(finding).__name__}"
            found.violations.append(Violation(name, 0, finding.text))


def _counts(finding: Finding, metadata: MetadataHistory) -> bool:
    """Whether a finding breaks a promise."""
    promised = metadata.unconditional or metadata.tolerant.get(finding.partition, True)
    return promised or isinstance(finding, _ALWAYS_WRONG)


@dataclass(slots=True)
class _Told:
    """The operations on their way to the judge; those on partitions without a final log are left out. Which partition
    an end is about is known while the send is under way; what comes later is the judge's to say.
    """

    settled: dict[TopicPartition, Offset | None]
    metadata: MetadataHistory
    events: EventJudge
    operations: int = 0
    acknowledged: int = 0
    without_log: set[TopicPartition] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)

    def of(self, recording: Recording) -> Iterator[Operation]:
        under_way: dict[int, tuple[TopicPartition, int]] = {}
        for operation in recording.operations():
            self.operations += 1
            if isinstance(operation, Invoked):
                under_way[operation.send] = operation.partition, operation.size
            if isinstance(operation, Invoked | Seen):
                partition = operation.partition
            elif operation.send in under_way:
                partition, left = under_way.pop(operation.send)
                if left > operation.size:
                    under_way[operation.send] = partition, left - operation.size
            else:
                yield operation
                continue
            if partition not in self.settled:
                self.without_log.add(partition)
                continue
            if isinstance(operation, Ended) and operation.result == "acknowledged":
                self._acknowledged(partition, operation)
            yield operation

    def _acknowledged(self, partition: TopicPartition, end: Ended) -> None:
        """What is acknowledged by all lies below a high watermark that some leader has told."""
        shown = self.events.shown.get(partition, {})
        if self.events.gaps or partition in self.metadata.recreated or not self.metadata.records:
            return
        self.acknowledged += 1
        mark = max([*shown.values(), self.settled[partition] or 0])
        if end.offset + end.size > mark:
            text = f"send {end.send} was acknowledged up to offset {end.offset + end.size - 1}, shown was up to {mark}"
            self.violations.append(Violation(ACKNOWLEDGED, 0, f"{partition}: {text}"))


ALL_SHOWN = (*SHOWN_BY_METADATA, UNCLEAN, *SHOWN_BY_EVENTS, ACKNOWLEDGED, HISTORY_FINDING)
"""Everything that a recording is judged by."""
NOT_SHOWN = tuple(sorted({kind.__name__ for kind in INVARIANTS} - set(ALL_SHOWN)))
"""Invariants of the simulator that no trace can show; docs/check.md says why."""
