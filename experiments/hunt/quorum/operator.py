"""The operator of a simulated quorum: adds and removes voters and replaces lost disks, within what KRaft tolerates.

A disk may be lost only if every voter set that a replica may be using keeps a majority of intact disks, and no change
of the voters is open. Where controllers make themselves voters, a request of one without a vote may be open at any
time, so it keeps its disk. After the loss that voter is removed before another one is changed. KRaft guarantees nothing
beyond these rules; within them every violation is a defect.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.check.quorum_rules import matches
from experiments.check.rules import majority
from experiments.hunt.quorum.global_view import Voters, is_voter_of
from experiments.hunt.quorum.harness import CLUSTER, QuorumHarness
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.base import Request
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.quorum.voters import NO_UUID, ReplicaKey

ANSWERED_WITHIN_MS = 60_000
"""Virtual milliseconds within which a running leader responds to a change of the voters."""


def change_request(number: int, adds: bool, key: ReplicaKey) -> Request:
    """An AddVoter (`adds`) or RemoveVoter request with correlation id `number`."""
    kind = AddVoterRequest if adds else RemoveVoterRequest
    return kind(correlation_id=number, cluster_id=CLUSTER, voter_id=key.id, voter_uuid=key.uuid)


class Operator:
    """One operator. It remembers which of its requests may still take effect."""

    def __init__(self, harness: QuorumHarness) -> None:
        self._harness = harness
        self._open: dict[int, tuple[NodeId, int]] = {}
        self._errors: dict[int, ErrorCode] = {}
        self._read = len(harness.responses)

    def request_change(self, adds: bool, key: ReplicaKey, to: NodeId) -> int:
        """Sends a request for a change of the voters to a replica; returns its correlation id."""
        harness = self._harness
        harness.last_request_id += 1
        harness.submit(to, change_request(harness.last_request_id, adds, key))
        if to in harness.nodes:
            self._open[harness.last_request_id] = to, harness.nodes[to].incarnation
        return harness.last_request_id

    def has_open_requests(self) -> bool:
        """Whether a request without a response may still take effect."""
        harness = self._harness
        for message in harness.responses[self._read :]:
            self._open.pop(message.correlation_id, None)
            self._errors[message.correlation_id] = message.error
        self._read = len(harness.responses)
        alive = {(node, running.incarnation) for node, running in harness.nodes.items()}
        self._open = {number: place for number, place in self._open.items() if place in alive}
        return bool(self._open)

    def change(self, adds: bool, key: ReplicaKey) -> ErrorCode | None:
        """Requests a change from the leader and waits for the response; returns its error, None without a response."""
        harness = self._harness
        if not harness.run_until(lambda: harness.leader is not None, ANSWERED_WITHIN_MS) or harness.leader is None:
            return None
        number = self.request_change(adds, key, harness.leader.key.id)
        harness.run_until(lambda: not self.has_open_requests(), ANSWERED_WITHIN_MS)
        return self._errors.get(number)

    def lost_voters(self) -> set[ReplicaKey]:
        """Voters of any set in use whose disks are lost."""
        view = self._harness.view
        return {voter for voters in view.sets_in_use() for voter in voters if not view.has_disk(voter)}

    def can_lose_disk(self, node: NodeId) -> bool:
        """Whether the quorum tolerates the loss of this node's disk now."""
        view = self._harness.view
        key = view.keys.get(node)
        if self.has_open_requests() or key is None:
            return False
        sets = [voters for voters in view.sets_in_use() if is_voter_of(key, voters)]
        if any(ReplicaKey(node, NO_UUID) in voters for voters in sets):
            return False  # the voter set cannot tell a new disk from the lost one
        if self._harness.joins and len(sets) < len(view.sets_in_use()):
            return False
        return all(self._has_majority(voters, voters - {key}) for voters in sets)

    def can_add(self) -> bool:
        return not self.lost_voters() or not self.has_open_requests()

    def can_remove(self, key: ReplicaKey) -> bool:
        """Whether every set in use keeps a majority of intact disks without this voter."""
        view = self._harness.view
        if self.lost_voters() and self.has_open_requests():
            return False
        return all(self._has_majority(voters - {key}, voters - {key}) for voters in view.sets_in_use())

    def _has_majority(self, voters: Voters, left: Iterable[ReplicaKey]) -> bool:
        there = sum(self._harness.view.has_disk(voter) for voter in left)
        return bool(voters) and there >= majority(voters)

    def replace_lost_voters(self) -> bool:
        """Removes every voter whose disk is lost (static voters: adds the new disk); returns whether that succeeded."""
        for _ in range(4 * len(self._harness.ids)):
            self._harness.run_until(self._harness.is_settled, ANSWERED_WITHIN_MS)
            lost = sorted(self.lost_voters())
            if not lost:
                return True
            if self._harness.static:
                self.change(True, self._harness.view.keys[lost[0].id])
            else:
                self.change(False, lost[0])
        return False

    def grow(self, size: int) -> None:
        """Adds voters until there are `size`."""
        view = self._harness.view
        for node in self._harness.ids:
            is_voter = any(matches(voter, view.keys[node]) for voter in view.voters)
            if len(view.voters) < size and not is_voter:
                self._harness.append()
                self.change(True, view.keys[node])
