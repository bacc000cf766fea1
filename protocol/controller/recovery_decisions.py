"""What a leaderless partition needs, and which recovery that is: decisions from the metadata alone.

KIP-966 in the order in which it decides (F3, F4; F29 for the empty last known ELR):

| there is | proactive | balanced | manual |
|---|---|---|---|
| a member of ISR or ELR (none that may lead) | recovery, now | it is waited for | it is waited for |
| a last known ELR, all of whose members may lead | recovery, now | recovery, now | a user must act |
| a last known ELR with others | recovery, now | they are waited for | a user must act |
| none of these | recovery, now | a user must act | a user must act |

Who may lead is unfenced and not shutting down. A member of ISR or ELR that may lead has been elected in the record that
made it so, so it is not in the table. Where the level of `unclean.recovery.enabled` is 0 nothing is recovered, whatever
the strategy says.

A user may ask for a recovery of a leaderless partition in either mode, whatever the strategy (F22, J4). A balanced one
then needs all members of ISR, ELR and last known ELR: each of them may hold what the others lack.

`is_result_valid` checks a result against the present metadata.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from protocol.config import UNCLEAN_RECOVERY_STRATEGY
from protocol.ids import NO_LEADER, BrokerId, TopicIdPartition
from protocol.messages.control import BrokerState
from protocol.messages.recovery import PartitionRecovery, PartitionRecoveryResult, RecoveryMode
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState


class RecoveryNeed(Enum):
    """What a partition waits for."""

    NOTHING = "it is led, or recovery is off"
    ELIGIBLE = "a member of ISR or ELR"
    LAST_KNOWN = "members of the last known ELR"
    RECOVERY = "a recovery"
    USER = "a user"


class RecoveryQuery(NamedTuple):
    """A recovery as the metadata wants it: in which mode, whom to ask, and whom to hear in any case."""

    mode: RecoveryMode
    replicas: tuple[BrokerState, ...]
    required: tuple[BrokerId, ...]


def recovery_need(image: MetadataImage, key: TopicIdPartition, partition: PartitionState) -> RecoveryNeed:
    """See the table of the module."""
    if partition.leader != NO_LEADER or not image.features.unclean_recovery:
        return RecoveryNeed.NOTHING
    strategy = image.config(key.topic_id, UNCLEAN_RECOVERY_STRATEGY)
    if strategy == "proactive":
        return RecoveryNeed.RECOVERY
    if not {*partition.isr, *partition.elr}.isdisjoint(partition.replicas):
        return RecoveryNeed.ELIGIBLE
    if strategy == "manual" or not partition.last_known_elr:
        return RecoveryNeed.USER
    return RecoveryNeed.RECOVERY if all(map(image.is_active, partition.last_known_elr)) else RecoveryNeed.LAST_KNOWN


def strategy_query(image: MetadataImage, key: TopicIdPartition, partition: PartitionState) -> RecoveryQuery | None:
    """The recovery that the strategy wants; None for none, or while there is nobody to ask."""
    if recovery_need(image, key, partition) is not RecoveryNeed.RECOVERY:
        return None
    proactive = image.config(key.topic_id, UNCLEAN_RECOVERY_STRATEGY) == "proactive"
    return query_for(image, partition, RecoveryMode.PROACTIVE if proactive else RecoveryMode.BALANCED)


def query_for(image: MetadataImage, partition: PartitionState, mode: RecoveryMode) -> RecoveryQuery | None:
    """A recovery of a leaderless partition in a mode; None where it has nobody to ask, or lacks those whom it must
    hear.
    """
    replicas = tuple(
        BrokerState(broker_id=broker, broker_epoch=image.brokers[broker].broker_epoch)
        for broker in partition.replicas
        if image.is_active(broker)
    )
    if mode is RecoveryMode.PROACTIVE:
        return RecoveryQuery(mode, replicas, ()) if replicas else None
    required = tuple(sorted({*partition.isr, *partition.elr, *partition.last_known_elr}))
    present = {replica.broker_id for replica in replicas}
    return RecoveryQuery(mode, replicas, required) if required and present.issuperset(required) else None


def is_result_valid(
    image: MetadataImage, partition: PartitionState, recovery: PartitionRecovery, result: PartitionRecoveryResult
) -> bool:
    """Whether the result of a recovery still holds; see the module docstring."""
    return (
        result.recovery_id == recovery.recovery_id
        and _is_still_leaderless(partition, result)
        and _all_required_answered(recovery, result)
        and _incarnations_are_registered(image, result)
        and image.is_active(result.leader)
    )


def _is_still_leaderless(partition: PartitionState, result: PartitionRecoveryResult) -> bool:
    """F9, F16: the partition is as leaderless as it was when the replicas were asked."""
    return partition.leader == NO_LEADER and result.leader_epoch == partition.leader_epoch


def _all_required_answered(recovery: PartitionRecovery, result: PartitionRecoveryResult) -> bool:
    """F11: the winner has answered, and all who must be heard."""
    answered = {answer.broker_id for answer in result.answers}
    return answered.issuperset({result.leader, *recovery.required})


def _incarnations_are_registered(image: MetadataImage, result: PartitionRecoveryResult) -> bool:
    """F8: nobody has restarted since."""
    return all(image.broker_epoch(answer.broker_id) == answer.broker_epoch for answer in result.answers)
