"""One recovery: whom to ask for a partition, which answers count, and when enough of them are there.

An answer counts if it comes from the life of the broker that the controller has registered (F8), from a replica whose
metadata knows the partition's leader epoch (F9), and without an error; any other is asked for again (F10). Since the
partition has no leader in that epoch, the log of a replica that knows the epoch stays as it is, so an answer that
counts goes on counting, however late it comes.

When it is decided (KIP-966; F11, F12, F28 forbids to count replies):

| mode | nobody is chosen before | then at once when | else |
|---|---|---|---|
| balanced | all `required` replicas have answered | all others that were asked have answered too | at the deadline |
| proactive | anyone has answered | all that were asked have answered | at the deadline |

What is required and has not answered by the deadline is waited for; so is, in a proactive recovery, the first answer
of all. A balanced recovery that requires nobody would be over before it has begun: there is none (F29; the controller
leaves such a partition to the user), and a task of that kind never decides.
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
    """A recovery under way. `recovery` is the controller's latest word on it, which came at `stated_ms`; `answers` are
    those that count; `told`: the controller has been told whom to elect, for the answers that there are.
    """

    recovery: PartitionRecovery
    began_ms: TimeMs
    stated_ms: TimeMs
    told: bool = False
    answers: dict[BrokerId, ReplicaAnswer] = field(default_factory=dict)

    @classmethod
    def begin(cls, recovery: PartitionRecovery, now_ms: TimeMs) -> RecoveryTask:
        return cls(recovery, now_ms, now_ms)

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.recovery.topic_id, self.recovery.partition_id)

    @property
    def deadline_ms(self) -> TimeMs:
        """Until when all that are asked are waited for, by the timeout that the controller named last."""
        return self.began_ms + self.recovery.timeout_ms

    def restate(self, recovery: PartitionRecovery, now_ms: TimeMs) -> None:
        """The controller has said again what it wants of this recovery: answers of replicas that it does not name, or
        not in this life, count no more.
        """
        self.recovery, self.stated_ms = recovery, now_ms
        epochs = self._epochs()
        self.answers = {
            broker: answer for broker, answer in self.answers.items() if epochs.get(broker) == answer.broker_epoch
        }

    def _epochs(self) -> dict[BrokerId, Epoch]:
        return {replica.broker_id: replica.broker_epoch for replica in self.recovery.replicas}

    def unheard(self) -> list[BrokerId]:
        """Who has not given an answer that counts."""
        return [replica.broker_id for replica in self.recovery.replicas if replica.broker_id not in self.answers]

    def take(self, broker: BrokerId, broker_epoch: Epoch, info: ReplicaLogInfo) -> bool:
        """Whether the answer counts (then it is kept)."""
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
        """F8: a broker that has restarted may have lost what it answered with before."""
        return self._epochs().get(broker) == broker_epoch

    def _knows_leader_epoch(self, info: ReplicaLogInfo) -> bool:
        """F9: a replica that lives in an older epoch may still append, or truncate."""
        return info.current_leader_epoch == self.recovery.leader_epoch

    def result(self, now_ms: TimeMs) -> PartitionRecoveryResult | None:
        """Whom to elect; None as long as that is not to be said."""
        recovery = self.recovery
        if not self.answers or not self._has_required():
            return None
        if self.unheard() and now_ms < self.deadline_ms:
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
            silent=tuple(self.unheard()),
        )

    def _has_required(self) -> bool:
        if self.recovery.mode is RecoveryMode.PROACTIVE:
            return True
        required = self.recovery.required
        return bool(required) and all(broker in self.answers for broker in required)
