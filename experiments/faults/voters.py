"""The operator of a simulated quorum: who is to vote, and what is done about it until it is so.

Faults end a controller's vote, or replace its disk, which is then another replica under the same id (D32). When they
are over all controllers are to vote again with the disk that they have. A request may be refused or go unanswered
while the quorum has troubles of its own; so the operator looks again and again, and asks for one thing at a time: first
that the vote of a disk ends which is gone, or is not to vote, then that a disk gets one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import add_voter, remove_voter
from experiments.engines.sim.disk import SimStorage
from protocol.ids import NodeId
from protocol.messages.admin import AdminRequest
from protocol.quorum import state_file
from protocol.quorum.voters import NO_UUID, ReplicaKey


def uuid_of(disk: SimStorage) -> str:
    """The uuid of a controller's disk, empty where it has none yet."""
    raw = disk.read_file(state_file.FILE)
    return NO_UUID if raw is None else state_file.decode(raw).uuid


def next_change(
    voters: Collection[ReplicaKey], disks: Mapping[NodeId, str], voteless: Collection[NodeId]
) -> AdminRequest | None:
    """What is to be asked for, given the voters, the uuids of the controllers' disks, and who is not to vote. Nobody is
    removed where that leaves voters of whom no majority have their disks.
    """
    for voter in sorted(voters):
        is_wanted = voter.id not in voteless and disks.get(voter.id) in (NO_UUID, voter.uuid)
        rest = [other for other in voters if other != voter]
        if not is_wanted and len(gone_of(rest, disks)) < len(rest) / 2:
            return remove_voter(*voter)
    for node, uuid in sorted(disks.items()):
        if node not in voteless and uuid != NO_UUID and ReplicaKey(node, uuid) not in voters:
            return add_voter(node, uuid)
    return None


def gone_of(voters: Collection[ReplicaKey], disks: Mapping[NodeId, str]) -> set[ReplicaKey]:
    """The voters whose disks there are no more."""
    return {voter for voter in voters if disks.get(voter.id) != voter.uuid}


def can_bear(voters: Collection[ReplicaKey], disks: Mapping[NodeId, str], node: NodeId) -> bool:
    """Whether a majority of the voters keep their disks, if that of this controller is replaced."""
    gone = gone_of(voters, disks) | {voter for voter in voters if voter.id == node}
    return len(gone) < len(voters) / 2


class QuorumOperator:
    """See the module docstring. `ask` submits a request and gives its command's number."""

    def __init__(self, engine: CheckedEngine, ask: Callable[[AdminRequest], int]) -> None:
        self._engine = engine
        self._ask = ask
        self._asked: int | None = None
        self.voteless: dict[NodeId, int] = {}

    @property
    def disks(self) -> dict[NodeId, str]:
        """The uuids of the disks of all controllers."""
        return {node: uuid_of(self._engine.cluster.disks[node]) for node in self._engine.spec.controller_ids}

    def voters(self) -> tuple[ReplicaKey, ...] | None:
        """The voters as the active controller knows them, where nobody is in doubt about them; None elsewhere."""
        active = self._engine.active_node()
        if active is None or active.replica.config.is_static:
            return None
        settled = active.replica.log.voters.last_change < active.replica.high_watermark
        return active.replica.voters.keys if settled else None

    def can_replace(self, node: NodeId) -> bool:
        """Whether the quorum can bear that the disk of this controller is replaced, whatever is under way."""
        voters = self.voters()
        return voters is not None and not self._is_asking and can_bear(voters, self.disks, node)

    @property
    def _is_asking(self) -> bool:
        """Whether the last request has no answer yet."""
        return self._asked is not None and self._engine.outcome(self._asked) is None

    def look(self) -> None:
        """Asks for the next change that is to be, unless the last one is under way."""
        voters = self.voters()
        if voters is None or self._is_asking:
            return
        voteless = [node for node, count in self.voteless.items() if count]
        request = next_change(voters, self.disks, voteless)
        self._asked = None if request is None else self._ask(request)

    def is_settled(self) -> bool:
        """Whether everybody votes who is to, and nothing is under way."""
        if len(self._engine.spec.controller_ids) == 1:
            return True
        active = self._engine.active_node()
        if active is None or active.replica.has_pending_changes:
            return False
        end = active.replica.log.end_offset
        behind = any(node.replica.high_watermark != end for node in self._engine.controller_nodes())
        static = active.replica.config.is_static
        return not behind and (static or {key.id for key in active.replica.voters.keys} == set(self.disks))
