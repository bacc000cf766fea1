"""The controller's part of a recording: every state that it has committed, judged by the simulator's invariants.

The metadata log is the truth about what the controller decided, whoever was there to watch. It is replayed record by
record on a *stage*: a simulated cluster that never runs, in which a controller has the image of the log so far and
brokers stand for their registrations. The suite (`suite.py`) is put on that stage and told what the controller told
when it applied the same records; all invariants that look at the controller's state judge it, after each batch. Those
that look at replicas find none there, and say nothing: what the trace shows of replicas is judged in
`check_events.py`.

**Tolerance.** What the experiment did to disks is placed in the log where it ended, as far as the engine knew, when it
happened. That is never too late; so where it matters tolerance ends rather too early, and what is found holds. A broker
is whole again when it is in an ISR under an epoch that was given out after its loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from experiments.check.suite import InvariantSuite
from experiments.engines.port import ClusterSpec, TraceEvent, Violation
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.disk import SimStorage
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.events.base import Trace
from protocol.events.broker import MetadataPublished
from protocol.events.controller import (
    BrokerRegistered,
    BrokerUnregistered,
    ControllerStarted,
    FeatureLevelChanged,
    MetadataCommitted,
    PartitionRemoved,
    RecoveryDecided,
    TopicDeleted,
)
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
from protocol.nodes.controller_traces import broker_registered, partition_changed

UNCLEAN = "UncleanElectionIsLastResort"


class Strike(NamedTuple):
    """The experiment killed a node when the metadata log was known to end at `at`, and the broker's epoch to be
    `epoch`. `lost` is what its disk lost, by partition; None where that is not known; empty where nothing.
    """

    at: Offset
    node: NodeId
    epoch: Epoch
    lost: dict[TopicPartition, int] | None


class Committed(NamedTuple):
    """A state of a partition: the record at `offset` made it, with this effective min ISR. `topic_id` tells it from
    states of another topic of the name.
    """

    offset: Offset
    topic_id: str
    state: PartitionState
    min_isr: int


@dataclass(slots=True)
class Commits:
    """What the trace says about the log: where batches end and when, and what was done to disks meanwhile. Fed with the
    events of a recording in their order.
    """

    ends: dict[Offset, TimeMs] = field(default_factory=dict)
    strikes: list[Strike] = field(default_factory=list)
    recoveries: dict[Offset, list[RecoveryDecided]] = field(default_factory=dict)
    _end: Offset = 0
    _committed: Offset = 0
    _epochs: dict[BrokerId, Epoch] = field(default_factory=dict)

    def note(self, event: TraceEvent) -> None:
        match event.trace:
            case MetadataCommitted(end_offset=end):
                self._committed = end
                self._note_end(end, event.time_ms)
            case ControllerStarted(next_offset=end) | MetadataPublished(next_offset=end):
                self._note_end(end, event.time_ms)
            case RecoveryDecided() as decided:
                self.recoveries.setdefault(self._committed, []).append(decided)
            case BrokerRegistered(broker=broker, broker_epoch=epoch):
                self._epochs[broker] = epoch
            case IncarnationEnded(loss=loss, lost=lost) if is_broker(event.node):
                known = () if loss == "none" else lost
                epoch = self._epochs.get(event.node, -1)
                self.strikes.append(Strike(self._end, event.node, epoch, None if known is None else dict(known)))

    def _note_end(self, end: Offset, time_ms: TimeMs) -> None:
        """A batch ends at `end`. A controller that was killed may not have reported its last batches; brokers apply
        whole ones.
        """
        self._end = max(self._end, end)
        self.ends.setdefault(end, time_ms)


@dataclass(slots=True)
class MetadataHistory:
    """All committed states, and what else events are held against. `promised[partition][leader epoch]` says whether the
    partition was still within tolerance when that epoch ended; `tolerant` whether it is in the end. `unconditional`:
    loss is held against it whatever tolerance says.
    """

    records: int = 0
    unconditional: bool = False
    states: dict[TopicPartition, list[Committed]] = field(default_factory=dict)
    min_isrs: dict[TopicPartition, list[tuple[Offset, int]]] = field(default_factory=dict)
    promised: dict[TopicPartition, dict[Epoch, bool]] = field(default_factory=dict)
    tolerant: dict[TopicPartition, bool] = field(default_factory=dict)
    needs_min_isr: list[tuple[Offset, bool]] = field(default_factory=list)
    registrations: dict[BrokerId, list[Offset]] = field(default_factory=dict)
    recreated: set[TopicPartition] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)

    def is_promised(self, partition: TopicPartition, epoch: Epoch) -> bool:
        """Whether a leader of that epoch must have what was shown before, and the partition is the only one of its
        name.
        """
        kept = self.unconditional or self.promised.get(partition, {}).get(epoch, False)
        return kept and partition not in self.recreated

    def first_epoch(self, partition: TopicPartition, epoch: Epoch) -> Epoch:
        """With which leader epoch the partition began that was led in this one: one of the name may have been removed
        before.
        """
        begins = [it.state.first_leader_epoch for it in self.states.get(partition, ())]
        return max((begin for begin in begins if begin <= epoch), default=0)

    def least_min_isr(self, partition: TopicPartition, begin: Offset, end: Offset) -> int:
        """The smallest min ISR that a broker may have counted with that had replayed at least `begin` records and at
        most `end`.
        """
        found = self.min_isrs.get(partition, [])
        before = [value for offset, value in found if offset < begin]
        return min([*before[-1:], *[value for offset, value in found if begin <= offset < end]], default=0)

    def may_ignore_min_isr(self, begin: Offset, end: Offset) -> bool:
        """Whether such a broker may have gone by rules under which high watermarks rise below min ISR."""
        before = [value for offset, value in self.needs_min_isr if offset < begin]
        return not all([*before[-1:], *[value for offset, value in self.needs_min_isr if begin <= offset < end]])


class _Reader(ControllerNode):
    """A controller that has the image of the log so far, all of which is committed."""

    @property
    def is_active(self) -> bool:
        return True


class _Stage(SimCluster):
    """A cluster that stands for what the log says, and never runs."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(replace(spec, controllers=1, voters=None), keep_traces=False)
        self.controller = _Reader(FIRST_CONTROLLER, (FIRST_CONTROLLER,), spec.config, SimStorage(), Random(spec.seed))
        self.nodes[FIRST_CONTROLLER] = self.controller

    def register(self, broker: BrokerId, epoch: Epoch) -> None:
        """Puts a broker on the stage, in a life that nothing was done to."""
        spec = self.spec
        node = BrokerNode(broker, spec.controller_ids, spec.config, SimStorage(), Random(spec.seed))
        node.context.broker_epoch = epoch
        self.nodes[broker] = node


