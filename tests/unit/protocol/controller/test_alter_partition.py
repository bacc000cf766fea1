"""What an accepted proposal leaves, whatever it says. Examples: `testdata/alter_partition.txt`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.controller import alter_partition
from protocol.errors import ErrorCode
from protocol.messages.control import BrokerState, PartitionIsrProposal
from tests.unit.protocol.node_helpers import ControllerBench, fencing, registrations, topic_records

NONE = ErrorCode.NONE


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
    state = topic_records(2, isr=(0, 1), leader_epoch=5, partition_epoch=9)
    controller = ControllerBench(*registrations((0, 1, 2, 3)), *state, fencing(2, 2, True))
    proposed = PartitionIsrProposal(
        topic_id="T",
        partition_id=0,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        new_isr=tuple(BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in members),
    )
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
