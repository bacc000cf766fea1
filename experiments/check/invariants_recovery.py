"""Invariants of unclean recovery, checked when the controller is about to record its outcome.

`RecoveryDecided` carries the responses on which the controller decides; they are compared with the state that was
committed before and with the disks. A response in the present leader epoch stays true while there is no leader, since
no replica appends or truncates then; so the logs show whether a response was valid.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from experiments.check import rules
from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, PartitionView
from experiments.engines.sim.cluster import SimCluster
from protocol.config import UNCLEAN_RECOVERY_TIMEOUT_MS
from protocol.events.base import PartitionTrace
from protocol.events.controller import RecoveryBegan, RecoveryDecided
from protocol.ids import NO_LEADER, RECOVERY_MANAGER, BrokerId, Epoch, NodeId, Offset, TimeMs, TopicPartition


class _Answer(NamedTuple):
    broker: BrokerId
    broker_epoch: Epoch
    last_epoch: Epoch
    end: Offset


class _Wait(NamedTuple):
    """When a recovery began to wait for responses, in true time and by the clock of the recovery manager, with the
    timeout and the replicas to wait for at that time.
    """

    since_ms: TimeMs
    shown_ms: TimeMs
    timeout_ms: int
    holders: frozenset[BrokerId]

    def waited_ms(self, cluster: SimCluster) -> int:
        """How long it has waited, in true time, or by the clock of the manager, which may gain time or jump ahead while
        it runs, and begins the recovery again when it restarts with another time.
        """
        return max(cluster.now_ms - self.since_ms, cluster.time_at(RECOVERY_MANAGER) - self.shown_ms)


def _begun(view: PartitionView, cluster: SimCluster) -> _Wait:
    return _Wait(cluster.now_ms, cluster.time_at(RECOVERY_MANAGER), _timeout_ms(view), _holders(view))


def _timeout_ms(view: PartitionView) -> int:
    """`unclean.recovery.timeout.ms` of the partition's topic."""
    assert view.image is not None
    topic = view.image.topic_named(view.partition.topic)
    return view.image.int_config(None if topic is None else topic.topic_id, UNCLEAN_RECOVERY_TIMEOUT_MS)


def _holders(view: PartitionView) -> frozenset[BrokerId]:
    """The registered replicas that were not empty when they joined: those of the assignment before its reassignment,
    and those that have been in sync since; all registered ones where there are none of these.
    """
    state, image = view.truth.state, view.image
    if state is None or image is None:
        return frozenset()
    registered = frozenset(state.replicas).intersection(image.brokers)
    in_sync_once = {*state.isr, *state.elr, *state.last_known_elr}
    return registered - (set(state.adding_replicas) - in_sync_once) or registered


