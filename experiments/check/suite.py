"""Runs the invariants after every event of a simulated cluster.

The trace events of an event name the partitions that it touched; a metadata publication touches all of them. On a
touched partition those invariants are checked that an event of this kind of node can violate, and what they need is
read once for all of them (`truth.PartitionView`). So an event costs what it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.check.authorization import RULE, ChangesAreAuthorized
from experiments.check.invariants import INVARIANTS, Invariant
from experiments.check.quorum_rules import QuorumRules
from experiments.check.truth import GroundTruth
from experiments.check.v3_suite import V3Invariants
from experiments.engines.port import Loss, Violation
from experiments.engines.sim.cluster import SimCluster, unobserved
from protocol.broker.context import log_name
from protocol.events.base import PartitionTrace, Trace
from protocol.events.broker import MetadataPublished
from protocol.events.controller import (
    BrokerRegistered,
    ControllerStarted,
    FeatureLevelChanged,
    MetadataCommitted,
    PartitionChanged,
    PartitionRemoved,
    RecoveryDecided,
    TopicDeleted,
)
from protocol.ids import NodeId, TimeMs, TopicPartition, is_broker


class InvariantSuite:
    """All invariants on one cluster (`INVARIANTS`, in `v3` `V3Invariants`). Each partition reports a given invariant
    once. A replay of a recording (`is_replay`) has only the controller's image. Invariants `without` are left out.
    """

    def __init__(
        self, cluster: SimCluster, *, is_replay: bool = False, without: tuple[type[Invariant], ...] = ()
    ) -> None:
        self.truth = GroundTruth(cluster)
        self.violations: list[Violation] = []
        self._cluster = cluster
        features = cluster.spec.config.generation.features
        known = () if features.metadata_in_store else INVARIANTS
        kinds = [kind for kind in known if kind not in without and not (is_replay and kind.NEEDS_NODES)]
        self.invariants: Sequence[Invariant] = [invariant(self.truth) for invariant in kinds]
        self._observing = [each for each in self.invariants if type(each).observe is not Invariant.observe]
        checking = [each for each in self.invariants if type(each).check is not Invariant.check]
        self._after_brokers = [each for each in checking if each.AFTER_BROKERS]
        self._after_others = [each for each in checking if each.AFTER_CONTROLLERS]
        self._touched: dict[TopicPartition, None] = {}
        self._reported: set[tuple[str, TopicPartition | None]] = set()
        has_store = features.metadata_in_store
        self._store = V3Invariants(cluster, self.truth, self._report_rule) if has_store else None
        self._changes = ChangesAreAuthorized(cluster)
        self._quorum = QuorumRules(cluster)
        self._is_observing = True
        cluster.on_delivery = self._changes.before
        cluster.trace_observers.append(self._observe)
        cluster.on_event = self._check

    @property
    def parts(self) -> Sequence[object]:
        """The objects whose attributes hold what the suite has observed so far."""
        return (self.truth, *self.invariants, *(() if self._store is None else (self._store,)))

    def stop(self) -> None:
        if self._is_observing:
            self._cluster.trace_observers.remove(self._observe)
            self._cluster.on_event = None
            self._cluster.on_delivery = unobserved
            self._is_observing = False

    def replay(self, node: NodeId, trace: Trace) -> None:
        """Observes a trace event of a recording."""
        self._observe(self._cluster.now_ms, node, trace)

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if self._store is not None:
            self._store.observe(node, trace)
        elif isinstance(trace, PartitionRemoved):
            self._forget_removed(trace.partition.topic)
        elif isinstance(trace, PartitionTrace):
            self._observe_partition(node, trace)
        elif isinstance(trace, MetadataCommitted):
            self.truth.observe_commit(node, trace.end_offset)
        elif isinstance(trace, MetadataPublished | ControllerStarted | BrokerRegistered):
            if isinstance(trace, ControllerStarted):
                for invariant in self.invariants:
                    invariant.controller_started(node)
            self._touched.update(dict.fromkeys(self.truth.partitions))
        elif isinstance(trace, TopicDeleted):
            self._forget_removed(trace.topic)
        elif isinstance(trace, FeatureLevelChanged):
            self.truth.observe_feature_levels()

    def _observe_partition(self, node: NodeId, trace: PartitionTrace) -> None:
        partition = trace.partition
        if is_broker(node) and self.truth.view(node, partition).replica is None:
            return
        self._touched[partition] = None
        if isinstance(trace, RecoveryDecided):
            self.truth.observe_recovery(trace)
        for invariant in self._observing:
            wrong = invariant.observe(node, trace)
            if wrong:
                self._report(invariant, partition, wrong)
        state = self.truth.controller_state(partition) if isinstance(trace, PartitionChanged) else None
        if state is not None:
            self.truth.observe_partition(partition, state)

    def _forget_removed(self, topic: str) -> None:
        gone = self.truth.take_removed(topic)
        self._touched = {partition: None for partition in self._touched if partition not in gone}
        for invariant in self.invariants:
            invariant.forget(gone.__contains__)

    def _check(self, now_ms: TimeMs, node: NodeId, kinds: frozenset[type[Invariant]] | None = None) -> None:
        unauthorized = self._changes.after(node)
        if unauthorized:
            self._report_rule(RULE, None, unauthorized)
        of_quorum = self._quorum.after(node)
        if of_quorum is not None:
            self._report_rule(of_quorum[0], None, of_quorum[1])
        if self._store is not None:
            self._store.check(node)
        if not self._touched:
            return
        touched = self.take_touched()
        invariants = self._after_brokers if is_broker(node) else self._after_others
        for partition in touched:
            view, truth = self.truth.view(node, partition), self.truth.of(partition)
            for invariant in invariants:
                if (not invariant.NEEDS_TOLERANCE or truth.tolerant) and (kinds is None or type(invariant) in kinds):
                    wrong = invariant.check(view)
                    if wrong:
                        self._report(invariant, partition, wrong)

    def take_touched(self) -> dict[TopicPartition, None]:
        """The partitions that events have touched since they were last checked; they count as checked."""
        touched, self._touched = self._touched, {}
        return touched

    def check_everything(self) -> None:
        """Checks all partitions for every node, touched or not."""
        if self._store is not None:
            self._store.check_everything()
            return
        for node in self._cluster.spec.node_ids:
            self.check_node(node)

    def check_node(self, node: NodeId, kinds: frozenset[type[Invariant]] | None = None) -> None:
        """Checks all partitions for one node, touched or not; not for `v3`. `kinds`: only these invariants."""
        self._touched = dict.fromkeys(self.truth.partitions)
        self._check(self._cluster.now_ms, node, kinds)

    def _report(self, invariant: Invariant, partition: TopicPartition, wrong: str) -> None:
        if not invariant.NEEDS_TOLERANCE or self.truth.of(partition).tolerant:
            self._report_rule(type(invariant).__name__, partition, wrong)

    def _report_rule(self, name: str, partition: TopicPartition | None, wrong: str) -> None:
        """Reports a violation, once per partition; None: it is of no partition."""
        if (name, partition) not in self._reported:
            self._reported.add((name, partition))
            where = "" if partition is None else f"{partition}: "
            self.violations.append(Violation(name, self._cluster.now_ms, f"{where}{wrong}"))

    def crash(self, node: NodeId, loss: Loss) -> dict[TopicPartition, int]:
        """Crashes a node, or the machine of an ended process, and checks all. Returns lost records by partition."""
        lost = self.lose(node, loss)
        if self._is_observing:
            self._touched.update(dict.fromkeys(self.truth.partitions))
            self._check(self._cluster.now_ms, node)
        return lost

    def lose(self, node: NodeId, loss: Loss) -> dict[TopicPartition, int]:
        """Crashes a node as `crash` does, and records what its disk loses without checking anything."""
        before = self._stored(node)
        self._cluster.crash(node, loss)
        after = self._stored(node)
        lost = {partition: count - after.get(partition, 0) for partition, count in before.items()}
        self.truth.observe_crash(node, lost)
        if self._store is not None:
            self._store.lost(lost)
        return lost

    def _stored(self, node: NodeId) -> dict[TopicPartition, int]:
        """How many records of each partition are on the node's disk."""
        image, disk = self.truth.latest_image(), self._cluster.disks[node]
        if self._store is not None:
            names = self._store.log_names
        else:
            names = {} if image is None else {log_name(key): image.name_of(key) for key, _ in image.partitions()}
        logs = {partition: disk.open_log(name) for name, partition in names.items() if name in disk.log_names()}
        return {partition: log.end_offset - log.start_offset for partition, log in logs.items()}
