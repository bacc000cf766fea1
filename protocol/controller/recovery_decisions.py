"""Decisions about unclean recovery from the metadata alone, which `recovery_requests.py` carries out.

KIP-966, in the order in which it decides (F3, F4; F29 for the empty last known ELR):

| a leaderless partition has | proactive | balanced | manual |
|---|---|---|---|
| a member of ISR or ELR (not active) | recovery, now | waits for the member | waits for the member |
| a last known ELR, all members active | recovery, now | recovery, now | waits for a user |
| a last known ELR, some members not active | recovery, now | waits for them | waits for a user |
| none of these | recovery, now | waits for a user | waits for a user |

An active member of ISR or ELR was elected in the record that made it active, so the table has no row for it. Where the
level of `unclean.recovery.enabled` is 0 no partition is recovered, whatever its strategy.

All active replicas are queried. The `holders` are those that may hold the most records, active or not: all registered
replicas, but of those that a reassignment is adding only the members of ISR, ELR and last known ELR, which were in sync
once. A recovery begins when a holder is active; and a proactive one ends before its deadline only when all holders have
answered, since a fenced one may come back within the time and hold more (F12).

An adding replica has copied an unknown part of the log. Its answer is ranked with the others, for it may hold more than
a holder that has lost its disk; but alone it decides nothing, or starting a reassignment of a leaderless partition
would discard the log. Only where no other replica is registered, so that none can ever answer, the adding replicas are
the holders.

A user may request a recovery of a leaderless partition in either mode, whatever the strategy (F22, J4). A balanced one
then requires the answers of all members of ISR, ELR and last known ELR: each may hold records that the others lack.
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
from protocol.values import direct


@direct
class RecoveryNeed(Enum):
    """What a partition waits for before it has a leader."""

    NOTHING = "it has a leader, or recovery is off"
    ELIGIBLE = "a member of ISR or ELR"
    LAST_KNOWN = "members of the last known ELR"
    RECOVERY = "a recovery"
    USER = "a user"


class RecoveryQuery(NamedTuple):
    """The `replicas` to query, in the order of the assignment, with the broker epochs of their registrations; those
    that may hold the most records, active or not; and those whose answers are `required`.
    """

    mode: RecoveryMode
    replicas: tuple[BrokerState, ...]
    holders: tuple[BrokerId, ...]
    required: tuple[BrokerId, ...]


def recovery_need(image: MetadataImage, key: TopicIdPartition, partition: PartitionState) -> RecoveryNeed:
    """What the leaderless `partition` waits for under the `unclean.recovery.strategy` of its topic (F3, F4, F29)."""
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
    """The recovery that the topic's strategy calls for; None for none, and while no holder is active."""
    if recovery_need(image, key, partition) is not RecoveryNeed.RECOVERY:
        return None
    proactive = image.config(key.topic_id, UNCLEAN_RECOVERY_STRATEGY) == "proactive"
    return query_for(image, partition, RecoveryMode.PROACTIVE if proactive else RecoveryMode.BALANCED)


def query_for(image: MetadataImage, partition: PartitionState, mode: RecoveryMode) -> RecoveryQuery | None:
    """A recovery in `mode`; None where no holder is active, or not all that a balanced recovery requires."""
    replicas = tuple(
        BrokerState(broker_id=broker, broker_epoch=image.brokers[broker].broker_epoch)
        for broker in partition.replicas
        if image.is_active(broker)
    )
    known = {*partition.isr, *partition.elr, *partition.last_known_elr}
    only_adding = set(partition.adding_replicas) - known
    registered = tuple(broker for broker in partition.replicas if broker in image.brokers)
    holders = tuple(broker for broker in registered if broker not in only_adding) or registered
    present = {replica.broker_id for replica in replicas}
    if mode is RecoveryMode.PROACTIVE:
        return None if present.isdisjoint(holders) else RecoveryQuery(mode, replicas, holders, ())
    required = tuple(sorted(known))
    return RecoveryQuery(mode, replicas, holders, required) if required and present.issuperset(required) else None


def is_result_valid(
    image: MetadataImage, partition: PartitionState, recovery: PartitionRecovery, result: PartitionRecoveryResult
) -> bool:
    """Whether the result of `recovery` may be recorded: the partition has had no leader since the replicas were queried
    (F9, F16), a holder, the winner and all required replicas have answered (F11), none of which has restarted since
    (F8), and the winner is active.
    """
    is_leaderless = partition.leader == NO_LEADER and result.leader_epoch == partition.leader_epoch
    answered = {answer.broker_id for answer in result.answers}
    return (
        result.recovery_id == recovery.recovery_id
        and is_leaderless
        and not answered.isdisjoint(recovery.holders)
        and answered.issuperset({result.leader, *recovery.required})
        and all(image.broker_epoch(answer.broker_id) == answer.broker_epoch for answer in result.answers)
        and image.is_active(result.leader)
    )
