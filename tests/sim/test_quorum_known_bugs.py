"""Two courses of events from the literature on Raft that lose what was committed, step by step: with its guard the
quorum comes through, and without it a leader lacks a committed value. Nothing else is asked here.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from experiments.hunt.mutants.registry import mutated
from experiments.hunt.quorum.invariants import LeaderHasAllAckedValues
from experiments.hunt.quorum.lab import BrokenInvariantError, QuorumLab
from experiments.hunt.quorum.operator import Operator
from protocol.ids import NodeId
from protocol.messages.records import ConfigRecord
from protocol.quorum.replica import QuorumReplica

SOON_MS = 60_000
LARGE = ConfigRecord(topic_id=None, name="large", value="x" * 1_100_000)
"""More than what one fetch brings: it travels without what comes after it."""


def split(lab: QuorumLab, *parts: Collection[NodeId]) -> None:
    """Nodes of different parts do not hear of each other, nor those of no part of anybody."""
    part_of = {node: index for index, part in enumerate(parts) for node in part}
    pairs = {(a, b) for a in lab.disks for b in lab.disks if a != b}
    lab.cuts = {(a, b) for a, b in pairs if part_of.get(a, -1 - a) != part_of.get(b, -1 - b)}


def leader_among(lab: QuorumLab, nodes: Collection[NodeId], above: int) -> QuorumReplica:
    """A leader of a later epoch, in the event in which it becomes it."""

    def found() -> list[QuorumReplica]:
        replicas = [lab.nodes[node].replica for node in sorted(nodes)]
        return [replica for replica in replicas if replica.is_leader and replica.epoch > above]

    assert lab.run_until(lambda: bool(found()), SOON_MS)
    return found()[0]


def judged(lab: QuorumLab) -> QuorumLab:
    lab.invariants = [LeaderHasAllAckedValues(lab.truth)]
    return lab


def change_before_a_record_of_its_epoch() -> QuorumLab:
    """Of four voters the leader adds a fifth, which nobody hears of. Another is elected and removes the first, at once:
    that is committed by two of three. Then the first, with the added one, has a majority of five.
    """
    lab = judged(QuorumLab("changes", 5))
    lab.start(*lab.disks)
    operator = Operator(lab)
    operator.grow(4)
    assert lab.run_until(lab.is_settled, SOON_MS)
    first, added = lab.nodes[1000].replica, lab.nodes[1004].replica
    split(lab, (1000, 1004), (1001, 1002, 1003))
    operator.ask(True, added.key, 1000)
    assert lab.run_until(lambda: added.is_voter, 1_000)
    second = leader_among(lab, (1001, 1002, 1003), first.epoch)
    partner, third = (node for node in (1001, 1002, 1003) if node != second.key.id)
    split(lab, (1000, 1004), (second.key.id, partner))
    operator.ask(False, first.key, second.key.id)
    lab.run_for(1_000)
    split(lab, (1000, 1004, third), (second.key.id, partner))
    leader_among(lab, (1000, 1004), second.epoch)
    return lab


def high_watermark_over_a_former_epoch() -> QuorumLab:
    """A leader has a record on two of five, and another is elected by the rest. Then one of those two leads again, and
    a third has the record too, but not yet what the leader has appended since. Then the other is elected once more, by
    those who have less than it has.
    """
    lab = judged(QuorumLab("epochs", 5, static=True))
    lab.start(*lab.disks)
    assert lab.run_until(lab.is_settled, SOON_MS)
    first = lab.leader
    assert first is not None
    two, three = [first.key.id], [node for node in lab.ids if node != first.key.id]
    two.append(three.pop())
    split(lab, two)
    first.append([LARGE])
    lab.look_at(first.key.id)
    end = first.log.end_offset
    assert lab.run_until(lambda: lab.nodes[two[1]].replica.log.end_offset == end, 1_000)
    split(lab, three)
    second = leader_among(lab, three, first.epoch)
    third = next(node for node in three if node != second.key.id)
    split(lab, (*two, third))
    again = leader_among(lab, two, second.epoch)
    assert lab.run_until(lambda: known_end(again, third) == end, 10_000)
    assert lab.nodes[third].replica.log.end_offset == end < again.log.end_offset
    split(lab, three)
    leader_among(lab, three, again.epoch)
    return lab


def known_end(leader: QuorumReplica, node: NodeId) -> int:
    """Where the log of a follower ends, as far as its leader knows."""
    assert leader.leader_state is not None
    return max((shown.end_offset for key, shown in leader.leader_state.progress.items() if key.id == node), default=-1)


BUGS = {
    "change-before-a-record-of-its-epoch": change_before_a_record_of_its_epoch,
    "high-watermark-over-former-epochs": high_watermark_over_a_former_epoch,
}


@pytest.mark.covers("D15")
@pytest.mark.parametrize("guard", BUGS)
def test_with_its_guard_the_quorum_comes_through(guard: str) -> None:
    lab = BUGS[guard]()
    lab.heal()
    assert lab.run_until(lab.is_settled, SOON_MS)


@pytest.mark.covers("D15")
@pytest.mark.parametrize("guard", BUGS)
def test_without_it_what_was_committed_is_lost(guard: str) -> None:
    with mutated(guard), pytest.raises(BrokenInvariantError) as found:
        BUGS[guard]()
    assert found.value.invariant == "LeaderHasAllAckedValues"
