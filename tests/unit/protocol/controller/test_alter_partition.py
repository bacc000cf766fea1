"""AlterPartition: which proposals are refused, and the records of the accepted ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config import Generation
from protocol.controller import alter_partition, brokers
from protocol.errors import ErrorCode
from protocol.messages.control import BrokerState, PartitionIsrProposal
from protocol.messages.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from tests.unit.protocol.node_helpers import ControllerBench, config_of, fencing, registrations, topic_records

NONE = ErrorCode.NONE


def bench(*records: MetadataRecord, **partition: object) -> ControllerBench:
    """Brokers 0..3 are active; `t-0` has replicas 0, 1, 2, leader 0, leader epoch 5 and partition epoch 9."""
    fields: dict[str, object] = {"isr": (0, 1), "leader_epoch": 5, "partition_epoch": 9} | partition
    min_isr = int(str(fields.pop("min_isr", 2)))
    return ControllerBench(*registrations((0, 1, 2, 3)), *topic_records(min_isr, **fields), *records)


def proposal(*isr: int, **fields: object) -> PartitionIsrProposal:
    epochs = fields.pop("epochs", {})
    assert isinstance(epochs, dict)
    members = tuple(BrokerState(broker_id=broker, broker_epoch=epochs.get(broker, broker)) for broker in isr)
    defaults = {"topic_id": "T", "partition_id": 0, "leader_epoch": 5, "partition_epoch": 9, "new_isr": members}
    return PartitionIsrProposal(**(defaults | fields))


def shutting_down(broker: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=broker, in_controlled_shutdown=True)


REFUSED = {
    "unknown topic id": (0, proposal(0, 1, 2, topic_id="U"), ErrorCode.UNKNOWN_TOPIC_ID),
    "unknown partition": (0, proposal(0, 1, 2, partition_id=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "leader epoch of the future": (0, proposal(0, 1, 2, leader_epoch=6), ErrorCode.NOT_CONTROLLER),
    "partition epoch of the future": (0, proposal(0, 1, 2, partition_epoch=10), ErrorCode.NOT_CONTROLLER),
    "deposed leader": (0, proposal(0, 1, 2, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
    "not the leader": (1, proposal(0, 1, 2), ErrorCode.INVALID_REQUEST),
    "older partition epoch": (0, proposal(0, 1, 2, partition_epoch=8), ErrorCode.INVALID_UPDATE_VERSION),
    "duplicates": (0, proposal(0, 1, 1), ErrorCode.INVALID_REQUEST),
    "not a replica": (0, proposal(0, 1, 3), ErrorCode.INVALID_REQUEST),
    "without the leader": (0, proposal(1, 2), ErrorCode.INVALID_REQUEST),
    "empty": (0, proposal(), ErrorCode.INVALID_REQUEST),
    "recovered to recovering": (0, proposal(0, 1, leader_recovery_state=1), ErrorCode.INVALID_REQUEST),
    "stale epoch of the joining member": (0, proposal(0, 1, 2, epochs={2: 1}), ErrorCode.INELIGIBLE_REPLICA),
    "epoch of the future of a member": (0, proposal(0, 1, 2, epochs={2: 3}), ErrorCode.INELIGIBLE_REPLICA),
}


def test_a_member_proposed_without_an_epoch_is_accepted() -> None:
    proposed = proposal(0, 1, 2, epochs={2: -1})
    assert alter_partition.validate(bench().state, 0, proposed) is ErrorCode.NONE


@pytest.mark.covers("B4", "B23", "C11", "E28", "G8")
@pytest.mark.parametrize(("leader", "proposed", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(leader: int, proposed: PartitionIsrProposal, expected: ErrorCode) -> None:
    assert alter_partition.validate(bench().state, leader, proposed) is expected


@pytest.mark.covers("B6", "M53")
@pytest.mark.parametrize("record", [fencing(2, 2, True), shutting_down(2)], ids=["fenced", "shutting down"])
def test_a_member_that_is_not_active_is_refused(record: MetadataRecord) -> None:
    assert alter_partition.validate(bench(record).state, 0, proposal(0, 1, 2)) is ErrorCode.INELIGIBLE_REPLICA
    assert alter_partition.validate(bench(record).state, 0, proposal(0, 1)) is NONE


@pytest.mark.covers("M53", "E28")
def test_a_member_that_has_restarted_is_refused_under_its_old_epoch() -> None:
    rebooted = bench()
    epoch = rebooted.state.image.next_offset
    rebooted.apply([RegisterBrokerRecord(broker_id=2, broker_epoch=epoch, incarnation_id="next", fenced=False)])
    assert alter_partition.validate(rebooted.state, 0, proposal(0, 1, 2)) is ErrorCode.INELIGIBLE_REPLICA
    assert alter_partition.validate(rebooted.state, 0, proposal(0, 1, 2, epochs={2: epoch})) is NONE


@pytest.mark.covers("C11", "C5")
@pytest.mark.parametrize(
    ("isr", "wanted", "expected"),
    [((0,), 1, NONE), ((0,), 0, NONE), ((0, 1), 1, ErrorCode.INVALID_REQUEST), ((0, 1), 0, NONE)],
    ids=["stays recovering alone", "recovered alone", "grows while recovering", "recovered and grown"],
)
def test_while_recovering_the_isr_has_one_member(isr: tuple[int, ...], wanted: int, expected: ErrorCode) -> None:
    recovering = bench(isr=(0,), leader_recovery_state=1)
    assert alter_partition.validate(recovering.state, 0, proposal(*isr, leader_recovery_state=wanted)) is expected


@pytest.mark.covers("C5", "C10")
def test_the_leader_clears_the_recovery_state() -> None:
    recovering = bench(isr=(0,), leader_recovery_state=1)
    record = alter_partition.propose(recovering.state, proposal(0, leader_recovery_state=0))
    assert record is not None
    recovering.apply([record])
    found = recovering.partition()
    assert (found.leader_recovery_state, found.leader_epoch, found.partition_epoch) == (0, 5, 10)


@pytest.mark.covers("C6")
def test_an_isr_change_keeps_the_recovery_state() -> None:
    recovering = bench(isr=(0, 1), leader_recovery_state=1)
    record = alter_partition.propose(recovering.state, proposal(0, leader_recovery_state=1))
    assert record is not None
    recovering.apply([record])
    assert (recovering.partition().isr, recovering.partition().leader_recovery_state) == ((0,), 1)


@pytest.mark.covers("E13", "E14", "M10")
def test_accepted_proposals_keep_the_elr() -> None:
    controller = bench()
    controller.apply([_record(controller, proposal(0))])
    assert (controller.partition().isr, controller.partition().elr) == ((0,), (1,))
    record = _record(controller, proposal(0, 2, partition_epoch=10))
    assert (record.isr, record.eligible_leader_replicas, record.leader) == ((0, 2), (), -2)
    controller.apply([record])
    assert (controller.partition().elr, controller.partition().leader_epoch) == ((), 5)


def _record(controller: ControllerBench, proposed: PartitionIsrProposal) -> PartitionChangeRecord:
    assert alter_partition.validate(controller.state, 0, proposed) is NONE
    record = alter_partition.propose(controller.state, proposed)
    assert record is not None
    return record


def test_an_unchanged_isr_makes_no_record_and_the_leader_decides_its_order() -> None:
    assert alter_partition.propose(bench().state, proposal(0, 1)) is None
    assert _record(bench(), proposal(0, 2, 1)).isr == (0, 2, 1)


@pytest.mark.covers("M28", "M30")
def test_the_second_proposal_for_a_partition_epoch_is_refused() -> None:
    controller = bench()
    proposed = proposal(0)
    controller.apply(brokers.fence(controller.state, 1, 1))
    assert alter_partition.validate(controller.state, 0, proposed) is ErrorCode.INVALID_UPDATE_VERSION
    elected = bench()
    elected.apply(brokers.fence(elected.state, 0, 0))
    assert elected.partition().leader == 1
    assert alter_partition.validate(elected.state, 0, proposal(0)) is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.covers("B23")
@given(
    st.integers(0, 3),
    st.integers(4, 6),
    st.integers(8, 10),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4),
)
def test_an_accepted_proposal_leaves_a_well_formed_partition(
    leader: int, leader_epoch: int, partition_epoch: int, members: list[tuple[int, int]]
) -> None:
    controller = bench(fencing(2, 2, True))
    states = [BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in members]
    proposed = proposal(leader_epoch=leader_epoch, partition_epoch=partition_epoch, new_isr=tuple(states))
    before = controller.partition()
    error = alter_partition.validate(controller.state, leader, proposed)
    assert controller.partition() is before, "validation changes nothing"
    if error is not NONE:
        return
    assert (leader, leader_epoch, partition_epoch) == (0, 5, 9)
    record = alter_partition.propose(controller.state, proposed)
    controller.apply([record] if record is not None else [])
    found = controller.partition()
    assert found.isr == tuple(broker for broker, _ in members)
    assert 0 in found.isr
    assert set(found.isr) <= {0, 1}
    assert not set(found.isr) & set(found.elr)


@pytest.mark.covers("K4")
def test_before_elr_a_smaller_isr_records_no_eligible_replica() -> None:
    records = [*registrations(), *topic_records(2, leader_epoch=5, partition_epoch=9)]
    controller = ControllerBench(*records, config=config_of(Generation.KIP_497))
    controller.apply([_record(controller, proposal(0))])
    found = controller.partition()
    assert (found.isr, found.elr, found.last_known_elr, found.last_known_leader) == ((0,), (), (), -1)
