"""Broker events as records: registration, fencing, unfencing, controlled shutdown, unclean restart.

Each function returns the records of one event, partition changes first and the registration change last where Kafka
has it so; nothing is changed here. Whoever leaves an ISR because of the event is not acceptable as a leader in the
same decision; whoever is unfenced by it already is.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.ids import BrokerId, Epoch, TopicIdPartition
from protocol.messages.records import BrokerRegistrationChangeRecord, MetadataRecord, RegisterBrokerRecord

_NOBODY = -1


def _leader_and_isr_updates(
    state: ControllerState,
    partitions: list[TopicIdPartition],
    remove: BrokerId = _NOBODY,
    add: BrokerId = _NOBODY,
    unclean: BrokerId = _NOBODY,
) -> list[MetadataRecord]:
    image = state.image

    def acceptable(broker: BrokerId) -> bool:
        return broker not in (remove, unclean) and (broker == add or image.is_active(broker))

    records: list[MetadataRecord] = []
    for key in partitions:
        partition = image.partition(key)
        if partition is None:
            continue
        record = state.change(
            key,
            is_acceptable_leader=acceptable,
            target_isr=tuple(broker for broker in partition.isr if broker not in (remove, unclean)),
            unclean_shutdown_replicas=None if unclean == _NOBODY else (unclean,),
        )
        if record is not None:
            records.append(record)
    return records


def leave_in_sync_replicas(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """The broker is taken out of every ISR, and its partitions get other leaders."""
    return _leader_and_isr_updates(state, state.partitions_in_sync_with(broker), remove=broker)


def leave_for_unclean_shutdown(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """The broker is taken out of every ISR and ELR: nobody vouches for what it holds (E20)."""
    return _leader_and_isr_updates(state, state.partitions_with(broker), unclean=broker)


def fence(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """The broker is taken out of every ISR, its partitions get other leaders, and it is fenced."""
    return [
        *leave_in_sync_replicas(state, broker),
        BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, fenced=True),
    ]


def unfence(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """The broker may lead again: leaderless partitions are looked at with it."""
    return [
        BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, fenced=False),
        *_leader_and_isr_updates(state, state.leaderless(), add=broker),
    ]


def begin_controlled_shutdown(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """Leaderships move away while the broker still serves."""
    return [
        BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, in_controlled_shutdown=True),
        *leave_in_sync_replicas(state, broker),
    ]


def register(
    state: ControllerState, broker: BrokerId, incarnation_id: str, previous_epoch: Epoch, rack: str | None
) -> list[MetadataRecord]:
    """A new incarnation. Its epoch is the offset that its registration record will have.

    If it does not bring the epoch that the controller knows, its last shutdown was unclean and it leaves every ISR
    and ELR (E20, E21), and so it does if the controller knows none; below the metadata version that brings ELR the ISR
    is left alone, and nothing is in an ELR (K7, N36).
    """
    records: list[MetadataRecord] = []
    known = state.image.brokers.get(broker)
    if (known is None or known.broker_epoch != previous_epoch) and state.image.features.elr:
        records = leave_for_unclean_shutdown(state, broker)
    registration = RegisterBrokerRecord(
        broker_id=broker,
        broker_epoch=state.image.next_offset + len(records),
        incarnation_id=incarnation_id,
        rack=rack,
    )
    return [*records, registration]
