"""Checks a whole recording: the controller's states (`check_metadata.py`, in `v3` those of the store), the events of
the nodes (`check_events.py`), the history of the clients (`history.py`).

Loss and reads that disagree are violations only while their partition is within tolerance (`truth.py`, `v3_suite.py`),
unless the recording states that its run could lose no record.

**The store of `v3`.** All its changes are events of one node, so their order is known on both engines. They are
replayed through the rules of the simulator (`v3_suite.py`), on a cluster that never runs and so has no state of a
process. Elections of controllers follow when all changes are known, because events of different nodes may have been
received in any order. Tolerance ends by an unclean election, by a disk that lost records (unknown ones count for every
partition), and by a leader whose log begins its epoch below a high watermark of an earlier epoch. In a simulation the
last of these is a violation of LeaderCompleteness unless the leader lacks the records for a reason that V3 allows. A
recording does not show the reason, so here it always ends tolerance: what is reported as lost within tolerance is a
violation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from experiments.check import rules
from experiments.check.check_events import SHOWN_BY_EVENTS, EventChecker
from experiments.check.check_metadata import UNCLEAN, LogMarks, MetadataReplay, ReplayedMetadata
from experiments.check.elections import ElectionLog, LostBy, lost_by, lost_so_far
from experiments.check.history import ACKS_OF, Ended, Invoked, Operation, breaks_promise, judge_and_count
from experiments.check.losses import Losses
from experiments.check.names import Names
from experiments.check.recording import HISTORY, METADATA, Recording
from experiments.check.suite import InvariantSuite
from experiments.engines.port import ClusterSpec, TraceEvent, Violation
from experiments.engines.sim.cluster import SimCluster
from experiments.support.errors import InputError
from protocol.errors import ProtocolInvariantError
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.host import IncarnationEnded
from protocol.events.store import ControllerElected, StoreChanged
from protocol.ids import Epoch, Offset, TimeMs, TopicPartition, is_broker

ACKNOWLEDGED = "AcknowledgedIsCommitted"
HISTORY_FINDING = "History"
SHOWN_BY_STORE = (
    "VersionsGrow",
    "OneControllerPerEpoch",
    "DecisionsAreFenced",
    "LeaderEpochsRise",
    "ElectionAddsNoMember",
    "LeaderInIsr",
)
SHOWN_BY_METADATA = (
    "ValidControllerState",
    "ValidControllerIsrAndElr",
    "EpochsRise",
    "RecoveryStateKept",
    "RecoveringIsrIsOne",
    "ReassignmentKeepsMinIsr",
    "ReassignmentsEnd",
    "LastKnownElrIsAssigned",
    "MinIsrRecoveryQuorum",
)


@dataclass(slots=True)
class CheckResult:
    """The JSON document of `isray check`, which has the keys of `Losses.document` in the place of `losses`. In a
    generation that no release of Kafka has `kafka_release` is None. `looked_at` is the number of checks by invariant;
    `violations` are ordered by name and time; `unjudged` has a line for each thing that the recording could not show.
    `lost` says by which elections acknowledged records were lost. Of a recording that is not complete what was written
    until `until_ms` is checked. `began_unix_ms` is the Unix time from which times count, None for virtual time.
    Without `operations` of clients no number of lost records is known.
    """

    what: str
    engine: str
    generation: str
    kafka_release: str | None
    seed: int
    nothing_may_be_lost: bool = False
    events: int = 0
    operations: int = 0
    metadata_records: int = 0
    looked_at: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    within_tolerance: dict[str, bool] = field(default_factory=dict)
    unjudged: list[str] = field(default_factory=list)
    is_complete: bool = True
    until_ms: TimeMs | None = None
    began_unix_ms: TimeMs | None = None
    lost: list[LostBy] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)

    def document(self) -> dict[str, object]:
        fields = asdict(self)
        del fields["losses"]
        fields["lost"] = [asdict(it) | {"partition": str(it.partition), "records": it.records} for it in self.lost]
        for it in fields["lost"]:
            if it["election"] is not None:
                it["election"]["partition"] = it["partition"]
        losses = self.losses.document()
        return fields | (losses if self.operations else losses | dict.fromkeys(losses))

    def lost_words(self) -> str:
        """The lost records in numbers, to stand behind "acknowledged records lost: "."""
        return self.losses.words() if self.operations else "unknown, since what clients did is not in the recording"


def check(recording: Recording) -> CheckResult:
    """Checks a recording. InputError where its files contradict each other in a way that no run can cause."""
    manifest = recording.manifest
    config = recording.spec.config
    found = CheckResult(manifest.what, manifest.engine, config.generation.value, config.release_name, manifest.seed)
    found.is_complete, found.until_ms = recording.is_complete, recording.until_ms
    found.began_unix_ms = manifest.began_unix_ms
    marks, log = LogMarks(), ElectionLog()
    for event in recording.events():
        marks.observe(event)
        log.observe(event)
        found.events += 1
    try:
        metadata = MetadataReplay(recording.spec, recording.records, marks).run()
    except ProtocolInvariantError as error:
        path = recording.folder / METADATA
        raise InputError(str(path), "", str(error), "the records of a metadata log, from its start") from error
    metadata.unconditional = found.nothing_may_be_lost = manifest.nothing_may_be_lost
    found.metadata_records = metadata.records
    if recording.spec.has_store_metadata:
        store = replay_store(recording.spec, recording.events())
        metadata.tolerant = store.tolerant
        found.looked_at |= dict.fromkeys(SHOWN_BY_STORE, store.changes)
        found.violations += store.violations
    found.within_tolerance = {str(name): kept for name, kept in sorted(metadata.tolerant.items())}
    found.looked_at |= dict.fromkeys((*SHOWN_BY_METADATA, UNCLEAN), sum(map(len, metadata.states.values())))
    found.violations += metadata.violations
    events = EventChecker(metadata)
    if manifest.engine == "kafka":
        events.gaps.append("the brokers are those of Apache Kafka, which report no trace events")
    if metadata.records:
        for event in recording.events():
            events.observe(event)
        events.finish()
    elif not recording.spec.has_store_metadata:
        found.unjudged.append("no controller was running at the end whose metadata log could be read")
    found.looked_at |= events.counts
    found.violations += events.violations
    found.unjudged += events.gaps
    found.unjudged += [f"{name}: several partitions had this name" for name in sorted(metadata.recreated)]
    elections = {name: of for name, of in log.elections().items() if name not in metadata.recreated}
    if recording.is_complete:
        _check_history(recording, metadata, events, found)
    else:
        found.operations = sum(1 for _ in recording.operations())
        found.losses = lost_so_far(recording.operations(), elections)
        found.unjudged.append("the final logs are not known: losses are those that elections show so far")
    found.lost = lost_by(found.losses.ranges, elections)
    found.violations.sort(key=lambda it: (it.invariant, it.time_ms, it.detail))
    return found


# -- the store -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReplayedStore:
    """The number of `changes` of the store; `tolerant`: whether each partition is within tolerance at the end."""

    changes: int = 0
    tolerant: dict[TopicPartition, bool] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)


def replay_store(spec: ClusterSpec, events: Iterable[TraceEvent]) -> ReplayedStore:
    cluster = SimCluster(spec, keep_traces=False)
    suite = InvariantSuite(cluster)
    found = ReplayedStore()
    elected: list[TraceEvent] = []
    leaders: list[BecameLeader] = []
    lost: set[TopicPartition] = set()
    are_all_hit = False
    marks: dict[TopicPartition, dict[Epoch, Offset]] = defaultdict(dict)
    for event in events:
        match event.trace:
            case StoreChanged() as changed:
                cluster.now_ms = event.time_ms
                suite.replay(event.node, changed)
                found.changes += 1
            case ControllerElected():
                elected.append(event)
            case BecameLeader() as leader:
                leaders.append(leader)
            case HighWatermarkAdvanced(partition=key, leader_epoch=epoch, high_watermark=mark):
                marks[key][epoch] = max(mark, marks[key].get(epoch, 0))
            case IncarnationEnded(loss=loss, lost=parts) if is_broker(event.node) and loss != "none":
                are_all_hit = are_all_hit or parts is None
                lost.update(key for key, count in parts or () if count)
    for event in elected:
        cluster.now_ms = event.time_ms
        suite.replay(event.node, event.trace)
    lost.update(
        leader.partition
        for leader in leaders
        if leader.log_end < rules.committed_before(marks[leader.partition], leader.leader_epoch)
    )
    partitions = suite.truth.partitions
    found.tolerant = {key: of.tolerant and key not in lost and not are_all_hit for key, of in partitions.items()}
    found.violations = suite.violations
    return found


# -- clients -----------------------------------------------------------------------------------------------------------


def _check_history(recording: Recording, metadata: ReplayedMetadata, events: EventChecker, found: CheckResult) -> None:
    finals = recording.finals()
    names = Names(recording.operations() if recording.manifest.others_write else ())
    finals = [names.final(final) for final in finals] if recording.manifest.others_write else finals
    kept = _OperationFilter({final.partition: final.settled for final in finals}, metadata, events)
    try:
        operations = kept.of(names.operations(recording.operations()))
        findings, found.losses = judge_and_count(operations, finals, others_write=recording.manifest.others_write)
    except ValueError as error:
        path = recording.folder / HISTORY
        raise InputError(str(path), "", str(error), "a history that fits the final logs") from error
    found.operations = kept.operations
    found.losses.add(kept.undecided)
    found.unjudged += [f"{name}: no broker led it at the end" for name in sorted(kept.without_log)]
    found.looked_at |= {HISTORY_FINDING: kept.operations, ACKNOWLEDGED: kept.acknowledged}
    found.violations += kept.violations
    for finding in findings:
        promised = metadata.unconditional or metadata.tolerant.get(finding.partition, True)
        if breaks_promise(finding, promised, has_store_metadata=recording.spec.has_store_metadata):
            name = f"{HISTORY_FINDING}.{type(finding).__name__}"
            found.violations.append(Violation(name, 0, finding.text))


@dataclass(slots=True)
class _OperationFilter:
    """Passes on the operations of a history that `judge` can check: those on partitions with a final log. `Ended` has
    the partition of its send; those of unknown sends are passed on for `judge` to report.
    """

    settled: dict[TopicPartition, Offset | None]
    metadata: ReplayedMetadata
    events: EventChecker
    operations: int = 0
    acknowledged: int = 0
    without_log: set[TopicPartition] = field(default_factory=set)
    undecided: Losses = field(default_factory=Losses)
    violations: list[Violation] = field(default_factory=list)

    def of(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        pending: dict[int, tuple[TopicPartition, int]] = {}
        for operation in operations:
            self.operations += 1
            if isinstance(operation, Invoked):
                pending[operation.send] = operation.partition, operation.size
            if not isinstance(operation, Ended):
                partition = operation.partition
            elif operation.send in pending:
                partition, left = pending.pop(operation.send)
                if left > operation.size:
                    pending[operation.send] = partition, left - operation.size
            else:
                yield operation
                continue
            if partition in self.settled:
                if isinstance(operation, Ended) and operation.result == "acknowledged":
                    self._check_acknowledged(partition, operation)
                yield operation
                continue
            self.without_log.add(partition)
            if isinstance(operation, Ended) and operation.result in ACKS_OF:
                undecided = Counter({ACKS_OF[operation.result]: operation.size})
                self.undecided.add(Losses(undecided=undecided, reasons=[f"no broker led {partition} at the end"]))

    def _check_acknowledged(self, partition: TopicPartition, end: Ended) -> None:
        """A record acknowledged with acks=all is below a high watermark that some leader reported."""
        shown = self.events.shown.get(partition, {})
        if self.events.gaps or partition in self.metadata.recreated or not self.metadata.records:
            return
        self.acknowledged += 1
        mark = max([*shown.values(), self.settled[partition] or 0])
        if end.offset + end.size > mark:
            last = end.offset + end.size - 1
            text = f"send {end.send} was acknowledged up to offset {last}, the high watermark was {mark}"
            self.violations.append(Violation(ACKNOWLEDGED, 0, f"{partition}: {text}"))


ALL_SHOWN = (*SHOWN_BY_METADATA, UNCLEAN, *SHOWN_BY_EVENTS, ACKNOWLEDGED, HISTORY_FINDING)
"""Every check of a recording."""
