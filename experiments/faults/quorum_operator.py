"""The operator of a simulated quorum: adds and removes voters until the voters are the controllers that shall vote.

Faults end a controller's vote, or replace its disk, which is then another replica under the same id (D32). Afterwards
all controllers shall vote again with the disks that they have. The quorum may refuse a request or not answer it while
it has faults of its own; so the operator checks repeatedly and submits one request at a time: first it removes a voter
whose disk is gone or that shall not vote, then it adds a disk that has no vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import add_voter, remove_voter
from experiments.engines.sim.disk import SimStorage
from protocol.ids import NodeId
from protocol.messages.admin import AdminRequest
from protocol.quorum import state_file
from protocol.quorum.voters import NO_UUID, ReplicaKey


def uuid_of(disk: SimStorage) -> str:
    """The uuid of a controller's disk, empty before the disk is formatted."""
    raw = disk.read_file(state_file.FILE)
    return NO_UUID if raw is None else state_file.decode(raw).uuid


def next_change(
    voters: Collection[ReplicaKey], disks: Mapping[NodeId, str], excluded: Collection[NodeId]
) -> AdminRequest | None:
    """The next request, None where none is needed, given the uuids of the controllers' disks, and the controllers that
    shall not vote. A voter is not removed if a majority of the remaining voters have lost their disks.
    """
    for voter in sorted(voters):
        keeps_vote = voter.id not in excluded and disks.get(voter.id) in (NO_UUID, voter.uuid)
        rest = [other for other in voters if other != voter]
        if not keeps_vote and len(voters_without_disk(rest, disks)) < len(rest) / 2:
            return remove_voter(*voter)
    for node, uuid in sorted(disks.items()):
        if node not in excluded and uuid != NO_UUID and ReplicaKey(node, uuid) not in voters:
            return add_voter(node, uuid)
    return None


def voters_without_disk(voters: Collection[ReplicaKey], disks: Mapping[NodeId, str]) -> set[ReplicaKey]:
    return {voter for voter in voters if disks.get(voter.id) != voter.uuid}


def keeps_majority(voters: Collection[ReplicaKey], disks: Mapping[NodeId, str], node: NodeId) -> bool:
    """Whether a majority of the voters have their disks after the disk of this controller is replaced."""
    gone = voters_without_disk(voters, disks) | {voter for voter in voters if voter.id == node}
    return len(gone) < len(voters) / 2


class QuorumOperator:
    """`submit` sends a request and returns its command's number."""

    def __init__(self, engine: CheckedEngine, submit: Callable[[AdminRequest], int]) -> None:
        self._engine = engine
        self._submit = submit
        self._last_request: int | None = None
        self._excluded: Counter[NodeId] = Counter()

    @property
    def disks(self) -> dict[NodeId, str]:
        return {node: uuid_of(self._engine.cluster.disks[node]) for node in self._engine.spec.controller_ids}

    def voters(self) -> tuple[ReplicaKey, ...] | None:
        """The voters as the active controller knows them; None without an active controller, with a static voter set,
        or while the last change of voters is uncommitted.
        """
        active = self._engine.active_node()
        if active is None or active.replica.config.is_static:
            return None
        settled = active.replica.log.voters.last_change < active.replica.high_watermark
        return active.replica.voters.keys if settled else None

    def can_replace(self, node: NodeId) -> bool:
        voters = self.voters()
        return voters is not None and not self._is_waiting and keeps_majority(voters, self.disks, node)

    @property
    def _is_waiting(self) -> bool:
        return self._last_request is not None and self._engine.outcome(self._last_request) is None

    def remove_vote(self, node: NodeId) -> None:
        """The controller shall not vote until `restore_vote` has been called as often."""
        self._excluded[node] += 1
        self.review()

    def restore_vote(self, node: NodeId) -> None:
        self._excluded[node] -= 1
        self.review()

    def forget_request(self) -> None:
        self._last_request = None

    def review(self) -> None:
        """Submits the next change, unless the last request is still open."""
        voters = self.voters()
        if voters is not None and not self._is_waiting:
            request = next_change(voters, self.disks, [node for node, count in self._excluded.items() if count])
            self._last_request = None if request is None else self._submit(request)

    def is_settled(self) -> bool:
        """Whether the voters are the controllers that shall vote, and all controllers have the whole metadata log."""
        if len(self._engine.spec.controller_ids) == 1:
            return True
        active = self._engine.active_node()
        if active is None or active.replica.has_pending_changes:
            return False
        end = active.replica.log.end_offset
        behind = any(node.replica.high_watermark != end for node in self._engine.controller_nodes())
        static = active.replica.config.is_static
        return not behind and (static or {key.id for key in active.replica.voters.keys} == set(self.disks))
