"""Rules of the controllers' quorum that hold in any cluster with several controllers (KIP-595): one leader per epoch,
and what a leader commits is in the logs of a majority of the voters.

The quorum's own simulation checks more (`experiments/hunt/quorum/safety.py`), and has neither brokers nor the faults of
clusters. A log counts as long as the replica last had it: a fetch that is on its way may arrive after the disk was
replaced, as operators do while a majority keeps theirs.
"""

from __future__ import annotations

from experiments.check import rules
from experiments.engines.sim.cluster import SimCluster
from protocol.ids import METADATA_LOG, Epoch, NodeId, Offset, is_controller
from protocol.nodes.controller import ControllerNode
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet

ONE_LEADER, MAJORITY = "OneQuorumLeaderPerEpoch", "CommittedMetadataHasMajority"


class QuorumRules:
    """Call `after` with every node that has handled an event."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._is_needed = len(cluster.spec.controller_ids) > 1
        self._ends: dict[ReplicaKey, Offset] = {}
        self._leaders: dict[tuple[str, Epoch], NodeId] = {}
        self._committed: dict[NodeId, tuple[int, Offset, VoterSet]] = {}

    def after(self, node: NodeId) -> tuple[str, str] | None:
        """The rule that the event has violated, and how; None if there is none."""
        controller = self._cluster.nodes.get(node) if self._is_needed and is_controller(node) else None
        if not isinstance(controller, ControllerNode):
            return None
        replica, incarnation = controller.replica, self._cluster.incarnation_of(node)
        self._ends[replica.key] = replica.log.end_offset
        known, before, voters = self._committed.get(node, (incarnation, 0, replica.voters))
        before = before if known == incarnation else 0
        self._committed[node] = incarnation, replica.high_watermark, replica.voters
        if not replica.is_leader:
            return None
        wrong = rules.one_leader(self._leaders, METADATA_LOG, replica.epoch, node)
        if wrong:
            return ONE_LEADER, wrong
        if replica.high_watermark > before and not any(self._have(replica, each) for each in (voters, replica.voters)):
            ends = {voter.id: self._end_of(voter) for voter in replica.voters.keys}
            return MAJORITY, f"controller {node} has committed {replica.high_watermark}; the voters' logs end at {ends}"
        return None

    def _have(self, replica: QuorumReplica, voters: VoterSet) -> bool:
        """Whether a majority of these voters has what the replica has committed."""
        return rules.have_majority(voters.keys, lambda voter: self._end_of(voter) >= replica.high_watermark)

    def _end_of(self, voter: ReplicaKey) -> Offset:
        """The log end of a voter; without a uuid, of any disk of its id."""
        return max((end for key, end in self._ends.items() if matches(voter, key)), default=0)


def matches(voter: ReplicaKey, replica: ReplicaKey) -> bool:
    """Whether a voter key refers to this replica: by id and uuid, or by id if the voter key has no uuid."""
    return voter.id == replica.id and voter.uuid in (NO_UUID, replica.uuid)
