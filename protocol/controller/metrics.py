"""The controller's metrics (requirements I1-I10, D34) and alerts (I8).

Gauges of partitions are updated record by record at a constant cost each; only a change of feature levels, or of a
config that a gauge depends on, evaluates all partitions that it concerns. Counters and summaries start at 0 when the
controller becomes active, whatever the log holds (I5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from protocol import metrics
from protocol.config import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE, UNCLEAN_RECOVERY_STRATEGY
from protocol.controller.context import ControllerState
from protocol.controller.recovery_decisions import RecoveryNeed, recovery_need
from protocol.controller.recovery_requests import RecoveryRequests
from protocol.events.controller import OFFLINE_PARTITION, UNCLEAN_ELECTION
from protocol.ids import NO_LEADER, BrokerId, Offset, TimeMs, TopicIdPartition
from protocol.messages.records import ConfigRecord, MetadataRecord
from protocol.metadata.image import MetadataDelta
from protocol.metadata.partition import LeaderRecoveryState, PartitionState

_GAUGE_CONFIGS = (MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE, UNCLEAN_RECOVERY_STRATEGY)
"""The configs that decide which gauges count a partition."""
_GAUGES = (metrics.UNDER_MIN_ISR, metrics.OFFLINE, metrics.UNCLEAN_RECOVERY, metrics.MANUAL_ELECTION_REQUIRED)


class Alert(NamedTuple):
    """An alert for the operator (I8): `kind` is OFFLINE_PARTITION or UNCLEAN_ELECTION, `state` the partition then."""

    key: TopicIdPartition
    kind: str
    state: PartitionState


@dataclass(slots=True)
class Summary:
    count: int = 0
    sum: int = 0
    last: int = 0
    max: int = 0

    def observe(self, value: int) -> None:
        self.count, self.sum = self.count + 1, self.sum + value
        self.last, self.max = value, max(self.max, value)


def partition_metrics(state: PartitionState) -> dict[str, int]:
    return {metrics.ELECTABLE_LEADERS: len(state.isr) + len(state.elr)}


def is_unclean_election(before: PartitionState, after: PartitionState) -> bool:
    """Whether the change elected a leader from outside ISR and ELR, which leaves the partition RECOVERING (N13)."""
    if after.leader in (before.leader, NO_LEADER) or after.leader_recovery_state is LeaderRecoveryState.RECOVERED:
        return False
    if before.leader_recovery_state is LeaderRecoveryState.RECOVERED:
        return True
    return after.leader not in before.isr and after.leader not in before.elr


def needs_user(state: ControllerState, key: TopicIdPartition, partition: PartitionState) -> bool:
    """Whether the partition is leaderless and stays so until a user acts, as `MANUAL_ELECTION_REQUIRED` defines."""
    if state.image.features.unclean_recovery:
        return recovery_need(state.image, key, partition) is RecoveryNeed.USER
    if partition.leader != NO_LEADER or not {*partition.isr, *partition.elr}.isdisjoint(partition.replicas):
        return False
    record = state.change(key, is_acceptable_leader=lambda broker: True)
    return record is None or record.leader < 0


_LED = dict.fromkeys((metrics.OFFLINE, metrics.UNCLEAN_RECOVERY, metrics.MANUAL_ELECTION_REQUIRED), False)
"""The gauges of partitions that wait for a leader, none of which counts one with a leader."""


class PartitionGauges:
    """The partitions that each gauge counts, by its metric, without recoveries that a user requested."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.counted: dict[str, set[TopicIdPartition]] = {name: set() for name in _GAUGES}

    def replayed(self, record: MetadataRecord, delta: MetadataDelta) -> None:
        """Updates the gauges after `state` has replayed a record; `delta` is what it changed."""
        for key in delta.removed():
            for members in self.counted.values():
                members.discard(key)
        topics = self._state.image.topics
        for key in delta.partitions:
            self._evaluate(key, topics[key.topic_id].partitions[key.partition])
        if delta.features or delta.configs:
            for key, partition in self._concerned(record):
                self._evaluate(key, partition)

    def _concerned(self, record: MetadataRecord) -> Iterable[tuple[TopicIdPartition, PartitionState]]:
        image = self._state.image
        if not isinstance(record, ConfigRecord):
            return image.partitions()
        exists = record.topic_id is None or record.topic_id in image.topics
        return image.partitions(record.topic_id) if exists and record.name in _GAUGE_CONFIGS else ()

    def _evaluate(self, key: TopicIdPartition, partition: PartitionState) -> None:
        min_isr = self._state.image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(partition.replicas))
        places = {metrics.UNDER_MIN_ISR: len(partition.isr) < min_isr, **_LED}
        if partition.leader == NO_LEADER:
            needed = recovery_need(self._state.image, key, partition)
            places[metrics.OFFLINE] = True
            places[metrics.UNCLEAN_RECOVERY] = needed in (RecoveryNeed.RECOVERY, RecoveryNeed.LAST_KNOWN)
            places[metrics.MANUAL_ELECTION_REQUIRED] = needs_user(self._state, key, partition)
        for name, counts in places.items():
            if counts:
                self.counted[name].add(key)
            else:
                self.counted[name].discard(key)


