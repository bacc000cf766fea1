"""The operator of a quorum: adds and removes voters, replaces disks, and takes care that a majority is left.

A disk may be lost as long as each set of voters by which some replica may count keeps a majority whose disks are there,
and nothing is under way that could change such a set; who has lost a voter's disk removes that voter before it touches
another one. Beyond that nobody promises anything, so nothing that is found within it is excused.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.hunt.quorum.lab import CLUSTER, QuorumLab
from experiments.hunt.quorum.truth import Voters, is_counted, is_same, majority
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.base import Request
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.quorum.voters import NO_UUID, ReplicaKey

ANSWERED_WITHIN_MS = 60_000
"""A change is answered sooner, if its leader lives."""


def change_request(number: int, adds: bool, key: ReplicaKey) -> Request:
    kind = AddVoterRequest if adds else RemoveVoterRequest
    return kind(correlation_id=number, cluster_id=CLUSTER, voter_id=key.id, voter_uuid=key.uuid)


class Operator:
    """See the module docstring."""

    def __init__(self, lab: QuorumLab) -> None:
        self._lab = lab
        self._open: dict[int, tuple[NodeId, int]] = {}
        self._errors: dict[int, ErrorCode] = {}
        self._read = len(lab.answers)

    # -- changes -------------------------------------------------------------------------------------------------------

    def ask(self, adds: bool, key: ReplicaKey, to: NodeId) -> int:
        """Asks a replica for a change; the number of the request."""
        lab = self._lab
        lab.asked += 1
        lab.ask(to, change_request(lab.asked, adds, key))
        if to in lab.nodes:
            self._open[lab.asked] = to, lab.nodes[to].life
        return lab.asked

    def is_waiting(self) -> bool:
        """Whether something that was asked for may still be done."""
        lab = self._lab
        for message in lab.answers[self._read :]:
            self._open.pop(message.correlation_id, None)
            self._errors[message.correlation_id] = message.error
        self._read = len(lab.answers)
        alive = {(node, running.life) for node, running in lab.nodes.items()}
        self._open = {number: place for number, place in self._open.items() if place in alive}
        return bool(self._open)

    def change(self, adds: bool, key: ReplicaKey) -> ErrorCode | None:
        """Asks the leader for a change, and waits for the answer; none where there came none."""
        lab = self._lab
        if not lab.run_until(lambda: lab.leader is not None, ANSWERED_WITHIN_MS) or lab.leader is None:
            return None
        number = self.ask(adds, key, lab.leader.key.id)
        lab.run_until(lambda: not self.is_waiting(), ANSWERED_WITHIN_MS)
        return self._errors.get(number)

    # -- what may be done ----------------------------------------------------------------------------------------------

    def missing(self) -> set[ReplicaKey]:
        """Voters by somebody's count whose disks are lost."""
        truth = self._lab.truth
        return {voter for voters in truth.sets_in_use() for voter in voters if not truth.is_on_a_disk(voter)}

    def may_lose(self, node: NodeId) -> bool:
        """Whether the disk of this node may be lost."""
        truth = self._lab.truth
        key = truth.keys.get(node)
        if self.is_waiting() or key is None:
            return False
        sets = [voters for voters in truth.sets_in_use() if is_counted(key, voters)]
        if any(ReplicaKey(node, NO_UUID) in voters for voters in sets):
            return False  # another disk would pass for this voter
        return all(self._has_majority(voters, voters - {key}) for voters in sets)

    def may_add(self) -> bool:
        return not self.missing() or not self.is_waiting()

    def may_remove(self, key: ReplicaKey) -> bool:
        """Whether a majority is left without this voter."""
        truth = self._lab.truth
        if self.missing() and self.is_waiting():
            return False
        return all(self._has_majority(voters - {key}, voters - {key}) for voters in truth.sets_in_use())

    def _has_majority(self, voters: Voters, left: Iterable[ReplicaKey]) -> bool:
        there = sum(self._lab.truth.is_on_a_disk(voter) for voter in left)
        return bool(voters) and there >= majority(voters)

    # -- repair --------------------------------------------------------------------------------------------------------

    def repair(self) -> bool:
        """Puts voters whose disks are there in the place of those whose disks are lost; whether it could."""
        for _ in range(4 * len(self._lab.ids)):
            self._lab.run_until(self._lab.is_settled, ANSWERED_WITHIN_MS)
            lost = sorted(self.missing())
            if not lost:
                return True
            if self._lab.static:
                self.change(True, self._lab.truth.keys[lost[0].id])
            else:
                self.change(False, lost[0])
        return False

    def pin(self) -> None:
        """Static voters become known by their uuids."""
        for node in self._lab.ids:
            self.change(True, self._lab.truth.keys[node])

    def grow(self, size: int) -> None:
        """Voters are added until there are so many."""
        truth = self._lab.truth
        for node in self._lab.ids:
            is_voter = any(is_same(voter, truth.keys[node]) for voter in truth.voters)
            if len(truth.voters) < size and not is_voter:
                self._lab.append()
                self.change(True, truth.keys[node])
