"""Brokers as records: registration, fencing, unfencing, controlled shutdown, unclean restart, unregistration.

Partition changes come before the registration change where Kafka orders them so. A broker that leaves an ISR because of
the event is not acceptable as a leader in the same decision; a broker that the event unfences is.

An operator unregisters a broker that will not return. It leaves every ISR and ELR, as after an unclean shutdown: no
broker epoch is left against which it could prove a clean shutdown, so its replicas do not count before they have caught
up (E20, E26). It is kept in the last known ELR and as last known leader, and its replicas stay assigned. Below the
metadata version that brings ELR it stays in an ISR of which it is the last member (K4). A broker that still runs learns
this from the metadata log or from its next heartbeat, and registers again. Departure: in Kafka's code the broker stays
in the ELR, because its removal is handled like a fencing; the partition then waits for a member that leaves the ELR as
soon as it registers.

Errors are Kafka's. Where Kafka has none, since its types or clients exclude the value, the error is INVALID_REQUEST, or
INVALID_REGISTRATION for a registration.
"""

from __future__ import annotations

from typing import Any

from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult
from protocol.controller.partition_change import changes_of
from protocol.errors import ErrorCode, Refused
from protocol.ids import NO_LEADER, BrokerId, Epoch, TopicIdPartition, is_broker
from protocol.kafka_rules import (
    NEW_DIRECTORY_ELECTS_NOBODY,
    NEW_DIRECTORY_EMPTIES_ELR,
    REGISTRATION_FENCES,
    UNREGISTERED_BROKER_ELIGIBLE,
)
from protocol.messages.acls import AclOperation
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.control import BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.messages.records import (
    BrokerEndpointRecord,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from protocol.metadata.authorizer import require_access
from protocol.metadata.image import MetadataImage

_NO_BROKER = -1


def _leader_and_isr_updates(
    state: ControllerState,
    partitions: list[TopicIdPartition],
    remove: BrokerId = _NO_BROKER,
    add: BrokerId = _NO_BROKER,
    unclean: BrokerId = _NO_BROKER,
) -> list[MetadataRecord]:
    """Removes `remove` and `unclean` from ISRs, `unclean` also from ELRs, and elects with `add` counted as active.
    Without ELR members that are down, which an ELR has left in the ISR (`features.py`), leave it with an election.
    Partitions of a topic in the same roles share the decision, since a broker may have thousands of them.
    """
    image = state.image
    decided: dict[tuple[object, ...], dict[str, Any]] = {}

    def acceptable(broker: BrokerId) -> bool:
        return broker not in (remove, unclean) and (broker == add or image.is_active(broker))

    records: list[MetadataRecord] = []
    for key in partitions:
        partition = image.partition(key)
        if partition is None:
            continue
        alike = key.topic_id, state.bound_of_min_isr(key, partition), *partition.roles
        changes = decided.get(alike)
        if changes is None:
            isr = tuple(broker for broker in partition.isr if broker not in (remove, unclean))
            if partition.leader == NO_LEADER and not image.features.elr:
                isr = tuple(filter(acceptable, isr)) or isr
            request = state.request(
                key,
                partition,
                is_acceptable_leader=acceptable,
                target_isr=isr,
                unclean_shutdown_replicas=None if unclean == _NO_BROKER else (unclean,),
            )
            changes = decided[alike] = changes_of(partition, request)
        if changes:
            topic_id, index = key
            records.append(PartitionChangeRecord.unchecked(topic_id=topic_id, partition_id=index, **changes))
    return records


def leave_in_sync_replicas(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """Removes the broker from every ISR and elects other leaders for its partitions."""
    return _leader_and_isr_updates(state, state.partitions_in_sync_with(broker), remove=broker)


def leave_for_unclean_shutdown(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """Removes the broker from every ISR and ELR: after an unclean shutdown it may lack committed records (E20)."""
    return _leader_and_isr_updates(state, state.partitions_with(broker), unclean=broker)


def _leave_as_if_fenced(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """As `leave_in_sync_replicas`, with an election for partitions that have the broker in their ELR alone, too."""
    return _leader_and_isr_updates(state, state.partitions_with(broker), remove=broker)


def fence(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """Removes the broker from every ISR, elects other leaders for its partitions, and fences it."""
    return [
        *leave_in_sync_replicas(state, broker),
        BrokerRegistrationChangeRecord.unchecked(broker_id=broker, broker_epoch=epoch, fenced=True),
    ]


def unfence(
    state: ControllerState, broker: BrokerId, epoch: Epoch, *, on_new_disk: bool = False
) -> list[MetadataRecord]:
    """Unfences the broker and elects for leaderless partitions, which it may lead now; not under the rule of Kafka's
    for one `on_new_disk`.
    """
    unfenced = BrokerRegistrationChangeRecord.unchecked(broker_id=broker, broker_epoch=epoch, fenced=False)
    if on_new_disk and NEW_DIRECTORY_ELECTS_NOBODY in state.config.kafka_rules:
        return [unfenced]
    return [unfenced, *_leader_and_isr_updates(state, state.leaderless(), add=broker)]


def report_directories(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """The changes of the partitions of a broker on a new disk where Kafka records their directories."""
    elr = () if NEW_DIRECTORY_EMPTIES_ELR in state.config.kafka_rules and state.image.features.elr else None
    held = (key for key, partition in state.image.partitions() if broker in partition.replicas)
    return [
        PartitionChangeRecord.unchecked(topic_id=topic_id, partition_id=index, eligible_leader_replicas=elr)
        for topic_id, index in held
    ]


def begin_controlled_shutdown(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """Moves the leaderships away from the broker while it still serves."""
    return [
        BrokerRegistrationChangeRecord.unchecked(broker_id=broker, broker_epoch=epoch, in_controlled_shutdown=True),
        *leave_in_sync_replicas(state, broker),
    ]


def register(
    state: ControllerState,
    broker: BrokerId,
    incarnation_id: str,
    previous_epoch: Epoch,
    rack: str | None,
    endpoint: str | None = None,
) -> list[MetadataRecord]:
    """Registers a new incarnation, whose broker epoch is the offset of the record. If `previous_epoch` is not the one
    that is registered, the last shutdown was unclean and the broker leaves every ISR and ELR (E20, E21); below the
    metadata version that brings ELR the ISRs stay as they are (K7, N36).
    """
    records: list[MetadataRecord] = []
    known = state.image.brokers.get(broker)
    if (known is None or known.broker_epoch != previous_epoch) and state.image.features.elr:
        records = leave_for_unclean_shutdown(state, broker)
    elif REGISTRATION_FENCES in state.config.kafka_rules:
        records = leave_in_sync_replicas(state, broker)
    registration = RegisterBrokerRecord.unchecked(
        broker_id=broker,
        broker_epoch=state.image.next_offset + len(records),
        incarnation_id=incarnation_id,
        rack=rack,
    )
    records.append(registration)
    if endpoint is not None:
        epoch = registration.broker_epoch
        records.append(BrokerEndpointRecord.unchecked(broker_id=broker, broker_epoch=epoch, endpoint=endpoint))
    return records


def unregister_broker(state: ControllerState, request: UnregisterBrokerRequest) -> ControllerResult:
    """Removes the registration; BROKER_ID_NOT_REGISTERED where there is none. Needs ALTER on the cluster."""
    require_access(state.image, request, AclOperation.ALTER)
    registration = state.image.brokers.get(request.broker_id)
    if registration is None:
        raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
    leave = leave_for_unclean_shutdown
    if UNREGISTERED_BROKER_ELIGIBLE in state.config.kafka_rules:
        leave = _leave_as_if_fenced
    records = [
        *leave(state, request.broker_id),
        UnregisterBrokerRecord(broker_id=request.broker_id, broker_epoch=registration.broker_epoch),
    ]
    return ControllerResult(UnregisterBrokerResponse(correlation_id=request.correlation_id), records)


def registration_error(image: MetadataImage, request: BrokerRegistrationRequest, has_session: bool) -> ErrorCode:
    """NONE, INVALID_REGISTRATION, or DUPLICATE_BROKER_REGISTRATION: another one is unfenced and has a session (E21)."""
    if not is_broker(request.broker_id) or not request.incarnation_id:
        return ErrorCode.INVALID_REGISTRATION
    known = image.brokers.get(request.broker_id)
    if known is None or known.incarnation_id == request.incarnation_id:
        return ErrorCode.NONE
    return ErrorCode.NONE if known.fenced or not has_session else ErrorCode.DUPLICATE_BROKER_REGISTRATION


def heartbeat_error(image: MetadataImage, request: BrokerHeartbeatRequest) -> ErrorCode:
    """NONE, or BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH, INVALID_REQUEST for an offset below 0."""
    epoch = image.broker_epoch(request.broker_id)
    if epoch is None:
        return ErrorCode.BROKER_ID_NOT_REGISTERED
    if epoch != request.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE if request.current_metadata_offset >= 0 else ErrorCode.INVALID_REQUEST
