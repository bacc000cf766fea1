"""Checks the controller's part of a recording: every committed state, by the invariants of the simulator.

The metadata log is complete, whether or not the controller's trace events were collected. It is replayed record by
record into a controller of a simulated cluster that never runs, in which brokers are registrations only. The invariant
suite (`suite.py`) receives the trace events of the same records and checks after each batch; `check_events.py` checks
what the trace shows of replicas.

**Tolerance.** A crash or a lost disk is placed at the end of the metadata log as far as the engine knew it at the time.
That is the right place or an earlier one, so tolerance may end too early but never too late. A broker counts as
repaired when it is in an ISR under a broker epoch that it got after the loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple, TypeVar

from experiments.check import rules
from experiments.check.suite import InvariantSuite
from experiments.engines.port import ClusterSpec, TraceEvent, Violation
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.disk import SimStorage
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.events import controller as events
from protocol.events.base import Trace
from protocol.events.broker import MetadataPublished
from protocol.events.host import IncarnationEnded
from protocol.ids import (
    FIRST_CONTROLLER,
    NO_LEADER,
    BrokerId,
    Epoch,
    NodeId,
    Offset,
    TimeMs,
    TopicIdPartition,
    TopicPartition,
    is_broker,
)
from protocol.messages.records import FeatureLevelRecord, MetadataRecord, PartitionChangeRecord
from protocol.metadata.image import MetadataDelta
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode
from protocol.nodes.controller_log import broker_registered, partition_changed

UNCLEAN = "UncleanElectionIsLastResort"
Value = TypeVar("Value")


class CrashPoint(NamedTuple):
    """A crash of a broker at the offset `at` of the metadata log, where its epoch was `epoch`. `lost` is the number of
    records that its disk lost by partition: None if unknown, empty if it lost none.
    """

    at: Offset
    node: NodeId
    epoch: Epoch
    lost: dict[TopicPartition, int] | None


class CommittedState(NamedTuple):
    """A state of a partition. `topic_id` distinguishes topics of the same name."""

    topic_id: str
    state: PartitionState


@dataclass(slots=True)
class LogMarks:
    """What the events of a recording, observed in their order, show about the metadata log: `ends` of batches with
    their times, `crashes`, and the decided recoveries by the offset before them.
    """

    ends: dict[Offset, TimeMs] = field(default_factory=dict)
    crashes: list[CrashPoint] = field(default_factory=list)
    recoveries: dict[Offset, list[events.RecoveryDecided]] = field(default_factory=dict)
    _end: Offset = 0
    _committed: Offset = 0
    _epochs: dict[BrokerId, Epoch] = field(default_factory=dict)

    def observe(self, event: TraceEvent) -> None:
        match event.trace:
            case events.MetadataCommitted(end_offset=end):
                self._committed = end
                self._record_end(end, event.time_ms)
            case events.ControllerStarted(next_offset=end) | MetadataPublished(next_offset=end):
                self._record_end(end, event.time_ms)
            case events.RecoveryDecided() as decided:
                self.recoveries.setdefault(self._committed, []).append(decided)
            case events.BrokerRegistered(broker=broker, broker_epoch=epoch):
                self._epochs[broker] = epoch
            case IncarnationEnded(loss=loss, lost=lost) if is_broker(event.node):
                known = () if loss == "none" else lost
                epoch = self._epochs.get(event.node, -1)
                self.crashes.append(CrashPoint(self._end, event.node, epoch, None if known is None else dict(known)))

    def _record_end(self, end: Offset, time_ms: TimeMs) -> None:
        """A batch ends at `end`. A killed controller may not have reported it; brokers apply whole batches."""
        self._end = max(self._end, end)
        self.ends.setdefault(end, time_ms)


@dataclass(slots=True)
class ReplayedMetadata:
    """All committed states, and the other facts of the log that events are checked against.

    `promised[partition][leader epoch]` is whether the partition was within tolerance when that epoch ended, `tolerant`
    whether it was at the end. With `unconditional` a loss is a violation beyond tolerance, too. `min_isrs` and
    `needs_min_isr` are changes with their offsets, `registrations` the offsets at which brokers registered, `recreated`
    the partitions of which there were several of one name.
    """

    records: int = 0
    unconditional: bool = False
    states: dict[TopicPartition, list[CommittedState]] = field(default_factory=dict)
    min_isrs: dict[TopicPartition, list[tuple[Offset, int]]] = field(default_factory=dict)
    promised: dict[TopicPartition, dict[Epoch, bool]] = field(default_factory=dict)
    tolerant: dict[TopicPartition, bool] = field(default_factory=dict)
    needs_min_isr: list[tuple[Offset, bool]] = field(default_factory=list)
    registrations: dict[BrokerId, list[Offset]] = field(default_factory=dict)
    recreated: set[TopicPartition] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)

    def is_promised(self, partition: TopicPartition, epoch: Epoch) -> bool:
        """Whether a leader of that epoch must have all records below earlier high watermarks."""
        kept = self.unconditional or self.promised.get(partition, {}).get(epoch, False)
        return kept and partition not in self.recreated

    def first_epoch(self, partition: TopicPartition, epoch: Epoch) -> Epoch:
        """The first leader epoch of the partition that has this leader epoch; others had its name before."""
        begins = [it.state.first_leader_epoch for it in self.states.get(partition, ())]
        return max((begin for begin in begins if begin <= epoch), default=0)

    def least_min_isr(self, partition: TopicPartition, begin: Offset, end: Offset) -> int:
        """The smallest effective min ISR in the images of a broker that has replayed `begin` to `end` records."""
        return min(_in_images(self.min_isrs.get(partition, []), begin, end), default=0)

    def may_ignore_min_isr(self, begin: Offset, end: Offset) -> bool:
        """Whether high watermarks may rise below min ISR by the feature levels in one of those images."""
        return not all(_in_images(self.needs_min_isr, begin, end))


def _in_images(changes: Sequence[tuple[Offset, Value]], begin: Offset, end: Offset) -> list[Value]:
    """The values in the images of a broker that has replayed `begin` to `end` records."""
    before = [value for offset, value in changes if offset < begin]
    return [*before[-1:], *[value for offset, value in changes if begin <= offset < end]]


class _ReplayedController(ControllerNode):
    """A controller that is always active, with an image of committed records only."""

    @property
    def is_active(self) -> bool:
        return True


class _ReplayCluster(SimCluster):
    """A simulated cluster that never runs: a controller with the replayed image, and brokers as registrations."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(replace(spec, controllers=1, voters=None), keep_traces=False)
        self.controller = _ReplayedController(
            FIRST_CONTROLLER, (FIRST_CONTROLLER,), spec.config, SimStorage(), Random(spec.seed)
        )
        self.nodes[FIRST_CONTROLLER] = self.controller

    def register(self, broker: BrokerId, epoch: Epoch) -> None:
        """Adds a broker with an empty disk, registered under `epoch`."""
        spec = self.spec
        node = BrokerNode(broker, spec.controller_ids, spec.config, SimStorage(), Random(spec.seed))
        node.context.broker_epoch = epoch
        self.nodes[broker] = node


