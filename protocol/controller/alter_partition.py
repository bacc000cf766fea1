"""AlterPartition: which proposals of a leader the controller takes (KIP-497, KIP-704, KIP-903).

`validate` is the list of reasons to refuse, in the order in which they are checked (B18-B23, C11); `propose` turns an
accepted proposal into the record that it makes.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, BrokerId, TopicIdPartition
from protocol.messages.control import PartitionIsrProposal
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState


def validate(state: ControllerState, leader: BrokerId, proposal: PartitionIsrProposal) -> ErrorCode:
    """NONE, or the error that the proposal of broker `leader` is answered with."""
    topic = state.image.topics.get(proposal.topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = topic.partitions.get(proposal.partition_id)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return _validate_isr(state, leader, partition, proposal)


def _validate_isr(
    state: ControllerState, leader: BrokerId, partition: PartitionState, proposal: PartitionIsrProposal
) -> ErrorCode:
    isr = [member.broker_id for member in proposal.new_isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or leader not in isr:
        return ErrorCode.INVALID_REQUEST
    if proposal.leader_recovery_state == LeaderRecoveryState.RECOVERING and (
        partition.leader_recovery_state is LeaderRecoveryState.RECOVERED or len(isr) > 1
    ):
        return ErrorCode.INVALID_REQUEST
    for member in proposal.new_isr:
        if not state.image.is_active(member.broker_id):
            return ErrorCode.INELIGIBLE_REPLICA
        if member.broker_epoch not in (NO_EPOCH, state.image.broker_epoch(member.broker_id)):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def propose(state: ControllerState, proposal: PartitionIsrProposal) -> PartitionChangeRecord | None:
    """The record of an accepted proposal, None if it changes nothing. Order of the ISR is the leader's."""
    return state.change(
        TopicIdPartition(proposal.topic_id, proposal.partition_id),
        target_isr=tuple(member.broker_id for member in proposal.new_isr),
        target_leader_recovery_state=proposal.leader_recovery_state,
    )