class _OutcomeCheck(Invariant):
    """Checks outcomes of recoveries; `truth.state` is the partition's state before the outcome."""

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if not isinstance(trace, RecoveryDecided):
            return ""
        return self._check_outcome(self.truth.view(node, trace.partition), trace)

    @abstractmethod
    def _check_outcome(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        """The violation in the outcome that the controller is about to record."""


def _answers(outcome: RecoveryDecided) -> dict[BrokerId, _Answer]:
    return {answer[0]: _Answer(*answer) for answer in outcome.answers}


class RecoveryElectsRespondent(_OutcomeCheck):
    """The winner has responded, and every response is from the registered incarnation of its broker (F8)."""

    def _check_outcome(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        assert view.image is not None
        answers = _answers(outcome)
        for answer in answers.values():
            epoch = view.image.broker_epoch(answer.broker)
            if epoch != answer.broker_epoch:
                return f"broker {answer.broker} responded in epoch {answer.broker_epoch}, and is registered in {epoch}"
        return "" if outcome.leader in answers else f"broker {outcome.leader} is elected, and has not responded"


class RecoveryResponsesAreCurrent(_OutcomeCheck):
    """A replica that responded is in the leader epoch of the recovery, and its log still is as it responded (F9)."""

    def _check_outcome(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        for answer in _answers(outcome).values():
            replica = view.replica_of(answer.broker)
            if replica is None or not view.is_registered(answer.broker):
                continue
            log = replica.log
            if replica.leader_epoch < outcome.leader_epoch:
                return f"broker {answer.broker} responded, and is in epoch {replica.leader_epoch}"
            if (log.latest_epoch, log.end_offset) != (answer.last_epoch, answer.end):
                found = f"epoch {log.latest_epoch} and end {log.end_offset}"
                answered = f"epoch {answer.last_epoch} and end {answer.end}"
                return f"broker {answer.broker} responded with {answered}; it has {found}"
        return ""


class RecoveryElectsLongestLog(_OutcomeCheck):
    """No replica that responded has a later leader epoch than the winner, or a longer log of that epoch (F5, M61)."""

    def _check_outcome(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        held = {broker: (answer.last_epoch, answer.end) for broker, answer in _answers(outcome).items()}
        leader = outcome.leader
        more = sorted(broker for broker in held if leader in held and held[broker] > held[leader])
        return f"broker {leader} is elected, and {more} have more: {held}" if more else ""


class RecoveryHasRequiredResponses(_OutcomeCheck):
    """A balanced recovery has responses of all members of ISR, ELR and last known ELR, of which there is at least one
    (F11, F29). Until the timeout every recovery waits for all replicas that it queries (F11), and a proactive one also
    for those that are fenced, which may come back and hold more (F12). Timeout, registrations and assignment may change
    meanwhile, which the manager learns later than the log: the shorter timeout counts, and the replicas that were there
    at the begin and still are.
    """

    KEPT = ("_began",)

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._began: dict[TopicPartition, _Wait] = {}

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if isinstance(trace, RecoveryBegan):
            view = self.truth.view(node, trace.partition)
            self._began[trace.partition] = _begun(view, self.truth.cluster)
        return super().observe(node, trace)

    def _check_outcome(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        assert view.image is not None
        before = view.truth.state
        responded = frozenset(_answers(outcome))
        required = {*before.isr, *before.elr, *before.last_known_elr} if before is not None else set()
        if outcome.mode == "balanced" and not (required and required <= responded):
            return f"of the required {sorted(required)}, {sorted(required - responded)} have not responded"
        began = self._began.get(view.partition, _Wait(0, 0, 0, frozenset()))
        waited_ms = began.waited_ms(self.truth.cluster)
        timeout_ms = min(began.timeout_ms, _timeout_ms(view))
        awaited = set(outcome.silent)
        if outcome.mode == "proactive":
            awaited |= (began.holders & _holders(view)) - responded
        if awaited and waited_ms < timeout_ms:
            return f"after {waited_ms} of {timeout_ms} ms {sorted(awaited)} are not waited for"
        return ""


class RecoveryHearsHolder(_OutcomeCheck):
    """No recovery is decided by responses of replicas alone that a reassignment is adding and that were never in sync,
    while another replica is registered and so may come back (M62).
    """

    def _check_outcome(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        responded, holders = _answers(outcome).keys(), _holders(view)
        if holders and responded.isdisjoint(holders):
            return f"only {sorted(responded)} have responded, which are being added; {sorted(holders)} may hold more"
        return ""


class RecoveryOnlyWithoutCleanCandidate(_OutcomeCheck):
    """A recovery elects only if it is enabled, there is no leader, and no ISR or ELR member can lead (F16, M72)."""

    def _check_outcome(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        state, image = view.truth.state, view.image
        if state is None or image is None or not image.features.unclean_recovery:
            return "recovery is disabled, or the partition is gone"
        if (state.leader, state.leader_epoch) != (NO_LEADER, outcome.leader_epoch):
            asked = outcome.leader_epoch
            return f"broker {state.leader} leads in epoch {state.leader_epoch}; the recovery is of epoch {asked}"
        candidates = rules.clean_candidates(state.isr or state.elr, state.replicas, image.is_active)
        return f"{candidates} hold everything that was committed, and can lead" if candidates else ""


class RecoveryIdsAreUnique(Invariant):
    """No two recoveries have the same id, those of other controllers included (F15)."""

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._seen: set[int] = set()

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if not isinstance(trace, RecoveryBegan):
            return ""
        is_known = trace.recovery_id in self._seen
        self._seen.add(trace.recovery_id)
        return f"recovery {trace.recovery_id} has begun before" if is_known else ""


class _Left(NamedTuple):
    """A proactive recovery that was decided early: who leads since, until when it might have waited, and for whom."""

    leader: BrokerId
    until_ms: TimeMs
    holders: frozenset[BrokerId]


class RecoveryLeavesNothingReachable(Invariant):
    """No recovery gives up committed records that a replica holds which is reachable within its time (F11, F12, F28). A
    replica that was active throughout, under one broker epoch, was queried. And after a proactive recovery no holder
    becomes active within `unclean.recovery.timeout.ms` of its begin with committed records that the leader's disk
    lacks.
    """

    KEPT = ("_began", "_active", "_left")
    NEEDS_NODES = True

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._began: dict[TopicPartition, _Wait] = {}
        self._active: dict[TopicPartition, dict[BrokerId, Epoch]] = {}
        self._left: dict[TopicPartition, _Left] = {}

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        partition = trace.partition
        if isinstance(trace, RecoveryBegan):
            view = self.truth.view(node, partition)
            self._began[partition] = _begun(view, self.truth.cluster)
            self._active[partition] = _active_replicas(view)
            self._left.pop(partition, None)
        elif isinstance(trace, RecoveryDecided) and partition in self._began:
            return self._decided(self.truth.view(node, partition), trace)
        return ""

    def _decided(self, view: PartitionView, outcome: RecoveryDecided) -> str:
        began, before = self._began.pop(view.partition), self._active.pop(view.partition)
        now = _active_replicas(view)
        heard = frozenset(_answers(outcome))
        timeout_ms = min(began.timeout_ms, _timeout_ms(view))
        if outcome.mode == "proactive" and began.waited_ms(self.truth.cluster) < timeout_ms:
            missing = (began.holders & _holders(view)) - heard
            self._left[view.partition] = _Left(outcome.leader, began.since_ms + timeout_ms, missing)
        ignored = sorted(
            broker
            for broker, epoch in before.items()
            if now.get(broker) == epoch and broker not in heard and broker not in outcome.silent
        )
        return f"{ignored} were active throughout the recovery and were not queried" if ignored else ""

    def check(self, view: PartitionView) -> str:
        active = self._active.get(view.partition)
        if active:
            now = _active_replicas(view)
            self._active[view.partition] = {
                broker: epoch for broker, epoch in active.items() if now.get(broker) == epoch
            }
        left = self._left.get(view.partition)
        if left is None or view.image is None:
            return ""
        if self.truth.cluster.now_ms >= left.until_ms:
            del self._left[view.partition]
            return ""
        for broker in sorted(left.holders):
            if view.image.is_active(broker):
                self._left[view.partition] = left = left._replace(holders=left.holders - {broker})
                if kept := self.truth.only_held_by(broker, left.leader, view.partition):
                    return f"broker {broker} is back in time with records at {kept}, which leader {left.leader} lacks"
        return ""


def _active_replicas(view: PartitionView) -> dict[BrokerId, Epoch]:
    """The active replicas of the assignment with their broker epochs."""
    if view.state is None or view.image is None:
        return {}
    active = [broker for broker in view.state.replicas if view.image.is_active(broker)]
    return {broker: view.image.brokers[broker].broker_epoch for broker in active}
