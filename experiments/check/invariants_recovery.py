"""Invariants of unclean recovery, judged at the moment at which the controller is about to record its outcome.

The trace event `recovery` says what the controller goes by; it is held against the state that was committed before it,
and against what the disks say. An answer that was given in the present leader epoch goes on being true while nobody
leads, since nobody appends then and nobody truncates; so the logs themselves tell whether an answer was one to go by.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from experiments.check.invariants_base import Invariant
from experiments.check.truth import GroundTruth, Scene
from protocol.config import UNCLEAN_RECOVERY_TIMEOUT_MS
from protocol.events.base import PartitionTrace
from protocol.events.controller import RecoveryBegan, RecoveryDecided
from protocol.ids import NO_LEADER, BrokerId, Epoch, NodeId, Offset, TimeMs, TopicPartition


class _Answer(NamedTuple):
    broker: BrokerId
    broker_epoch: Epoch
    last_epoch: Epoch
    end: Offset


class _Wait(NamedTuple):
    """Since when a recovery waits for answers, and for how long at first."""

    since_ms: TimeMs
    timeout_ms: int


def _timeout_ms(scene: Scene) -> int:
    """`unclean.recovery.timeout.ms` as it counts for the partition's topic."""
    assert scene.image is not None
    topic = scene.image.topic_named(scene.partition.topic)
    return scene.image.int_config(None if topic is None else topic.topic_id, UNCLEAN_RECOVERY_TIMEOUT_MS)


class _OutcomeCheck(Invariant):
    """Judges outcomes of recoveries: `truth.state` is the partition as the recovery found it."""

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if not isinstance(trace, RecoveryDecided):
            return ""
        return self._judge(self.truth.scene(node, trace.partition), trace)

    @abstractmethod
    def _judge(self, scene: Scene, outcome: RecoveryDecided) -> str:
        """What is wrong with the outcome that the controller is about to record."""


def _answers(outcome: RecoveryDecided) -> list[_Answer]:
    return [_Answer(*answer) for answer in outcome.answers]


class RecoveryElectsWhoAnswered(_OutcomeCheck):
    """The winner has answered, and every answer is of the life under which its broker is registered (F8)."""

    def _judge(self, scene: Scene, outcome: RecoveryDecided) -> str:
        assert scene.image is not None
        for answer in _answers(outcome):
            epoch = scene.image.broker_epoch(answer.broker)
            if epoch != answer.broker_epoch:
                return f"broker {answer.broker} answered in epoch {answer.broker_epoch}, and is registered in {epoch}"
        if outcome.leader not in {answer.broker for answer in _answers(outcome)}:
            return f"broker {outcome.leader} is to lead, and has not answered"
        return ""


class RecoveryAnswersHold(_OutcomeCheck):
    """A replica that answered lives in the leader epoch of the recovery, and what it answered is still what its log
    says (F9).
    """

    def _judge(self, scene: Scene, outcome: RecoveryDecided) -> str:
        for answer in _answers(outcome):
            replica = scene.replica_of(answer.broker)
            if replica is None or not scene.is_registered(answer.broker):
                continue
            log = replica.log
            if replica.leader_epoch < outcome.leader_epoch:
                return f"broker {answer.broker} answered, and lives in epoch {replica.leader_epoch}"
            if (log.latest_epoch, log.end_offset) != (answer.last_epoch, answer.end):
                found = f"epoch {log.latest_epoch} and end {log.end_offset}"
                return f"broker {answer.broker} answered epoch {answer.last_epoch} and end {answer.end}; it has {found}"
        return ""


class RecoveryElectsTheMost(_OutcomeCheck):
    """Nobody who answered has a later leader epoch than the winner, or a longer log of the same (F5, M61)."""

    def _judge(self, scene: Scene, outcome: RecoveryDecided) -> str:
        held = {answer.broker: (answer.last_epoch, answer.end) for answer in _answers(outcome)}
        leader = outcome.leader
        more = sorted(broker for broker in held if leader in held and held[broker] > held[leader])
        return f"broker {leader} is to lead, and {more} have more: {held}" if more else ""


class RecoveryHearsAllItMust(_OutcomeCheck):
    """A balanced recovery has heard of all members of ISR, ELR and last known ELR, of whom there is at least one (F11,
    F29); and as long as the timeout lasts any recovery waits for all whom it asks (F11, F12). The timeout may be
    changed meanwhile, and the manager hears of it later than the log: the shorter one counts.
    """

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._began: dict[TopicPartition, _Wait] = {}

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if isinstance(trace, RecoveryBegan):
            timeout_ms = _timeout_ms(self.truth.scene(node, trace.partition))
            self._began[trace.partition] = _Wait(self.truth.cluster.now_ms, timeout_ms)
        return super().observe(node, trace)

    def _judge(self, scene: Scene, outcome: RecoveryDecided) -> str:
        assert scene.image is not None
        before = scene.truth.state
        heard = {answer.broker for answer in _answers(outcome)}
        required = {*before.isr, *before.elr, *before.last_known_elr} if before is not None else set()
        if outcome.mode == "balanced" and not (required and required <= heard):
            return f"of {sorted(required)}, who had to be heard, {sorted(required - heard)} have not answered"
        began = self._began.get(scene.partition, _Wait(0, 0))
        waited_ms = self.truth.cluster.now_ms - began.since_ms
        timeout_ms = min(began.timeout_ms, _timeout_ms(scene))
        if outcome.silent and waited_ms < timeout_ms:
            return f"after {waited_ms} of {timeout_ms} ms {outcome.silent} are not waited for"
        return ""

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        self._began = {partition: wait for partition, wait in self._began.items() if not is_gone(partition)}


class RecoveryOnlyWhereNobodyCanLead(_OutcomeCheck):
    """A recovery elects only while it is enabled, nobody leads, and nobody of ISR and ELR may (F16, M72)."""

    def _judge(self, scene: Scene, outcome: RecoveryDecided) -> str:
        state, image = scene.truth.state, scene.image
        if state is None or image is None or not image.features.unclean_recovery:
            return "recovery is disabled, or the partition is gone"
        if (state.leader, state.leader_epoch) != (NO_LEADER, outcome.leader_epoch):
            asked = outcome.leader_epoch
            return f"broker {state.leader} leads in epoch {state.leader_epoch}; asked was for epoch {asked}"
        complete = state.isr or state.elr
        candidates = [broker for broker in complete if broker in state.replicas and image.is_active(broker)]
        return f"{candidates} hold all that was committed, and may lead" if candidates else ""


class RecoveryBeginsAfresh(Invariant):
    """No two recoveries have the same id, those of other controllers included (F15)."""

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._seen: set[int] = set()

    def observe(self, node: NodeId, trace: PartitionTrace) -> str:
        if not isinstance(trace, RecoveryBegan):
            return ""
        number = trace.recovery_id
        if number in self._seen:
            return f"recovery {number} has begun before"
        self._seen.add(number)
        return ""
