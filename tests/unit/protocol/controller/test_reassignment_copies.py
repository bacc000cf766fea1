"""A completed reassignment leaves no fewer copies than the final assignment replaces (E32)."""

from __future__ import annotations

import pytest

from protocol.messages.records import ConfigRecord
from tests.unit.protocol.controller.reassignment_helpers import (
    CANCEL,
    after_isr,
    bench,
    done,
    is_moving,
    reassign,
    under_way,
)
from tests.unit.protocol.node_helpers import fencing

SMALLER = {
    "1 of 1, 2": ((0, 1, 2), (0, 1), (1, 2), False),
    "1 and 2 of 1, 2": ((0, 1, 2), (0, 1, 2), (1, 2), True),
    "1 of 1": ((0, 1, 2), (0, 1), (1,), True),
    "2 of 1, 2, and 0 is out of sync": ((0, 1, 2), (2,), (1, 2), False),
    "1, 2 of 1, 2, 3": ((0, 1, 2, 3), (0, 1, 2), (1, 2, 3), False),
    "1, 2, 3 of 1, 2, 3": ((0, 1, 2, 3), (1, 2, 3), (1, 2, 3), True),
}


@pytest.mark.covers("E32")
@pytest.mark.parametrize(("replicas", "isr", "target", "complete"), SMALLER.values(), ids=SMALLER)
@pytest.mark.parametrize("min_isr", ["1", "2"])
def test_a_smaller_assignment_waits_until_it_is_all_in_sync(
    replicas: tuple[int, ...], isr: tuple[int, ...], target: tuple[int, ...], complete: bool, min_isr: str
) -> None:
    """As in Kafka from 4.3.0 on: nothing replaces the copies that go."""
    config = ConfigRecord(topic_id="T", name="min.insync.replicas", value=min_isr)
    controller = bench(config, replicas=replicas, isr=isr, leader=isr[-1])
    found = done(controller, reassign(*target))
    assert is_moving(found) is not complete
    assert set(found.isr) == (set(isr) & set(target) if complete else set(isr))


@pytest.mark.covers("E32")
def test_a_move_of_two_replicas_does_not_leave_one_copy_at_min_isr_1() -> None:
    """Kafka completes here from 4.3.0 on, and a failed disk of broker 3 loses everything."""
    one = ConfigRecord(topic_id="T", name="min.insync.replicas", value="1")
    controller = bench(one, fencing(1, 1, True), replicas=(0, 1), isr=(0,))
    assert is_moving(done(controller, reassign(3, 1)))
    assert is_moving(after_isr(controller, 0, 3))
    assert set(done(controller, CANCEL).replicas) == {0, 1}, "a cancellation asks for min ISR alone (E33)"


@pytest.mark.covers("E32")
def test_a_move_that_removes_nothing_completes_with_min_isr() -> None:
    """Broker 1 is down; the new replica 3 joins 0 and 2, and no copy goes."""
    controller = under_way((0, 2), replicas=(0, 1, 2, 3), removing_replicas=())
    assert not is_moving(after_isr(controller, 0, 2, 3))
