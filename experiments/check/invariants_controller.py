"""Invariants of the controller's state, of its steps (`_StepCheck`), and of the brokers' copies of it."""

from __future__ import annotations

from abc import abstractmethod

from experiments.check import rules
from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, PartitionView
from protocol.config import UNCLEAN_LEADER_ELECTION_ENABLE, UNCLEAN_RECOVERY_STRATEGY
from protocol.events.base import PartitionTrace
from protocol.events.broker import BecameLeader
from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, NodeId, TopicPartition, is_broker
from protocol.metadata.partition import (
    LeaderRecoveryState,
    PartitionState,
    awaited_replicas,
    copies_of_completed,
)
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode


class OneLeaderPerEpoch(Invariant):
    """At most one broker ever leads a partition in a leader epoch."""

    KEPT = ("_leaders",)

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._leaders: dict[tuple[TopicPartition, int], NodeId] = {}

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if not isinstance(trace, BecameLeader):
            return ""
        return rules.one_leader(self._leaders, trace.partition, trace.leader_epoch, node)


class ReplicationQuorumSuperset(Invariant):
    """A non-stale leader's maximal ISR contains the controller's ISR, and its ELR too, while the leader counts min
    ISR members, by the min ISR that the controller has and by the one that the leader has replayed. An ELR that Kafka's
    first phase keeps although min ISR is reached does not count, nor do members that are not replicas.
    """

    def check(self, view: PartitionView) -> str:
        state, node = view.state, view.node
        if state is None or (is_broker(node) and node != state.leader):
            return ""
        replica = view.replica if node == state.leader else view.replica_of(state.leader)
        leadership = None if replica is None else replica.leadership
        if leadership is None or not view.is_led_by(state.leader, replica) or len(leadership.isr) < view.min_isr:
            return ""
        superfluous = self.truth.features.last_known_leader_in_elr and len(state.isr) >= view.min_isr
        elr = () if superfluous else (broker for broker in state.elr if broker in state.replicas)
        wrong = rules.waits_for_all((*state.isr, *elr), leadership.maximal_isr)
        if not wrong or len(leadership.isr) < view.min_isr_of_leader(leadership):
            return ""
        return f"leader {state.leader} {wrong}"


class MinIsrRecoveryQuorum(Invariant):
    """While ISR and ELR are empty, the last known ELR has at least min ISR members (E27)."""

    AFTER_BROKERS = False

    def check(self, view: PartitionView) -> str:
        state, truth = view.state, view.truth
        if state is None or state.isr or state.elr or not self.truth.features.track_last_known_leader:
            return ""
        if truth.reached_min_isr and len(state.last_known_elr) < truth.min_isr:
            return f"ISR and ELR are empty, last known ELR is {state.last_known_elr}, min ISR {truth.min_isr}"
        return ""


class ValidControllerIsrAndElr(Invariant):
    """ISR and ELR are disjoint sets of replicas, the leader is in the ISR, and ELR is empty once min ISR is reached. In
    `kip-966-elr`, as in Kafka's first phase, an ELR may stay that an election from it has made superfluous, and members
    of it that a reassignment has moved away.
    """

    AFTER_BROKERS = False

    def check(self, view: PartitionView) -> str:
        state = view.state
        if state is None:
            return ""
        features = self.truth.features
        isr, elr = set(state.isr), set(state.elr)
        assigned = isr if features.last_known_leader_in_elr else isr | elr
        wrong = []
        if isr & elr or not assigned <= {*state.replicas}:
            wrong.append("ISR and ELR are not disjoint sets of replicas")
        if of_isr := rules.leader_is_in_isr(state):
            wrong.append(of_isr)
        if not features.elr and (elr or not isr):
            wrong.append("without ELR the ISR is never empty and the ELR always is")
        if features.track_last_known_leader and elr and len(isr) >= view.min_isr:
            wrong.append("the ELR is not empty though min ISR is reached")
        return f"{'; '.join(wrong)}: ISR {state.isr}, ELR {state.elr}" if wrong else ""


class LastKnownElrIsAssigned(Invariant):
    """The last known ELR of a partition without leader names replicas only (E34): a controller must be able to decide
    on what it has recorded, and another broker holds nothing that it could elect or ask.
    """

    AFTER_BROKERS = False

    def check(self, view: PartitionView) -> str:
        state = view.state
        if state is None or state.leader != NO_LEADER or set(state.last_known_elr) <= set(state.replicas):
            return ""
        return f"last known ELR {state.last_known_elr} of replicas {state.replicas}"