class MetadataReplay:
    """Replays a metadata log of a cluster, once, and checks every committed state. `marks`: what its trace shows."""

    def __init__(self, spec: ClusterSpec, records: Sequence[MetadataRecord], marks: LogMarks) -> None:
        self._records = records
        self._marks = marks
        self._crashes = deque(marks.crashes)
        self._crashed_epochs: dict[BrokerId, Epoch] = {}
        self._cluster = _ReplayCluster(spec)
        self._suite = InvariantSuite(self._cluster, is_replay=True)
        self._image = self._cluster.controller.state.image
        self._found = ReplayedMetadata(records=len(records))
        self._found.needs_min_isr.append((-1, self._image.features.high_watermark_needs_min_isr))

    def run(self) -> ReplayedMetadata:
        begin = 0
        for end in [*sorted(end for end in self._marks.ends if end < len(self._records)), len(self._records)]:
            self._apply_crashes(begin)
            self._cluster.now_ms = self._marks.ends.get(end, self._cluster.now_ms)
            self._replay_batch(begin, end)
            begin = end
        self._apply_crashes(None)
        found, truth = self._found, self._suite.truth
        found.violations[:0] = self._suite.violations
        for partition, states in found.states.items():
            found.tolerant[partition] = truth.of(partition).tolerant and partition not in found.recreated
            self._record_promise(partition, states[-1].state.leader_epoch)
        return found

    def _apply_crashes(self, begin: Offset | None) -> None:
        """Applies the crashes before the record at `begin`, all that are left where it is None."""
        while self._crashes and (begin is None or self._crashes[0].at <= begin):
            crash = self._crashes.popleft()
            self._crashed_epochs[crash.node] = max(crash.epoch, self._crashed_epochs.get(crash.node, -1))
            self._cluster.nodes.pop(crash.node, None)
            lost = dict.fromkeys(self._suite.truth.partitions, 1) if crash.lost is None else crash.lost
            self._suite.truth.observe_crash(crash.node, lost)
            for partition in lost:
                if partition in self._found.states:
                    self._record_promise(partition, self._found.states[partition][-1].state.leader_epoch)

    def _record_promise(self, partition: TopicPartition, epoch: Epoch) -> None:
        self._found.promised.setdefault(partition, {})[epoch] = self._suite.truth.of(partition).tolerant

    def _replay_batch(self, begin: Offset, end: Offset) -> None:
        records = self._records[begin:end]
        for recovery in self._marks.recoveries.get(begin, ()):
            self._emit(recovery)
        changes = (record for record in records if isinstance(record, PartitionChangeRecord))
        keys = [TopicIdPartition(change.topic_id, change.partition_id) for change in changes]
        before = {key: self._eligible(key) for key in keys}
        changed: dict[TopicPartition, None] = {}
        for record in records:
            self._image.replay(record)
            changed.update(dict.fromkeys(self._emit_changes(record, self._image.take_delta())))
        for name in changed:
            state = self._suite.truth.controller_state(name)
            if state is not None:
                self._emit(partition_changed(name, state, self._suite.truth.min_isr(name, state)))
                self._record_promise(name, state.leader_epoch)
        for key, (former, eligible) in before.items():
            self._check_election(key, former, eligible)
        if self._cluster.on_event is not None:
            self._cluster.on_event(self._cluster.now_ms, FIRST_CONTROLLER)

    def _emit(self, trace: Trace) -> None:
        self._suite.replay(FIRST_CONTROLLER, trace)

    def _emit_changes(self, record: MetadataRecord, delta: MetadataDelta) -> Iterator[TopicPartition]:
        """Emits the trace events of a record that was replayed; yields the partitions with another state."""
        image, found, offset = self._image, self._found, self._image.next_offset - 1
        for topic in delta.deleted_topics.values():
            self._emit(events.TopicDeleted(topic.name))
        for key in delta.removed_partitions:
            self._emit(events.PartitionRemoved(image.name_of(key)))
        if isinstance(record, FeatureLevelRecord):
            self._emit(events.FeatureLevelChanged(record.name, record.feature_level))
            found.needs_min_isr.append((offset, image.features.high_watermark_needs_min_isr))
        for broker in delta.brokers:
            self._observe_registration(broker, offset)
            known = image.brokers.get(broker)
            self._emit(events.BrokerUnregistered(broker) if known is None else broker_registered(broker, known))
        for key in delta.partitions:
            state = image.partition(key)
            if state is not None:
                name = image.name_of(key)
                states = found.states.setdefault(name, [])
                if states and states[-1].topic_id != key.topic_id:
                    found.recreated.add(name)
                states.append(CommittedState(key.topic_id, state))
                yield name
        all_may_change = bool(delta.features or delta.configs)
        for key in [key for key, _ in image.partitions()] if all_may_change else delta.partitions:
            self._record_min_isr(offset, key)

    def _record_min_isr(self, offset: Offset, key: TopicIdPartition) -> None:
        """Records the effective min ISR of a partition where the record at `offset` has changed it."""
        state = self._image.partition(key)
        if state is not None:
            values = self._found.min_isrs.setdefault(self._image.name_of(key), [])
            min_isr = self._image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
            if not values or values[-1][1] != min_isr:
                values.append((offset, min_isr))

    def _observe_registration(self, broker: BrokerId, offset: Offset) -> None:
        epoch = self._image.broker_epoch(broker)
        if epoch is None:
            self._cluster.nodes.pop(broker, None)
        elif epoch == offset:
            self._found.registrations.setdefault(broker, []).append(offset)
            if epoch > self._crashed_epochs.get(broker, -1):
                self._cluster.register(broker, epoch)

    def _eligible(self, key: TopicIdPartition) -> tuple[PartitionState | None, frozenset[BrokerId]]:
        """The partition's state, and the brokers that could be elected cleanly now."""
        state = self._image.partition(key)
        members = () if state is None else (*state.isr, *state.elr)
        return state, frozenset(broker for broker in members if self._image.is_active(broker))

    def _check_election(
        self, key: TopicIdPartition, former: PartitionState | None, eligible: frozenset[BrokerId]
    ) -> None:
        """An unclean election is the last resort: no member of ISR and ELR could have been elected instead."""
        state = self._image.partition(key)
        if former is None or state is None or state.leader_epoch == former.leader_epoch or state.leader == NO_LEADER:
            return
        better = rules.clean_candidates(eligible, state.replicas, self._image.is_active)
        if state.leader_recovery_state > former.leader_recovery_state and better:
            name = self._image.name_of(key)
            detail = f"{name}: {state.leader} was elected uncleanly, while {better} of ISR and ELR were active"
            self._found.violations.append(Violation(UNCLEAN, self._cluster.now_ms, detail))
