"""Invariants of the controller's metrics (`protocol/controller/metrics.py`): after every event gauges equal what their
definitions count in the present state, counters what was committed since the controller became active. Summaries of
times and sizes have no definition by states; their parts must fit each other.
"""

from __future__ import annotations

from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, PartitionView
from protocol import metrics
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.controller.metrics import needs_user, partition_metrics
from protocol.controller.recovery_decisions import RecoveryNeed, recovery_need
from protocol.events.base import PartitionTrace
from protocol.events.controller import PartitionChanged, RecoveryDecided
from protocol.ids import NO_LEADER, NodeId, TopicIdPartition, TopicPartition
from protocol.nodes.controller import ControllerNode


class GaugesMatchTheirDefinitions(Invariant):
    """The active controller's gauges count a partition if its state fits their definitions (I1-I4, I8). What waits for
    a user has no leader, no member of ISR or ELR that may come back, and no recovery under way (I4, I7).
    """

    AFTER_BROKERS = False
    NEEDS_NODES = True

    def check(self, view: PartitionView) -> str:
        controller = self.truth.cluster.nodes.get(view.node)
        if not isinstance(controller, ControllerNode) or not controller.is_active:
            return ""
        state_of, image = controller.state, controller.state.image
        topic = image.topic_named(view.partition.topic)
        state = None if topic is None else topic.partitions.get(view.partition.partition)
        if topic is None or state is None:
            return ""
        key = TopicIdPartition(topic.topic_id, view.partition.partition)
        need = recovery_need(image, key, state)
        min_isr = image.min_isr(topic.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
        defined = {
            metrics.UNDER_MIN_ISR: len(state.isr) < min_isr,
            metrics.OFFLINE: state.leader == NO_LEADER,
            metrics.UNCLEAN_RECOVERY: need in (RecoveryNeed.RECOVERY, RecoveryNeed.LAST_KNOWN),
            metrics.MANUAL_ELECTION_REQUIRED: needs_user(state_of, key, state),
            metrics.REASSIGNING: bool(state.adding_replicas or state.removing_replicas),
        }
        wrong = [name for name, members in controller.gauges().items() if (key in members) is not defined[name]]
        may_wait = state.leader == NO_LEADER and {*state.isr, *state.elr}.isdisjoint(state.replicas)
        may_wait = may_wait and key not in controller.gauges()[metrics.UNCLEAN_RECOVERY]
        if key in controller.gauges()[metrics.MANUAL_ELECTION_REQUIRED] and not may_wait:
            wrong.append(metrics.MANUAL_ELECTION_REQUIRED)
        if partition_metrics(state)[metrics.ELECTABLE_LEADERS] != len({*state.isr, *state.elr}):
            wrong.append(metrics.ELECTABLE_LEADERS)
        return f"gauges {wrong} differ from their definitions for {state}" if wrong else ""


class CountersMatchTheirDefinitions(Invariant):
    """The active controller's counters are the numbers of unclean elections and of recoveries that were committed since
    it became active (I5, I8), its sizes those of its gauges. Of several controllers the active one counts what is not
    committed yet as well.
    """

    KEPT = ("_states",)
    AFTER_BROKERS = False
    NEEDS_NODES = True

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._states: dict[TopicPartition, PartitionChanged] = {}
        self._elections: dict[NodeId, int] = {}
        self._recoveries: dict[NodeId, int] = {}

    def controller_started(self, node: NodeId) -> None:
        self._elections[node] = self._recoveries[node] = 0

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if isinstance(trace, RecoveryDecided):
            self._recoveries[node] = self._recoveries.get(node, 0) + 1
        if isinstance(trace, PartitionChanged):
            before = self._states.get(trace.partition, trace)
            self._states[trace.partition] = trace
            if _is_unclean(before, trace):
                self._elections[node] = self._elections.get(node, 0) + 1
        return ""

    def check(self, view: PartitionView) -> str:
        controller = self.truth.cluster.nodes.get(view.node)
        if not isinstance(controller, ControllerNode) or not controller.is_active:
            return ""
        found, gauges = controller.metrics(), controller.gauges()
        exact = {name: len(gauges[name]) for name in (metrics.UNDER_MIN_ISR, metrics.OFFLINE, metrics.REASSIGNING)}
        exact[metrics.VOTERS] = len(controller.replica.voters)
        counted = {
            metrics.UNCLEAN_ELECTIONS: self._elections.get(view.node, 0),
            metrics.UNCLEAN_RECOVERY_FINISHED: self._recoveries.get(view.node, 0),
        }
        ahead = self.truth.cluster.spec.controllers > 1
        wrong = [name for name, value in exact.items() if found[name] != value]
        wrong += [name for name, value in counted.items() if found[name] < value or (found[name] > value and not ahead)]
        wrong += [name for name in metrics.SUMMARIES if not _fits(*(found[f"{name}_{part}"] for part in _PARTS))]
        return f"{ {name: found.get(name) for name in wrong} } differ from {exact | counted}" if wrong else ""


_PARTS = ("count", "sum", "last", "max")


def _fits(count: int, total: int, last: int, greatest: int) -> bool:
    """Whether a count, sum, last value and maximum can be those of the same values."""
    if not count:
        return (total, last, greatest) == (0, 0, 0)
    return 0 <= last <= greatest <= total <= count * greatest


def _is_unclean(before: PartitionChanged, after: PartitionChanged) -> bool:
    """Whether a leader was elected that may lack acknowledged records."""
    if after.leader in (NO_LEADER, before.leader) or not after.recovering:
        return False
    return not before.recovering or after.leader not in {*before.isr, *before.elr}
