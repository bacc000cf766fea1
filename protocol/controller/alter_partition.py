"""AlterPartition: which ISR proposals of a leader the controller accepts (KIP-497, KIP-704, KIP-903).

The checks have Kafka's order (B18-B23, C11); the records of a request are one batch (B15). A departure from Kafka:
where a request has two proposals for one partition, Kafka checks both against the state before the request; here the
second is answered with INVALID_UPDATE_VERSION if the first has changed anything.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, BrokerId, TopicIdPartition, partition_key
from protocol.messages.control import AlterPartitionRequest, BrokerState, PartitionIsrProposal, PartitionIsrResult
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState, PartitionState


def decide(
    state: ControllerState, request: AlterPartitionRequest
) -> tuple[list[ErrorCode], list[PartitionChangeRecord]]:
    """The error of each proposal, and the records of those that change something; the broker epoch has been checked."""
    errors: list[ErrorCode] = []
    records: dict[TopicIdPartition, PartitionChangeRecord] = {}
    for proposal in request.partitions:
        key = partition_key(proposal.topic_id, proposal.partition_id)
        error = validate(state, request.broker_id, proposal)
        if error is ErrorCode.NONE and key in records:
            error = ErrorCode.INVALID_UPDATE_VERSION
        record = propose(state, proposal) if error is ErrorCode.NONE else None
        if record is not None:
            records[key] = record
        errors.append(error)
    return errors, list(records.values())


def result(
    image: MetadataImage, leader: BrokerId, proposal: PartitionIsrProposal, error: ErrorCode
) -> PartitionIsrResult:
    """The answer after the replay; NEW_LEADER_ELECTED where a completed reassignment elected another leader."""
    topic_id, partition_id = proposal.topic_id, proposal.partition_id
    state = image.partition(partition_key(topic_id, partition_id))
    if error is ErrorCode.NONE and state is not None and state.leader == leader:
        return PartitionIsrResult.unchecked(
            topic_id=topic_id,
            partition_id=partition_id,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            leader_recovery_state=int(state.leader_recovery_state),
            partition_epoch=state.partition_epoch,
            metadata_offset=image.next_offset,
        )
    error = error or ErrorCode.NEW_LEADER_ELECTED
    return PartitionIsrResult.unchecked(topic_id=topic_id, partition_id=partition_id, error=error)


def validate(state: ControllerState, leader: BrokerId, proposal: PartitionIsrProposal) -> ErrorCode:
    """NONE where the proposal of broker `leader` is accepted, else its error."""
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
    if proposal.leader_recovery_state not in list(LeaderRecoveryState):
        return ErrorCode.INVALID_REQUEST
    has_recovered = partition.leader_recovery_state is LeaderRecoveryState.RECOVERED or len(isr) > 1
    if proposal.leader_recovery_state == LeaderRecoveryState.RECOVERING and has_recovered:
        return ErrorCode.INVALID_REQUEST
    for member in proposal.new_isr:
        if not state.image.is_active(member.broker_id) or not has_registered_epoch(state.image, member):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def has_registered_epoch(image: MetadataImage, member: BrokerState) -> bool:
    """Whether the member fetched under the registered broker epoch, or is proposed without an epoch (KIP-903)."""
    return member.broker_epoch in (NO_EPOCH, image.broker_epoch(member.broker_id))


def propose(state: ControllerState, proposal: PartitionIsrProposal) -> PartitionChangeRecord | None:
    """The record of an accepted proposal, None if it changes nothing. The ISR keeps the order of the proposal."""
    return state.change(
        partition_key(proposal.topic_id, proposal.partition_id),
        target_isr=tuple(member.broker_id for member in proposal.new_isr),
        target_leader_recovery_state=proposal.leader_recovery_state,
    )
