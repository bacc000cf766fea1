"""One recovery: which replicas to query, which answers count, when they suffice for a decision, and which replica wins.

An answer counts if it comes from the broker incarnation that the controller has registered (F8), from a replica whose
metadata has the partition's leader epoch (F9), and without an error; otherwise the replica is queried again (F10).
Since the partition has no leader in that epoch, the log of such a replica does not change, and its answer stays valid.

When the recovery is decided (KIP-966; F11, F12; F28 forbids to count replies):

| mode | not before | then at once when | otherwise |
|---|---|---|---|
| balanced | all `required` replicas have answered | all other queried replicas have answered, too | at the deadline |
| proactive | one of the `holders` has answered | all holders and all queried replicas have answered | at the deadline |

Holders are the replicas that may hold the most records (`controller/recovery_decisions.py`). A proactive recovery waits
for those that are fenced, which may come back before the deadline with more records. A balanced one does not: all
replicas that were last known to be complete have answered; without a required replica it is never decided (F29).

The replica whose last record has the highest leader epoch wins: it has followed the latest leader, whereas a longer log
of an older epoch has records that this leader never had. Among those the longest log wins. Among equal logs a required
replica (in a balanced recovery a member of the last known ELR) precedes the others, which therefore win only with more
records (F30); then the order of the assignment decides, so that the same answers always elect the same leader (F5, F6,
M61).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.ids import BrokerId, Epoch, TimeMs, TopicIdPartition
from protocol.messages.recovery import (
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoveryMode,
    ReplicaAnswer,
    ReplicaLogInfo,
)

ONLY_ANSWER = "it alone answered"
HIGHEST_EPOCH = "its last record has the highest leader epoch"
LONGEST_LOG = "of those with the highest leader epoch its log is the longest"
LAST_KNOWN = "of those with the longest log it is the first in the last known ELR"
FIRST_REPLICA = "of those with the longest log it is the first in the assignment"


class Ranked(NamedTuple):
    leader: BrokerId
    reason: str


def best(
    answers: Iterable[ReplicaAnswer], assignment: Sequence[BrokerId], required: Collection[BrokerId] = ()
) -> Ranked:
    """The winner among one or more answers of replicas in `assignment`, of which those in `required` had to answer."""
    in_order = sorted(answers, key=lambda answer: assignment.index(answer.broker_id))
    in_order.sort(key=lambda answer: answer.broker_id not in required)
    ranked = sorted(in_order, key=_rank, reverse=True)
    first, others = ranked[0], ranked[1:]
    if not others:
        reason = ONLY_ANSWER
    elif others[0].last_written_leader_epoch < first.last_written_leader_epoch:
        reason = HIGHEST_EPOCH
    elif _rank(others[0]) < _rank(first):
        reason = LONGEST_LOG
    elif first.broker_id in required and any(
        _rank(other) == _rank(first) and other.broker_id not in required for other in others
    ):
        reason = LAST_KNOWN
    else:
        reason = FIRST_REPLICA
    return Ranked(first.broker_id, reason)


def _rank(answer: ReplicaAnswer) -> tuple[int, int]:
    return answer.last_written_leader_epoch, answer.log_end_offset


@dataclass(slots=True)
class RecoveryTask:
    """The latest request came at `requested_ms`; `answers`: those that count; `reported`: their result was sent."""

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
        """Records an answer if it counts (F8, F9); returns whether it does."""
        is_registered = self._epochs().get(broker) == broker_epoch
        knows_leader_epoch = info.current_leader_epoch == self.recovery.leader_epoch
        if info.error is not ErrorCode.NONE or not is_registered or not knows_leader_epoch:
            return False
        self.answers[broker] = ReplicaAnswer(
            broker_id=broker,
            broker_epoch=broker_epoch,
            last_written_leader_epoch=info.last_written_leader_epoch,
            log_end_offset=info.log_end_offset,
        )
        return True

    def result(self, now_ms: TimeMs) -> PartitionRecoveryResult | None:
        """The replica to elect and the answers; None until the recovery is decided."""
        recovery = self.recovery
        answered, is_proactive = self.answers.keys(), recovery.mode is RecoveryMode.PROACTIVE
        if is_proactive:
            suffice = not answered.isdisjoint(recovery.holders)
        else:
            suffice = bool(recovery.required) and answered >= set(recovery.required)
        may_improve = bool(self.unanswered()) or (is_proactive and not answered >= set(recovery.holders))
        if not suffice or (may_improve and now_ms < self.deadline_ms):
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
