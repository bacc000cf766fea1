"""Drives a simulated quorum in tests (`experiments/hunt/quorum/harness.py`): waits, requests, queries."""

from __future__ import annotations

from experiments.hunt.quorum.harness import CLUSTER, QuorumHarness
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.base import Response
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest, VoteRequest
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

SOON_MS = 60_000


def started(
    seed: str, size: int = 3, *, static: bool = False, observers: int = 0, joins: bool = False
) -> QuorumHarness:
    """A quorum of which every node has been started."""
    harness = QuorumHarness(seed, size, static=static, observers=observers, joins=joins)
    harness.start(*harness.disks)
    return harness


def replica(harness: QuorumHarness, node: NodeId) -> QuorumReplica:
    return harness.nodes[node].replica


def leader(harness: QuorumHarness) -> QuorumReplica:
    assert harness.run_until(lambda: harness.leader is not None, SOON_MS)
    found = harness.leader
    assert found is not None
    return found


def settle(harness: QuorumHarness) -> None:
    harness.heal()
    assert harness.run_until(harness.is_settled, SOON_MS), replica_states(harness)


def replica_states(harness: QuorumHarness) -> list[tuple[object, ...]]:
    return [
        (name, node.replica.role, node.replica.epoch, node.replica.leader, node.replica.high_watermark)
        for name, node in harness.nodes.items()
    ]


def voter_ids(harness: QuorumHarness) -> set[tuple[NodeId, ...]]:
    """The voter sets that the replicas use."""
    return {tuple(key.id for key in node.replica.voters.keys) for node in harness.nodes.values()}


def ask(harness: QuorumHarness, adds: bool, key: ReplicaKey, to: NodeId | None = None, **fields: object) -> int:
    """Requests a change of the voters, by default from the leader; returns the correlation id."""
    number = len(harness.responses) + 1_000 * (harness.events + 1)
    kind = AddVoterRequest if adds else RemoveVoterRequest
    request = kind(correlation_id=number, cluster_id=CLUSTER, voter_id=key.id, voter_uuid=key.uuid, **fields)
    harness.submit(leader(harness).key.id if to is None else to, request)
    return number


def vote_request(candidate: ReplicaKey, epoch: int, voter: ReplicaKey, log_end: tuple[int, int]) -> VoteRequest:
    """A request with the candidate's id as its correlation id; `log_end` is (epoch of the last record, log end)."""
    return VoteRequest(
        correlation_id=candidate.id,
        cluster_id=CLUSTER,
        candidate_id=candidate.id,
        candidate_uuid=candidate.uuid,
        candidate_epoch=epoch,
        voter_id=voter.id,
        voter_uuid=voter.uuid,
        last_offset_epoch=log_end[0],
        last_offset=log_end[1],
    )


def follower(harness: QuorumHarness) -> QuorumReplica:
    """The first voter that is not the leader."""
    first = leader(harness)
    return next(replica(harness, key.id) for key in first.voters.keys if key.id != first.key.id)


def answer(harness: QuorumHarness, number: int, within_ms: int = SOON_MS) -> Response:
    def found() -> list[Response]:
        return [response for response in harness.responses if response.correlation_id == number]

    assert harness.run_until(lambda: bool(found()), within_ms), replica_states(harness)
    return found()[0]


def change(harness: QuorumHarness, adds: bool, key: ReplicaKey, **fields: object) -> ErrorCode:
    return answer(harness, ask(harness, adds, key, **fields)).error