class ControllerMetrics:
    """The node sets `now_ms` to the time of its input; `quorum` returns the values of `RAFT_METRICS`, in that order."""

    def __init__(
        self, state: ControllerState, quorum: Callable[[], Sequence[int]], recoveries: RecoveryRequests | None = None
    ) -> None:
        self.now_ms: TimeMs = 0
        self._state = state
        self._recoveries = recoveries
        self._quorum = quorum
        self._gauges = PartitionGauges(state)
        self._known: dict[TopicIdPartition, PartitionState] = {}
        self._reassigning: dict[TopicIdPartition, TimeMs] = {}
        self._shutdowns: dict[BrokerId, TimeMs] = {}
        self._failovers: deque[tuple[TimeMs, Offset]] = deque()
        """When each began, and the end of the log that all active brokers have to apply."""
        self._unclean_elections = 0
        self._recoveries_finished = 0
        self._summaries = {name: Summary() for name in metrics.SUMMARIES}
        self._alerts: list[Alert] = []

    def begin(self, now_ms: TimeMs) -> None:
        """Resets counters and summaries, when the controller has replayed the log and becomes active."""
        self.now_ms = now_ms
        self._unclean_elections = self._recoveries_finished = 0
        self._summaries = {name: Summary() for name in metrics.SUMMARIES}
        self._reassigning = dict.fromkeys(self._reassigning, now_ms)
        self._alerts.clear()

    def values(self) -> dict[str, int]:
        """All metrics except those of single partitions, by name."""
        running = set(self._recoveries.running) if self._recoveries is not None else set()
        counted = self._gauges.counted
        values = {
            metrics.UNDER_MIN_ISR: len(counted[metrics.UNDER_MIN_ISR]),
            metrics.OFFLINE: len(counted[metrics.OFFLINE]),
            metrics.UNCLEAN_RECOVERY: len(counted[metrics.UNCLEAN_RECOVERY] | running),
            metrics.MANUAL_ELECTION_REQUIRED: len(counted[metrics.MANUAL_ELECTION_REQUIRED] - running),
            metrics.REASSIGNING: len(self._reassigning),
            metrics.UNCLEAN_RECOVERY_FINISHED: self._recoveries_finished,
            metrics.UNCLEAN_ELECTIONS: self._unclean_elections,
            **dict(zip(metrics.RAFT_METRICS, self._quorum(), strict=True)),
            **self._of_brokers(),
            metrics.PARTITIONS: self._state.image.partition_count,
        }
        for name, summary in self._summaries.items():
            values |= {f"{name}_{field}": value for field, value in asdict(summary).items()}
        return values

    def _of_brokers(self) -> dict[str, int]:
        brokers = self._state.image.brokers.values()
        fenced = sum(broker.fenced for broker in brokers)
        return {metrics.ACTIVE_BROKERS: len(brokers) - fenced, metrics.FENCED_BROKERS: fenced}

    def counted(self) -> dict[str, Collection[TopicIdPartition]]:
        """The partitions that the gauges count by their states, without recoveries that a user requested."""
        return {**self._gauges.counted, metrics.REASSIGNING: self._reassigning.keys()}

    def replayed(self, record: MetadataRecord, delta: MetadataDelta) -> None:
        self._gauges.replayed(record, delta)
        for key in delta.removed():
            self._known.pop(key, None)
            self._reassigning.pop(key, None)
        for key in delta.partitions:
            after = self._state.image.topics[key.topic_id].partitions[key.partition]
            self._follow(key, self._known.get(key), after)
            self._known[key] = after
        for broker in delta.brokers:
            registration = self._state.image.brokers.get(broker)
            if registration is None or registration.fenced:
                self._shutdowns.pop(broker, None)

    def take_alerts(self) -> list[Alert]:
        """The alerts since the last call, without those of offline partitions that have a leader again."""
        if not self._alerts:
            return []
        alerts, self._alerts = self._alerts, []
        offline = self._gauges.counted[metrics.OFFLINE]
        return [alert for alert in alerts if alert.kind != OFFLINE_PARTITION or alert.key in offline]

    def _follow(self, key: TopicIdPartition, before: PartitionState | None, after: PartitionState) -> None:
        if after.leader == NO_LEADER and (before is None or before.leader != NO_LEADER):
            self._alerts.append(Alert(key, OFFLINE_PARTITION, after))
        if before is not None:
            if is_unclean_election(before, after):
                self._unclean_elections += 1
                self._alerts.append(Alert(key, UNCLEAN_ELECTION, after))
            self._follow_reassignment(key, before, after)
        elif after.adding_replicas or after.removing_replicas:
            self._reassigning[key] = self.now_ms

    def _follow_reassignment(self, key: TopicIdPartition, before: PartitionState, after: PartitionState) -> None:
        was, wanted = (
            (before.adding_replicas, before.removing_replicas),
            (after.adding_replicas, after.removing_replicas),
        )
        if was == wanted:
            if not any(was) and after.replicas != before.replicas:
                self._summaries[metrics.REASSIGNMENT_DELAY].observe(0)
        elif any(wanted):
            self._reassigning[key] = self.now_ms
        else:
            began_ms = self._reassigning.pop(key)
            adding, removing = was
            if set(adding) <= set(after.replicas) and not set(removing) & set(after.replicas):
                self._summaries[metrics.REASSIGNMENT_DELAY].observe(self.now_ms - began_ms)

    def failed_over(self, record_count: int) -> None:
        """Observes a failover: `record_count` records fence a broker and move its leaderships."""
        self._summaries[metrics.FAILOVER_RECORDS].observe(record_count)
        self._failovers.append((self.now_ms, self._state.image.next_offset))

    def settle(self, applied: Mapping[BrokerId, Offset]) -> None:
        """Ends the failovers that all active brokers have applied; `applied` has the metadata offset of each broker."""
        if not self._failovers:
            return
        image = self._state.image
        offsets = [applied.get(broker, 0) for broker in image.brokers if image.is_active(broker)]
        if not offsets:
            self._failovers.clear()
        while self._failovers and self._failovers[0][1] <= min(offsets):
            self._summaries[metrics.FAILOVER_LATENCY].observe(self.now_ms - self._failovers.popleft()[0])

    def shutdown_began(self, broker: BrokerId) -> None:
        self._shutdowns[broker] = self.now_ms

    def shutdown_ended(self, broker: BrokerId) -> None:
        """Observes that the broker may shut down now; a shutdown without a beginning took 0 ms."""
        self._summaries[metrics.SHUTDOWN_TIME].observe(self.now_ms - self._shutdowns.pop(broker, self.now_ms))

    def recovered(self, partition_count: int) -> None:
        self._recoveries_finished += partition_count

    def altered(self, partition_count: int) -> None:
        self._summaries[metrics.ALTER_PARTITION_BATCH].observe(partition_count)