class Replay:
    """Replays a metadata log, once; see the module docstring."""

    def __init__(self, spec: ClusterSpec, records: Sequence[MetadataRecord], commits: Commits) -> None:
        self._records = records
        self._commits = commits
        self._strikes = deque(commits.strikes)
        self._struck: dict[BrokerId, Epoch] = {}
        self._stage = _Stage(spec)
        self._suite = InvariantSuite(self._stage)
        self._image = self._stage.controller.state.image
        self._found = MetadataHistory(records=len(records))
        self._found.needs_min_isr.append((-1, self._image.features.high_watermark_needs_min_isr))

    def run(self) -> MetadataHistory:
        """Every committed state, and what is wrong with any."""
        begin = 0
        for end in [*sorted(end for end in self._commits.ends if end < len(self._records)), len(self._records)]:
            self._strike(begin)
            self._stage.now_ms = self._commits.ends.get(end, self._stage.now_ms)
            self._batch(begin, end)
            begin = end
        self._strike(None)
        found, truth = self._found, self._suite.truth
        found.violations[:0] = self._suite.violations
        for partition, states in found.states.items():
            found.tolerant[partition] = truth.of(partition).tolerant and partition not in found.recreated
            self._note_promise(partition, states[-1].state.leader_epoch)
        return found

    # -- disks ---------------------------------------------------------------------------------------------------------

    def _strike(self, begin: Offset | None) -> None:
        """What was done to nodes before the record at `begin`; None: all that is left."""
        while self._strikes and (begin is None or self._strikes[0].at <= begin):
            strike = self._strikes.popleft()
            self._struck[strike.node] = max(strike.epoch, self._struck.get(strike.node, -1))
            self._stage.nodes.pop(strike.node, None)
            if strike.lost is None:
                states = self._suite.truth.partitions
                strike = strike._replace(lost=dict.fromkeys(states, 1))
            self._suite.truth.observe_crash(strike.node, strike.lost or {})
            for partition in strike.lost or {}:
                if partition in self._found.states:
                    self._note_promise(partition, self._found.states[partition][-1].state.leader_epoch)

    def _note_promise(self, partition: TopicPartition, epoch: Epoch) -> None:
        self._found.promised.setdefault(partition, {})[epoch] = self._suite.truth.of(partition).tolerant

    # -- records -------------------------------------------------------------------------------------------------------

    def _batch(self, begin: Offset, end: Offset) -> None:
        records = self._records[begin:end]
        for recovery in self._commits.recoveries.get(begin, ()):
            self._tell(recovery)
        before = {key: self._eligible(key) for key in map(_changed_by, records) if key is not None}
        changed: dict[TopicPartition, None] = {}
        for record in records:
            self._image.replay(record)
            delta = self._image.take_delta()
            for name in self._applied(record, delta):
                changed[name] = None
        for name in changed:
            state = self._suite.truth.controller_state(name)
            if state is None:
                continue
            min_isr = self._image.min_isr(self._image.topic_ids[name.topic], MIN_INSYNC_REPLICAS, len(state.replicas))
            self._tell(partition_changed(name, state, min_isr))
            self._note_promise(name, state.leader_epoch)
        for key, (former, eligible) in before.items():
            self._judge_election(key, former, eligible)
        if self._stage.on_event is not None:
            self._stage.on_event(self._stage.now_ms, FIRST_CONTROLLER)

    def _tell(self, trace: Trace) -> None:
        for observer in self._stage.trace_observers:
            observer(self._stage.now_ms, FIRST_CONTROLLER, trace)

    def _applied(self, record: MetadataRecord, delta: MetadataDelta) -> Iterator[TopicPartition]:
        """Notes what a record has changed; the partitions with another state."""
        image, found, offset = self._image, self._found, self._image.next_offset - 1
        for topic in delta.deleted_topics.values():
            self._tell(TopicDeleted(topic.name))
        for key in delta.removed_partitions:
            self._tell(PartitionRemoved(image.name_of(key)))
        if isinstance(record, FeatureLevelRecord):
            self._tell(FeatureLevelChanged(record.name, record.feature_level))
            found.needs_min_isr.append((offset, image.features.high_watermark_needs_min_isr))
        for broker in delta.brokers:
            self._registered(broker, offset)
            registration = image.brokers.get(broker)
            self._tell(BrokerUnregistered(broker) if registration is None else broker_registered(broker, registration))
        for key in delta.partitions:
            state = image.partition(key)
            if state is None:
                continue
            name = image.name_of(key)
            states = found.states.setdefault(name, [])
            if states and states[-1].topic_id != key.topic_id:
                found.recreated.add(name)
            min_isr = image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
            states.append(Committed(offset, key.topic_id, state, min_isr))
            yield name
        self._note_min_isrs(offset, None if delta.features or delta.configs else delta)

    def _note_min_isrs(self, offset: Offset, delta: MetadataDelta | None) -> None:
        """Notes effective min ISRs that have changed; without a delta that may be any."""
        image, keys = self._image, self._keys(delta)
        for key, state in keys:
            name = image.name_of(key)
            values = self._found.min_isrs.setdefault(name, [])
            min_isr = image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
            if not values or values[-1][1] != min_isr:
                values.append((offset, min_isr))

    def _keys(self, delta: MetadataDelta | None) -> Iterable[tuple[TopicIdPartition, PartitionState]]:
        if delta is None:
            return list(self._image.partitions())
        states = [(key, self._image.partition(key)) for key in delta.partitions]
        return [(key, state) for key, state in states if state is not None]

    def _registered(self, broker: BrokerId, offset: Offset) -> None:
        epoch = self._image.broker_epoch(broker)
        if epoch is None:
            self._stage.nodes.pop(broker, None)
            return
        if epoch == offset:
            self._found.registrations.setdefault(broker, []).append(offset)
            if epoch > self._struck.get(broker, -1):
                self._stage.register(broker, epoch)

    # -- elections -----------------------------------------------------------------------------------------------------

    def _eligible(self, key: TopicIdPartition) -> tuple[PartitionState | None, frozenset[BrokerId]]:
        """The partition's state, and who could be elected cleanly as things stand."""
        state = self._image.partition(key)
        members = () if state is None else (*state.isr, *state.elr)
        return state, frozenset(broker for broker in members if self._image.is_active(broker))

    def _judge_election(
        self, key: TopicIdPartition, former: PartitionState | None, eligible: frozenset[BrokerId]
    ) -> None:
        """An unclean election is the last resort: nobody of ISR and ELR could have been elected instead."""
        state = self._image.partition(key)
        if former is None or state is None or state.leader_epoch == former.leader_epoch or state.leader == NO_LEADER:
            return
        better = sorted(broker for broker in eligible if self._image.is_active(broker) and broker in state.replicas)
        if state.leader_recovery_state > former.leader_recovery_state and better:
            name = self._image.name_of(key)
            detail = f"{name}: {state.leader} was elected uncleanly, while {better} of ISR and ELR were active"
            self._found.violations.append(Violation(UNCLEAN, self._stage.now_ms, detail))


def _changed_by(record: MetadataRecord) -> TopicIdPartition | None:
    """The partition whose state a record changes."""
    if isinstance(record, PartitionChangeRecord):
        return TopicIdPartition(record.topic_id, record.partition_id)
    return None