class MetadataLogMatching(Invariant):
    """A broker that has replayed as much of the metadata log as the controller has the same state of the partition."""

    def check(self, view: PartitionView) -> str:
        node, partition, image, nodes = view.node, view.partition, view.image, self.truth.cluster.nodes
        broker = nodes.get(node)
        if image is None:
            return ""
        for other in nodes if isinstance(broker, ControllerNode) else (node,):
            replica = nodes.get(other)
            if isinstance(replica, BrokerNode) and replica.context.image.next_offset > image.next_offset:
                replayed = replica.context.image.next_offset
                return f"broker {other} has replayed {replayed} records, the controller {image.next_offset}"
        if not isinstance(broker, BrokerNode) or broker.context.image.next_offset < image.next_offset:
            return ""
        topic = broker.context.image.topic_named(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        same = state is view.state or state == view.state
        return "" if same else f"broker {node} has {state}, the controller {view.state}"


class ValidControllerState(Invariant):
    """No leader or member of an ISR is fenced, shutting down or unregistered. In generations without ELR the last
    member of an ISR stays in it, without leading (K4); so do the members of an ELR that a downgrade has put into it
    (K10), as long as none of them is active.
    """

    AFTER_BROKERS = False

    def check(self, view: PartitionView) -> str:
        state, image = view.state, view.image
        if state is None or image is None:
            return ""
        if state.leader != NO_LEADER and not image.is_active(state.leader):
            return f"leader {state.leader} is not active"
        wrong = [broker for broker in state.isr if not image.is_active(broker)]
        all_are_down = state.leader == NO_LEADER and len(wrong) == len(state.isr)
        if not self.truth.features.elr and (len(state.isr) == 1 or all_are_down):
            return ""
        return f"ISR members {wrong} are not active" if wrong else ""


class _StepCheck(Invariant):
    """Compares the controller's state of a partition with the one that was committed before it."""

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if not isinstance(trace, PartitionChanged):
            return ""
        partition = trace.partition
        state, before = self.truth.controller_state(partition), self.truth.of(partition).state
        if state is None or before is None or state is before or before.first_leader_epoch != state.first_leader_epoch:
            return ""
        return self._step(partition, before, state)

    @abstractmethod
    def _step(self, partition: TopicPartition, before: PartitionState, state: PartitionState) -> str:
        """The violation in the step from `before` to `state`, which may be several records of one batch."""


class EpochsRise(_StepCheck):
    """As `rules.epochs_rise`."""

    def _step(self, partition: TopicPartition, before: PartitionState, state: PartitionState) -> str:
        return "" if state == before else rules.epochs_rise(before, state)


class RecoveryStateKept(_StepCheck):
    """A leader that was neither in ISR nor in ELR makes the partition RECOVERING, and it stays so until the leader
    itself ends that: no election does (KIP-704; C5, N13). The proposal with which a reassignment completes may bring a
    replica into the ISR and make it lead with the same record; and the leader's own proposal that ends RECOVERING may
    complete one, which raises the leader epoch though the leader stays.
    """

    def _step(self, partition: TopicPartition, before: PartitionState, state: PartitionState) -> str:
        elected = state.leader != NO_LEADER and state.leader_epoch > before.leader_epoch
        recovering = state.leader_recovery_state is LeaderRecoveryState.RECOVERING
        was_moving = bool(before.removing_replicas or before.adding_replicas)
        completed = was_moving and not (state.removing_replicas or state.adding_replicas)
        if elected and not completed and state.leader not in before.isr + before.elr and not recovering:
            return f"leader {state.leader} was in neither ISR {before.isr} nor ELR {before.elr}, and is not RECOVERING"
        was = before.leader_recovery_state is LeaderRecoveryState.RECOVERING
        stays = completed and state.leader == before.leader
        if was and not recovering and state.leader_epoch != before.leader_epoch and not stays:
            return f"the election of {state.leader} has ended RECOVERING"
        return ""


class RecoveringIsrIsOne(Invariant):
    """While a partition is RECOVERING its ISR has no second member (KIP-704; C11)."""

    AFTER_BROKERS = False

    def check(self, view: PartitionView) -> str:
        state = view.state
        if state is None or state.leader_recovery_state is not LeaderRecoveryState.RECOVERING or len(state.isr) <= 1:
            return ""
        return f"the partition is RECOVERING, and its ISR is {state.isr}"


class ReassignmentsEnd(_StepCheck):
    """A change that leaves all replicas of a reassignment's final assignment in sync completes it: nothing is left for
    which it could wait (E32). Where the ISR becomes complete by an election, the next change completes it.
    """

    def _step(self, partition: TopicPartition, before: PartitionState, state: PartitionState) -> str:
        final = set(state.replicas).difference(state.removing_replicas)
        is_moving = bool(state.adding_replicas or state.removing_replicas)
        if not is_moving or not final or not final.issubset(state.isr) or state.leader != before.leader:
            return ""
        lists = f"adding {state.adding_replicas}, removing {state.removing_replicas}"
        return f"a reassignment waits for nothing: replicas {state.replicas}, {lists}, ISR {state.isr}"


class ReassignmentKeepsMinIsr(_StepCheck):
    """A reassignment ends, completed or cancelled, with min ISR members in sync. It completes with all that it adds
    among them, with all replicas where it adds fewer than it removes, and with two where it removes any (E32, E33,
    M75). The generations before `kip-966` follow Kafka's code, which waits for less or for more.
    """

    def _step(self, partition: TopicPartition, before: PartitionState, state: PartitionState) -> str:
        image = self.truth.controller_image()
        moved = before.adding_replicas or before.removing_replicas or set(before.replicas) != set(state.replicas)
        over = not state.adding_replicas and not state.removing_replicas
        if image is None or not self.truth.features.track_last_known_leader or not moved or not over:
            return ""
        topic_id = image.topic_ids[partition.topic]
        if self.truth.features.unclean_recovery:
            prefers_availability = image.config(topic_id, UNCLEAN_RECOVERY_STRATEGY) == "proactive"
        else:
            prefers_availability = bool(image.config(topic_id, UNCLEAN_LEADER_ELECTION_ENABLE))
        if prefers_availability:
            return ""
        original = set(before.replicas).difference(before.adding_replicas)
        added, removed = set(state.replicas) - original, original - set(state.replicas)
        missing = sorted(awaited_replicas(state.replicas, added, removed).difference(state.isr))
        if missing:
            return f"a reassignment is complete, {missing} are not in ISR {state.isr}"
        if len(state.isr) < copies_of_completed(self.truth.min_isr(partition, state), len(state.replicas), removed):
            return f"a reassignment has ended with ISR {state.isr} of {state.replicas}"
        return ""
