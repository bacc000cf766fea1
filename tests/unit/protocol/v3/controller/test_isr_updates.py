"""Notifications of leaders that write ISRs; the rest of the module is in `testdata/leaders_and_isrs.txt`."""

from __future__ import annotations

import pytest

from protocol.ids import TopicPartition
from protocol.v3.controller.isr_updates import PROPAGATION_MS, IsrChanges
from protocol.v3.store import paths
from protocol.v3.store.records import IsrChangeNode
from tests.unit.protocol.v3.controller.procedure_helpers import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.covers("B2", "L8")
def test_a_leader_notifies_of_its_changes_once_a_minute_at_most() -> None:
    world = World()
    changes = IsrChanges(1, world.brokers[1].epoch)
    assert changes.due_ms() is None
    changes.changed |= {T0}
    assert changes.due_ms() == 0
    world.admin(changes.notify(1_000))
    assert changes.due_ms() is None
    changes.changed |= {T1, T0}
    assert changes.due_ms() == 1_000 + PROPAGATION_MS
    world.admin(changes.notify(61_000))
    nodes = [world.tree.find(f"{paths.ISR_CHANGES}/{name}") for name in world.tree.children(paths.ISR_CHANGES)]
    found = [IsrChangeNode.decode("", node.data).keys for node in nodes if node is not None]
    assert found == [[T0], [T0, T1]]
