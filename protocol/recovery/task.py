"""One recovery: which replicas to query, which answers count, and when they suffice for a decision.

An answer counts if it comes from the broker incarnation that the controller has registered (F8), from a replica whose
metadata has the partition's leader epoch (F9), and without an error; otherwise the replica is queried again (F10).
Since the partition has no leader in that epoch, the log of such a replica does not change, and its answer stays valid.

When the recovery is decided (KIP-966; F11, F12; F28 forbids to count replies):

| mode | not before | then at once when | otherwise |
|---|---|---|---|
| balanced | all `required` replicas have answered | all other queried replicas have answered, too | at the deadline |
| proactive | one of the `holders` has answered | all holders and all queried replicas have answered | at the deadline |

Holders are the replicas that may hold the most records (`controller/recovery_decisions.py`). Some may be fenced and
therefore not queried: such a replica may come back before the deadline with more records than all that have answered,
so a proactive recovery waits for it. A balanced one does not: all replicas that were last known to be complete have
answered. A balanced recovery with no required replica would be decided at once; the controller does not request one
(F29), and such a task never decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.errors import ErrorCode
from protocol.ids import BrokerId, Epoch, TimeMs, TopicIdPartition
from protocol.messages.recovery import (
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoveryMode,
    ReplicaAnswer,
    ReplicaLogInfo,
)
from protocol.recovery.ranking import best


@dataclass(slots=True)
class RecoveryTask:
    """A running recovery by the controller's latest request, received at `requested_ms`; `answers` are those that
    count, by broker; `reported`: their result was sent to the controller.
    """

    recovery: PartitionRecovery
    began_ms: TimeMs
    requested_ms: TimeMs
    reported: bool = False
    answers: dict[BrokerId, ReplicaAnswer] = field(default_factory=dict)

    @classmethod
    def begin(cls, recovery: PartitionRecovery, now_ms: TimeMs) -> RecoveryTask:
        return cls(recovery, now_ms, now_ms)

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.recovery.topic_id, self.recovery.partition_id)

    @property
    def deadline_ms(self) -> TimeMs:
        """Until when the task waits for further answers, by the timeout of the latest request."""
        return self.began_ms + self.recovery.timeout_ms

    def update(self, recovery: PartitionRecovery, now_ms: TimeMs) -> None:
        """Takes a repeated request: answers of replicas or broker epochs that it does not name no longer count."""
        self.recovery, self.requested_ms = recovery, now_ms
        epochs = self._epochs()
        self.answers = {
            broker: answer for broker, answer in self.answers.items() if epochs.get(broker) == answer.broker_epoch
        }

    def _epochs(self) -> dict[BrokerId, Epoch]:
        return {replica.broker_id: replica.broker_epoch for replica in self.recovery.replicas}

    def unanswered(self) -> list[BrokerId]:
        """The queried replicas without an answer that counts, in the order of the assignment."""
        return [replica.broker_id for replica in self.recovery.replicas if replica.broker_id not in self.answers]

    def record_answer(self, broker: BrokerId, broker_epoch: Epoch, info: ReplicaLogInfo) -> bool:
        """Records an answer that counts; returns whether it does."""
        if (
            info.error is not ErrorCode.NONE
            or not self._is_of_registered_incarnation(broker, broker_epoch)
            or not self._knows_leader_epoch(info)
        ):
            return False
        self.answers[broker] = ReplicaAnswer(
            broker_id=broker,
            broker_epoch=broker_epoch,
            last_written_leader_epoch=info.last_written_leader_epoch,
            log_end_offset=info.log_end_offset,
        )
        return True

    def _is_of_registered_incarnation(self, broker: BrokerId, broker_epoch: Epoch) -> bool:
        """F8: a broker that has restarted may have lost records that its earlier answer counted."""
        return self._epochs().get(broker) == broker_epoch

    def _knows_leader_epoch(self, info: ReplicaLogInfo) -> bool:
        """F9: a replica in an older leader epoch may still append or truncate."""
        return info.current_leader_epoch == self.recovery.leader_epoch

    def result(self, now_ms: TimeMs) -> PartitionRecoveryResult | None:
        """The replica to elect and the answers; None until the recovery is decided."""
        recovery = self.recovery
        if not self._suffices():
            return None
        if self._may_improve() and now_ms < self.deadline_ms:
            return None
        order = [replica.broker_id for replica in recovery.replicas]
        ranked = best(self.answers.values(), order, recovery.required)
        return PartitionRecoveryResult(
            recovery_id=recovery.recovery_id,
            topic_id=recovery.topic_id,
            partition_id=recovery.partition_id,
            leader_epoch=recovery.leader_epoch,
            leader=ranked.leader,
            reason=ranked.reason,
            answers=tuple(self.answers[broker] for broker in order if broker in self.answers),
            silent=tuple(self.unanswered()),
        )

    def _suffices(self) -> bool:
        """Whether the answers suffice for a decision at the deadline."""
        if self.recovery.mode is RecoveryMode.PROACTIVE:
            return not self.answers.keys().isdisjoint(self.recovery.holders)
        return self._has_required()

    def _may_improve(self) -> bool:
        """Whether a replica that has not answered is waited for until the deadline."""
        return bool(self.unanswered()) or (
            self.recovery.mode is RecoveryMode.PROACTIVE and not self.answers.keys() >= set(self.recovery.holders)
        )

    def _has_required(self) -> bool:
        required = self.recovery.required
        return bool(required) and all(broker in self.answers for broker in required)
