"""Broker events as records: registration, fencing, unfencing, controlled shutdown, unclean restart.

Each function returns the records of one event and changes nothing; partition changes come before the registration
change where Kafka orders them so. A broker that leaves an ISR because of the event is not acceptable as a leader in the
same decision; a broker that the event unfences is.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.ids import NO_LEADER, BrokerId, Epoch, TopicIdPartition
from protocol.messages.records import BrokerRegistrationChangeRecord, MetadataRecord, RegisterBrokerRecord

_NO_BROKER = -1


def _leader_and_isr_updates(
    state: ControllerState,
    partitions: list[TopicIdPartition],
    remove: BrokerId = _NO_BROKER,
    add: BrokerId = _NO_BROKER,
    unclean: BrokerId = _NO_BROKER,
) -> list[MetadataRecord]:
    """Removes `remove` and `unclean` from ISRs, `unclean` also from ELRs, and elects with `add` counted as active. The
    ISR of a partition that has no leader and no ELR may have several members, which an ELR has left there
    (`features.py`): those that are down leave it when another is elected, as they would have left before.
    """
    image = state.image

    def acceptable(broker: BrokerId) -> bool:
        return broker not in (remove, unclean) and (broker == add or image.is_active(broker))

    records: list[MetadataRecord] = []
    for key in partitions:
        partition = image.partition(key)
        if partition is None:
            continue
        isr = tuple(broker for broker in partition.isr if broker not in (remove, unclean))
        if partition.leader == NO_LEADER and not image.features.elr:
            isr = tuple(filter(acceptable, isr)) or isr
        record = state.change(
            key,
            is_acceptable_leader=acceptable,
            target_isr=isr,
            unclean_shutdown_replicas=None if unclean == _NO_BROKER else (unclean,),
        )
        if record is not None:
            records.append(record)
    return records


def leave_in_sync_replicas(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """Removes the broker from every ISR and elects other leaders for its partitions."""
    return _leader_and_isr_updates(state, state.partitions_in_sync_with(broker), remove=broker)


def leave_for_unclean_shutdown(state: ControllerState, broker: BrokerId) -> list[MetadataRecord]:
    """Removes the broker from every ISR and ELR: after an unclean shutdown it may lack committed records (E20)."""
    return _leader_and_isr_updates(state, state.partitions_with(broker), unclean=broker)


def fence(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """Removes the broker from every ISR, elects other leaders for its partitions, and fences it."""
    return [
        *leave_in_sync_replicas(state, broker),
        BrokerRegistrationChangeRecord.unchecked(broker_id=broker, broker_epoch=epoch, fenced=True),
    ]


def unfence(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """Unfences the broker and elects for leaderless partitions, which it may lead now."""
    return [
        BrokerRegistrationChangeRecord.unchecked(broker_id=broker, broker_epoch=epoch, fenced=False),
        *_leader_and_isr_updates(state, state.leaderless(), add=broker),
    ]


def begin_controlled_shutdown(state: ControllerState, broker: BrokerId, epoch: Epoch) -> list[MetadataRecord]:
    """Moves the leaderships away from the broker while it still serves."""
    return [
        BrokerRegistrationChangeRecord.unchecked(broker_id=broker, broker_epoch=epoch, in_controlled_shutdown=True),
        *leave_in_sync_replicas(state, broker),
    ]


def register(
    state: ControllerState, broker: BrokerId, incarnation_id: str, previous_epoch: Epoch, rack: str | None
) -> list[MetadataRecord]:
    """Registers a new incarnation. Its broker epoch is the offset of its registration record.

    If `previous_epoch` is not the broker epoch that is registered, or none is registered, the last shutdown was unclean
    and the broker leaves every ISR and ELR (E20, E21). Below the metadata version that brings ELR the ISRs stay as they
    are, and there are no ELRs (K7, N36).
    """
    records: list[MetadataRecord] = []
    known = state.image.brokers.get(broker)
    if (known is None or known.broker_epoch != previous_epoch) and state.image.features.elr:
        records = leave_for_unclean_shutdown(state, broker)
    registration = RegisterBrokerRecord.unchecked(
        broker_id=broker, broker_epoch=state.image.next_offset + len(records), incarnation_id=incarnation_id, rack=rack
    )
    return [*records, registration]
