"""The controller's state of one partition, and how a change of it (`controller/partition_change.py`) is replayed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from protocol.ids import NO_LEADER, UNCHANGED_LEADER, BrokerId, Epoch
from protocol.messages.records import UNCHANGED_RECOVERY_STATE, PartitionChangeRecord, PartitionRecord
from protocol.values import direct


@direct
class LeaderRecoveryState(IntEnum):
    """KIP-704: RECOVERING from the unclean election of the leader until it reports that it has recovered (C11)."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as the controller has recorded it.

    The order within `replicas` and `isr` is significant (the first replica is the preferred leader), that within
    `elr` and `last_known_elr` is not. `last_known_leader` is the field that `kip-966` tracks (E24, N15); Kafka's own
    first phase keeps that broker in `last_known_elr` instead. `leader_epoch` rises with every change of the leader,
    `partition_epoch` with every change. `first_leader_epoch` is the leader epoch with which the partition was created:
    records of older epochs belong to a removed partition of the same index.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    leader: BrokerId = NO_LEADER
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    leader_epoch: Epoch = 0
    partition_epoch: Epoch = 0
    last_known_leader: BrokerId = NO_LEADER
    first_leader_epoch: Epoch = 0

    @property
    def roles(self) -> tuple[object, ...]:
        """All but the epochs: who replicates, leads, is in sync or eligible."""
        lists = self.replicas, self.isr, self.elr, self.last_known_elr, self.adding_replicas, self.removing_replicas
        return (*lists, self.leader, self.leader_recovery_state, self.last_known_leader)

    def to_record(self, topic_id: str, partition_id: int) -> PartitionRecord:
        """The record that creates the partition in this state."""
        return PartitionRecord.unchecked(
            topic_id=topic_id,
            partition_id=partition_id,
            replicas=self.replicas,
            isr=self.isr,
            removing_replicas=self.removing_replicas,
            adding_replicas=self.adding_replicas,
            leader=self.leader,
            leader_recovery_state=int(self.leader_recovery_state),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            first_leader_epoch=self.first_leader_epoch,
            eligible_leader_replicas=self.elr,
            last_known_elr=self.last_known_elr,
            last_known_leader=self.last_known_leader,
        )


def effective_min_isr(min_insync_replicas: int, replica_count: int) -> int:
    """min(min.insync.replicas, replication factor): a higher value is accepted but not effective (E8, N31)."""
    return min(min_insync_replicas, replica_count)


LEAST_COPIES: Final = 2
"""In-sync replicas that a reassignment leaves at least, whatever min ISR is: a single one is lost with one disk."""


def awaited_replicas(
    final: Collection[BrokerId], adding: Collection[BrokerId], removing: Collection[BrokerId]
) -> set[BrokerId]:
    """Who must be in sync for a reassignment to complete (E32; KAFKA-19975): all, if fewer are added than removed."""
    return set(final if len(adding) < len(removing) else adding).difference(removing)


def copies_of_completed(min_isr: int, replica_count: int, removing: Collection[BrokerId]) -> int:
    """How many replicas must be in sync after a reassignment (E32, M75): LEAST_COPIES where it removes any."""
    return effective_min_isr(max(min_isr, LEAST_COPIES) if removing else min_isr, replica_count)


def replay_change(state: PartitionState, record: PartitionChangeRecord) -> PartitionState:
    """The state after a change: the partition epoch rises by one, the leader epoch if the record names a leader."""
    new_leader = record.leader != UNCHANGED_LEADER
    recovery = state.leader_recovery_state
    if record.leader_recovery_state != UNCHANGED_RECOVERY_STATE:
        recovery = LeaderRecoveryState(record.leader_recovery_state)
    return PartitionState(
        replicas=state.replicas if record.replicas is None else record.replicas,
        isr=state.isr if record.isr is None else record.isr,
        elr=state.elr if record.eligible_leader_replicas is None else record.eligible_leader_replicas,
        last_known_elr=state.last_known_elr if record.last_known_elr is None else record.last_known_elr,
        adding_replicas=state.adding_replicas if record.adding_replicas is None else record.adding_replicas,
        removing_replicas=state.removing_replicas if record.removing_replicas is None else record.removing_replicas,
        leader=record.leader if new_leader else state.leader,
        leader_recovery_state=recovery,
        leader_epoch=state.leader_epoch + 1 if new_leader else state.leader_epoch,
        partition_epoch=state.partition_epoch + 1,
        last_known_leader=(
            state.last_known_leader if record.last_known_leader == UNCHANGED_LEADER else record.last_known_leader
        ),
        first_leader_epoch=state.first_leader_epoch,
    )
